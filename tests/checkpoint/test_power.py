"""Whatever unsynced data a disk loses, the newest complete checkpoint loads."""

import shutil
from pathlib import Path
from random import Random

import pytest
from tests.checkpoint.parts import same, small
from tests.checkpoint.power import Recorder, on_disk

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import latest_complete, save_step
from qkv.checkpoint.run import open_run

CONFIG = {"width": 3}


def advance(run: Path) -> None:
    with open_run(run, CONFIG):
        save_step(run, 2, small(2), keep=1, best=True)


def again(run: Path) -> None:
    with open_run(run, CONFIG):
        save_step(run, 1, small(9), keep=1, best=True)


@pytest.mark.parametrize(("save", "new"), [(advance, 2), (again, 9)])
@pytest.mark.parametrize("draws", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_power_lost_after_any_call_loses_no_complete_checkpoint(tmp_path: Path, save, new: int, draws: int) -> None:
    start, run = tmp_path / "start", tmp_path / "run"
    with open_run(start, CONFIG):
        save_step(start, 1, small(1), keep=1, best=True)
    shutil.copytree(start, run)
    recorder = Recorder(run)
    with recorder.recording():
        save(run)
    assert len([name for name, _ in recorder.log if name == "fsync"]) >= 8
    for point in range(len(recorder.log) + 1):
        for draw in range(draws):
            home = tmp_path / "home"
            on_disk(start, run, recorder.log[:point], Random(f"{point}:{draw}"), home)
            newest = latest_complete(home, lambda text: None)
            assert newest is not None, (point, draw)
            found = load(newest)
            assert same(found, small(1)) or same(found, small(new)), (point, draw)
            assert point < len(recorder.log) or same(found, small(new)), "a save that returned is on the disk"
            shutil.rmtree(home)


def test_the_simulation_forgets_what_was_not_fsynced(tmp_path: Path) -> None:
    """A save without fsync would lose the checkpoint, and the simulation must detect that."""
    start, run = tmp_path / "start", tmp_path / "run"
    with open_run(start, CONFIG):
        save_step(start, 1, small(1), keep=1, best=True)
    shutil.copytree(start, run)
    recorder = Recorder(run)
    with recorder.recording():
        again(run)
    careless = [operation for operation in recorder.log if operation[0] != "fsync"]
    lost = 0
    for draw in range(40):
        home = tmp_path / "home"
        on_disk(start, run, careless, Random(draw), home)
        try:
            found = load(latest_complete(home, lambda text: None))
            lost += not same(found, small(9))
        except Exception:
            lost += 1
        shutil.rmtree(home)
    assert lost > 10
