import json

import pytest
from tests.programs_in_forks import run_program
from tests.training import crash

pytestmark = pytest.mark.forks


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.slow)])
def test_trainings_killed_at_random_moments_end_with_the_same_bits(tmp_path, kills):
    """Every kill hits a training run that has not ended."""
    done = run_program("tests.training.crash", tmp_path, kills)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    ended = len(result["digests"])
    assert result["codes"] == {str(crash.KILLED): kills, str(crash.ENDED): ended}
    assert ended >= 2
    assert len(set(result["digests"])) == 1
    assert result["said"] == []
    assert result["lost"] == 0
