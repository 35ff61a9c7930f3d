"""A training whose run folder is removed, moved or replaced meanwhile, at every validation and with every listener."""

import importlib.util
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.training.parts import SETTINGS, Shift, ShiftTask, run_training

from qkv.checkpoint.rotation import best, latest_complete
from qkv.errors import CheckpointError

ROOT = Path(__file__).parents[2]
BOARD = [pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="an extra")]
QUICK = ((1, False), (4, True))
"""Of the validation at which a folder is exchanged, and of listeners, what the fast suite takes."""


class Exchanging(ShiftTask):
    """Exchanges its run's folder for another in its n-th validation."""

    def __init__(self, run: Path, other: Path | None, at: int) -> None:
        torch.manual_seed(3)
        super().__init__(Shift())
        self.run, self.other, self.left = run, other, at

    def validate(self, model):
        self.left -= 1
        if self.left == 0:
            self.run.rename(self.run.with_name("moved"))
            if self.other is not None:
                self.other.rename(self.run)
        return super().validate(model)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("at", "tensorboard"),
    [
        pytest.param(at, board, marks=[*BOARD[:board], *[pytest.mark.slow] * ((at, board) not in QUICK)])
        for at in (1, 2, 4)
        for board in (False, True)
    ],
)
def test_a_finished_run_in_its_place_keeps_every_byte(tmp_path, at, tensorboard):
    run_training(tmp_path / "other", tensorboard=tensorboard)
    before = contents(tmp_path / "other")
    task = Exchanging(tmp_path / "run", tmp_path / "other", at)
    with pytest.raises(CheckpointError, match="moved"):
        run_training(tmp_path / "run", task=task, tensorboard=tensorboard)
    assert contents(tmp_path / "run") == before
    assert (latest_complete(tmp_path / "moved") is None) is (at == 1)


@pytest.mark.parametrize("at", [1, 4])
def test_nothing_takes_the_place_of_a_folder_that_is_gone(tmp_path, at):
    with pytest.raises(CheckpointError, match="moved"):
        run_training(tmp_path / "run", task=Exchanging(tmp_path / "run", None, at))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved"]
    run_training(tmp_path / "moved")
    assert best(tmp_path / "moved").is_dir()


ENDLESS = """
import sys
from pathlib import Path
from dataclasses import replace
from tests.training.parts import SETTINGS, run_training
run_training(Path(sys.argv[1]), replace(SETTINGS, steps=100_000, validate_every=1))
"""


@pytest.mark.slow
def test_two_trainings_of_one_name_stay_apart(tmp_path):
    """One is stopped, its folder deleted, another trains there to its end, and the first one continues."""
    run = tmp_path / "run"
    first = subprocess.Popen([sys.executable, "-c", ENDLESS, run], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        while not (run / "best").exists():
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        shutil.rmtree(run)
        run_training(run, SETTINGS)
        before = contents(run)
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=60)
    finally:
        first.kill()
        first.wait()
    assert first.returncode == 1  # the script keeps its traceback, of a typed error
    assert "removed, moved or replaced" in said.splitlines()[-1]
    assert contents(run) == before
