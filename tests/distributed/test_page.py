"""The example of the page about scale prints what the page shows, and any number of processes gives equal losses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE, PAGE = ROOT / "examples" / "one_sequence.py", ROOT / "docs" / "how_to" / "scale.md"


def run(processes: int, options: str = "--tokens 301 --steps 2") -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{processes}"]
    command = [*torchrun, str(EXAMPLE), *options.split()]
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


@pytest.mark.slow
def test_the_page_shows_what_the_example_prints() -> None:
    after = PAGE.read_text(encoding="utf-8").partition("--nproc-per-node 2 one_sequence.py ")[2]
    options, _, text = after.partition("\n")
    shown, printed = text.partition("```text\n")[2].partition("\n```")[0].splitlines(), run(2, options)
    assert printed[3:] == shown[3:]
    for line, other in zip(printed[:3], shown[:3], strict=True):
        assert line.split()[:3] == other.split()[:3]
        assert abs(float(line.split()[3]) - float(other.split()[3])) < 1e-3  # processors round differently
