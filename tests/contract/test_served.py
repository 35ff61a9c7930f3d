"""A backend goes on to serve what it served, and refuses what tests leave out, with a typed error."""

import pytest
from tests.contract.mechanisms import ON_CPU
from tests.contract.served import MODULES, Case, coverages

from qkv.errors import UnsupportedError

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("module", MODULES)
def test_backends_serve_what_is_recorded_and_refuse_the_rest(module: str) -> None:
    for name, coverage in coverages(module).items():
        for backend, digits in coverage.recorded(name).items():
            for case, digit in zip(coverage.cases[backend], digits, strict=True):
                holds = case.is_served() if digit == "1" else refuses(case)
                assert holds, f"{name} of {case}; if on purpose: python -m tests.contract.served"


def refuses(case: Case) -> bool:
    """Whether each call raises, not only its description: no backend computes what tests leave out."""
    for request in case.requests():
        with pytest.raises(UnsupportedError) as caught:
            request.run(case.backend)
        assert caught.value.argument == "backend"
    return True


def test_every_backend_serves_cases_and_the_reference_all_of_them() -> None:
    served = dict.fromkeys((*ON_CPU, "auto"), "")
    for module in MODULES:
        for name, coverage in coverages(module).items():
            for backend, digits in coverage.recorded(name).items():
                served[backend] += digits
    assert all("1" in digits for digits in served.values())
    assert "0" not in served["reference"]
