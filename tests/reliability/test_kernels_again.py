"""Every backend gives the same bits on every repeat, and from several threads at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call
from tests.contract.mechanisms import ON_CPU
from torch import Tensor

from qkv.masks.patterns import causal

SIZES = ((2, 2), 70, 90)
FEW = 3


def calls(backend: str) -> list[Call]:
    drawn = [Call.draw(score, normalizer, SIZES, torch.float32, mask=causal()) for score, normalizer in MECHANISMS]
    plain = [call.with_options(mask=None) for call in drawn]
    return [call for call in (*drawn, *plain) if call.serves(backend)]


def bits(call: Call, backend: str) -> dict[str, Tensor]:
    output, gradients = call.gradients(backend)
    return {"output": output, **gradients}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of tensors whose bytes differ; a NaN must be the same NaN."""
    return [name for name, x in one.items() if x.numpy().tobytes() != other[name].numpy().tobytes()]


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=lambda threads: f"{threads} threads")
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("backend", ON_CPU)
@pytest.mark.parametrize("repeats", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_repeats_have_the_same_bits(backend: str, repeats: int) -> None:
    served = calls(backend)
    for call in served[:: 1 if repeats > 8 else max(1, len(served) // FEW)]:
        first = bits(call, backend)
        for _ in range(repeats):
            assert differing(first, bits(call, backend)) == [], call


@pytest.mark.parametrize("backend", ON_CPU)
def test_eight_threads_at_once_get_the_same_bits(backend: str) -> None:
    """Each thread computes every call, in a different order."""
    served = calls(backend)[::12]
    first = [bits(call, backend) for call in served]

    def work(turn: int) -> list[str]:
        places = [(place + turn * 3) % len(served) for place in range(len(served))]
        return [str(served[place]) for place in places if differing(first[place], bits(served[place], backend))]

    with ThreadPoolExecutor(8) as pool:
        assert [name for names in pool.map(work, range(8)) for name in names] == []
