import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.train import crash

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kills", [1, pytest.param(200, marks=pytest.mark.slow)])
def test_a_training_killed_at_random_moments_ends_with_the_same_bits(tmp_path, kills):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.train.crash", str(tmp_path), str(kills)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    first, *middle, last = result["codes"]
    assert (first, last) == (crash.ENDED, crash.ENDED)
    assert set(middle) <= {crash.KILLED, crash.ENDED}
    assert crash.KILLED in middle
    assert result["said"] == []
    assert result["digests"][0] == result["digests"][1]
