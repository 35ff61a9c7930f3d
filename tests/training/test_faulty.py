import json

import pytest
from tests.programs_in_forks import run_program
from tests.training import faulty

pytestmark = pytest.mark.forks


@pytest.mark.parametrize(
    ("stride", "names"),
    [
        (97, ["ENOSPC"]),
        *(pytest.param(1, [name], marks=pytest.mark.slow) for name in ("ENOSPC", "EIO", "EDQUOT", "EACCES")),
    ],
)
def test_a_training_whose_disk_fails_anywhere_ends_with_a_typed_error_and_can_be_resumed(tmp_path, stride, names):
    """Checkpoints, journal, picture and TensorBoard's files; afterwards the journal agrees with the checkpoint."""
    done = run_program("tests.training.faulty", tmp_path, stride, *names)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == 2 * len(names)
    for result in results:
        assert result["faults"] == []
        assert result["calls"] >= 100
        assert result["codes"][str(faulty.TYPED)] >= 100 // stride
        assert set(result["codes"]) <= {str(code) for code in (faulty.TOLERATED, faulty.TYPED, faulty.MISSED)}
