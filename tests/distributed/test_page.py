"""The example of the page about scale runs under torchrun, and any number of processes gives the losses of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_sequence.py"


def run(processes: int) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{processes}"]
    command = [*torchrun, str(EXAMPLE), "--tokens", "301", "--steps", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_example_gives_the_losses_of_one_process() -> None:
    alone = run(1)
    assert [line.split(":")[0] for line in alone[:2]] == ["step 1", "step 2"]
    for processes in (2, 3):
        lines = run(processes)
        assert lines[:2] == alone[:2]
        assert f"process 0 of {processes}, zigzag: {301 // processes} of 301" in lines[3]
