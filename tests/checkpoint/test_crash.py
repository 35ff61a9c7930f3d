import json
import signal

import pytest
from tests.checkpoint import crash
from tests.programs_in_forks import run_program

ALL = ("ENOSPC", "EIO", "EACCES")


@pytest.mark.parametrize(("strides", "errors"), [((31, 5), ALL[:1]), pytest.param((1, 1), ALL, marks=pytest.mark.slow)])
def test_no_blow_at_any_system_call_loses_a_checkpoint(tmp_path, strides, errors):
    """Kill a save before and after each system call, and make each call fail."""
    done = run_program("tests.checkpoint.crash", tmp_path, *strides, *errors)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    names = [f"{reason} {save}" for reason in ("kill", *errors) for save in ("advance", "again")]
    assert [result["name"] for result in results] == names
    assert [result["faults"] for result in results] == [[] for _ in names], done.stderr
    for result in results:
        blows = result["codes"][:-1]
        assert len(blows) > (10 if strides[0] > 1 else 50)
        expected = {-signal.SIGKILL} if result["name"].startswith("kill") else {crash.TOLERATED, crash.TYPED}
        assert set(blows) <= expected
        assert blows.count(crash.TOLERATED) <= 3
