"""A run folder that is removed, moved or replaced while it is open for training."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.checkpoint.parts import small

from qkv.checkpoint.disk import make_folder, remove_folder, remove_leftovers, replace_file
from qkv.checkpoint.folder import load, recover
from qkv.checkpoint.rotation import best, mark_best, save_step, step_folder
from qkv.checkpoint.run import open_run
from qkv.errors import CheckpointError
from qkv.training.journal import Journal

CONFIG = {"width": 3}
LEFTOVER = ".step-00000007.saving-0123456789ab"


def moved(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def removed(run: Path) -> None:
    shutil.rmtree(run)


def replaced(run: Path) -> None:
    """Another training, begun and ended at this path; its folder holds what any function would change."""
    another(run.with_name("another"))
    moved(run)
    run.with_name("another").rename(run)


def replaced_by_a_link(run: Path) -> None:
    another(run.with_name("another"))
    moved(run)
    run.symlink_to(run.with_name("another"))


def replaced_by_a_file(run: Path) -> None:
    moved(run)
    run.write_text("a file")


def another(run: Path) -> None:
    run.mkdir()
    for step in (1, 2):
        save_step(run, step, small(50 + step), keep=9, best=True)
    (run / "run.json").write_text("another")
    (run / "metrics.jsonl").write_text('{"step": 2, "kind": "train"}\n')
    (run / "tensorboard").mkdir()
    (run / LEFTOVER).mkdir()
    shutil.copytree(run / "step-00000002", run / ".step-00000002.replaced")


DEEDS: dict[str, Callable[[Path], object]] = {
    "save": lambda run: save_step(run, 3, small(3), keep=1, best=True),
    "save again": lambda run: save_step(run, 1, small(9), keep=1),
    "mark": lambda run: mark_best(run, 1),
    "write": lambda run: replace_file(run / "loss.png", b"picture"),
    "journal": lambda run: Journal(run, 1, 1),
    "make": lambda run: make_folder(run / "tensorboard" / "more"),
    "remove": lambda run: remove_folder(step_folder(run, 1)),
    "recover": lambda run: recover(step_folder(run, 2)),
    "clean": remove_leftovers,
}
CHANGES = (moved, removed, replaced, replaced_by_a_link, replaced_by_a_file)


def without_times(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("deed", DEEDS)
def test_a_run_is_never_written_to_a_folder_that_took_its_name(tmp_path, deed, change):
    """Every function that writes to a run ends with a typed error, and the other folder keeps every byte."""
    with open_run(tmp_path / "run", CONFIG) as run:
        save_step(run, 1, small(1), keep=3, best=True)
        change(run)
        before, names = without_times(tmp_path), sorted(map(str, tmp_path.rglob("*")))
        idle = deed in ("remove", "recover", "clean")  # may find nothing to do
        with suppress(CheckpointError) if idle else pytest.raises(CheckpointError):
            DEEDS[deed](run)
        assert without_times(tmp_path) == before
        assert sorted(map(str, tmp_path.rglob("*"))) == names


@pytest.mark.parametrize("point", range(1, 9))
def test_a_folder_replaced_in_the_middle_of_a_save_gets_nothing(tmp_path, monkeypatch, point):
    """Whichever rename or creation the replacement precedes, what follows goes to the first folder or nowhere."""
    from qkv import system

    real, count = system._within, iter(range(1, 1000))
    before: dict[str, bytes] = {}

    def within(path):
        place = real(path)
        if next(count) == point:
            replaced(tmp_path / "run")
            before.update(without_times(tmp_path / "run"))
        return place

    with open_run(tmp_path / "run", CONFIG) as run:
        save_step(run, 1, small(1), keep=3, best=True)
        monkeypatch.setattr(system, "_within", within)
        with pytest.raises(CheckpointError):
            save_step(run, 2, small(2), keep=1, best=True)
        monkeypatch.setattr(system, "_within", real)
        assert before
        assert without_times(run) == before
    load(best(tmp_path / "elsewhere"))


def test_the_moved_run_resumes(tmp_path):
    with open_run(tmp_path / "run", CONFIG) as run:
        save_step(run, 1, small(1), best=True)
        moved(run)
        with pytest.raises(CheckpointError, match="moved"):
            save_step(run, 2, small(2), best=True)
    with open_run(tmp_path / "elsewhere", CONFIG) as run:
        save_step(run, 2, small(2), best=True)
    assert best(tmp_path / "elsewhere").name == "step-00000002"


def test_a_second_training_of_this_process_does_not_open_the_first_one_s_folder(tmp_path):
    with open_run(tmp_path / "run", CONFIG) as run:
        removed(run)
        with pytest.raises(CheckpointError, match="moved"), open_run(run, CONFIG):
            pass
