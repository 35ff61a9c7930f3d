import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training import crash

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_trainings_killed_at_random_moments_end_with_the_same_bits(tmp_path, kills):
    """Every kill hits a training run that has not ended."""
    command = [sys.executable, "-m", "tests.training.crash", str(tmp_path), str(kills)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    ended = len(result["digests"])
    assert result["codes"] == {str(crash.KILLED): kills, str(crash.ENDED): ended}
    assert ended >= 2
    assert len(set(result["digests"])) == 1
    assert result["said"] == []
    assert result["lost"] == 0
