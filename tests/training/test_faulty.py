import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.training import faulty

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("stride", "names"),
    [
        (97, ["ENOSPC"]),
        *(pytest.param(1, [name], marks=pytest.mark.slow) for name in ("ENOSPC", "EIO", "EDQUOT", "EACCES")),
    ],
)
def test_a_training_whose_disk_fails_anywhere_ends_with_a_typed_error_and_can_be_resumed(tmp_path, stride, names):
    """Checkpoints, journal, picture and TensorBoard's files; afterwards the journal agrees with the checkpoint."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.training.faulty", str(tmp_path), str(stride), *names]
    # A child forked after PyTorch has computed with two threads would wait for threads that it does not have.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == 2 * len(names)
    for result in results:
        assert result["faults"] == []
        assert result["calls"] >= 100
        assert result["codes"][str(faulty.TYPED)] >= 100 // stride
        assert set(result["codes"]) <= {str(code) for code in (faulty.TOLERATED, faulty.TYPED, faulty.MISSED)}
