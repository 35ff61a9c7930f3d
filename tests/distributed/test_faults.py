"""A process that ends in the middle of a call ends the others with one typed error."""

import pytest
from tests.distributed.group import Processes


@pytest.mark.parametrize("slow", [0, 2])
@pytest.mark.parametrize("calls", range(6))
def test_a_process_that_ends_is_named_in_all_others(calls: int, slow: int) -> None:
    processes = Processes(3)
    try:
        errors = processes.run(3, "dying", calls, slow)
    finally:
        processes.close()
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert error.startswith("LostProcessError: processes: expected all 3 processes to go on"), error
