"""Memory that is refused at any moment of a whole run: one message, an exit code, and nothing saved is lost."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="the library that refuses is compiled"
)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_command_that_is_refused_memory_says_so_and_loses_nothing(seed: int) -> None:
    """Training, resuming, translating, evaluating, aligning, generating, tagging, pictures and the viewer's page."""
    command = [sys.executable, "-m", "tests.reliability.refused", "--refusals", "100", "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["faults"] == {}, done.stderr
    assert result["codes"]["2"] >= 80
    assert set(result["codes"]) <= {"0", "2", "missed"}
