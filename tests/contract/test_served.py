"""A backend goes on to serve what it served, and refuses what tests leave out, with a typed error."""

import pytest
from tests.contract.calls import by_part
from tests.contract.mechanisms import ON_CPU
from tests.contract.served import MODULES, Case, coverages

from qkv.errors import UnsupportedError

pytestmark = pytest.mark.kernels


@by_part
@pytest.mark.parametrize("module", MODULES)
def test_backends_serve_what_is_recorded_and_refuse_the_rest(module: str, whole: bool) -> None:
    """The backends of a case follow each other, as in the tests: its inputs may be drawn once.

    In the fast suite every fourth case: what a backend should serve, the tests themselves compute.
    """
    for test, (name, coverage) in enumerate(coverages(module).items()):
        recorded = coverage.recorded(name)
        for turn, cases in enumerate(zip(*coverage.cases.values(), strict=True)):
            for case in cases if whole or (turn + test) % 4 == 0 else ():
                served = recorded[case.backend][turn] == "1"
                holds = case.is_served() if served else refuses(case, None if whole else turn)
                assert holds, f"{name} of {case}; if on purpose: python -m tests.contract.served"


def refuses(case: Case, turn: int | None) -> bool:
    """Whether each call raises, not only its description: no backend computes what tests leave out.

    With a turn an eighth of the calls.
    """
    requests = list(case.requests())
    for request in requests if turn is None else requests[turn % 8 :: 8] or requests[:1]:
        with pytest.raises(UnsupportedError) as caught:
            request.run(case.backend)
        assert caught.value.argument == "backend"
    return True


@pytest.mark.parametrize("module", MODULES)
def test_every_case_is_recorded(module: str) -> None:
    """Otherwise each process asks for these cases whenever it collects tests."""
    missing = [name for name, coverage in coverages(module).items() if not coverage.is_recorded(name)]
    assert not missing, "python -m tests.contract.served"


def test_every_backend_serves_cases_and_the_reference_all_of_them() -> None:
    served = dict.fromkeys((*ON_CPU, "auto"), "")
    for module in MODULES:
        for name, coverage in coverages(module).items():
            for backend, digits in coverage.recorded(name).items():
                served[backend] += digits
    assert all("1" in digits for digits in served.values())
    assert "0" not in served["reference"]
