"""Backend `sdpa` hands PyTorch's kernel four dimensions, whatever the caller's are."""

import pytest
import torch
from tests.contract.criterion import Draw, failed, largest, shares
from tests.contract.judge import of_flash
from tests.contract.orders import Order
from tests.seed import generator
from torch import Tensor

import qkv
from qkv.algorithms.sdpa import flash
from qkv.masks import Mask, causal, lengths
from qkv.normalizers import Softmax

LEADING = {
    "none": ((), (), ()),
    "one": ((3,), (3,), (3,)),
    "heads shared": ((2, 3), (2, 1), (2, 1)),
    "batch shared": ((2, 3), (1, 3), (3,)),
    "queries shared": ((1, 1), (2, 3), (2, 3)),
    "five": ((2, 1, 3), (1, 4, 3), (4, 1)),
}


@pytest.mark.parametrize("mask", [None, causal(), lengths(4)], ids=["all", "causal", "lengths"])
@pytest.mark.parametrize("name", LEADING)
def test_leading_dimensions_broadcast(name: str, mask: object) -> None:
    sizes = ((5, 4), (6, 4), (6, 3))
    leaves = [
        torch.randn(*leading, *own, dtype=torch.float64, requires_grad=True)
        for leading, own in zip(LEADING[name], sizes, strict=True)
    ]
    answers = []
    for backend in ("reference", "sdpa"):
        output = qkv.attention(*leaves, mask=mask, backend=backend)
        with torch.no_grad():
            state = qkv.attention_with_state(*leaves, mask=mask, backend=backend)[1]
        answers.append([output, state.value, *torch.autograd.grad(output.square().sum(), leaves)])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("gradient", [False, True])
def test_operations_are_those_of_the_matrix_products(gradient: bool) -> None:
    """Two forward, of two operations for each pair and place; five more backward. The narrower width is padded."""
    query, key = (torch.zeros(2, 3, n, 4, requires_grad=gradient) for n in (5, 7))
    plan = qkv.explain(query, key, torch.zeros(2, 3, 7, 8), backend="sdpa.flash")
    assert plan.operations == 2 * 2 * (2 * 3 * 5 * 7) * 8 * (3.5 if gradient else 1)


@pytest.mark.parametrize("mask", [None, causal()], ids=["all", "causal"])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 5, 4), (2, 2, 3, 5, 4), (5, 4)], ids=str)
def test_a_sink_learns_through_the_kernel(shape: tuple[int, ...], mask: Mask | None) -> None:
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    sink = torch.randn(shape[-3] if len(shape) > 2 else (), dtype=torch.float64, requires_grad=True)
    answers = []
    for backend in ("reference", "sdpa"):
        output = qkv.attention(*leaves, normalizer=Softmax(sink), mask=mask, backend=backend)
        answers.append([output, *torch.autograd.grad(output.square().sum(), [*leaves, sink])])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("deviation", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("backend", ["sdpa.flash", "blocked"])
@pytest.mark.parametrize("keys", [512, pytest.param(4096, marks=pytest.mark.slow)])
def test_gradients_of_large_scores_keep_the_stated_limit(keys: int, backend: str, deviation: float) -> None:
    """PyTorch's kernel by its multiple of the limit, which grows with the scores; `blocked` by the limit itself."""
    names = ("query", "key", "value")

    def draw(turn: int) -> Draw:
        *tensors, cotangent = torch.randn(4, keys, 32, generator=generator("large scores", turn))
        tensors = [tensors[0] * deviation, tensors[1] * deviation, tensors[2]]

        def gradients(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
            leaves = [x.to(dtype).requires_grad_() for x in tensors]
            output = qkv.attention(*leaves, backend=name)
            return dict(zip(names, torch.autograd.grad(output, leaves, cotangent.to(dtype)), strict=True))

        def literal(order: Order) -> dict[str, Tensor]:
            with order.summing():
                return gradients("reference", torch.float32)

        exact = gradients("reference", torch.float64)
        scales = {name: largest(x) for name, x in exact.items()}
        return Draw(gradients(backend, torch.float32), exact, literal, scales)

    query, key = deviation * torch.randn(4, keys, 32, generator=generator("large scores", 0))[:2]
    multiple = of_flash(largest(query @ key.mT) / 32**0.5) if backend == "sdpa.flash" else 1.0
    assert not failed(shares(draw, torch.float32, allowed=dict.fromkeys(names, multiple)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("backend", "sink"), [("sdpa.flash", None), ("sdpa.softmax_sink", 0.5)])
def test_half_precision_is_computed_in_float32_where_the_processor_does_not_multiply_it(
    dtype: torch.dtype, backend: str, sink: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "multiplies", lambda dtype: False)
    inputs, upstream = torch.randn(3, 1, 2, 37, 16).to(dtype), torch.randn(1, 2, 37, 16).to(dtype)

    def results(kind: torch.dtype) -> tuple[Tensor, Tensor]:
        leaves = inputs.to(kind).requires_grad_()
        output = qkv.attention(*leaves, normalizer=Softmax(sink), backend=backend)
        return output, torch.autograd.grad(output, leaves, upstream.to(kind))[0]

    for narrow, wide in zip(results(dtype), results(torch.float32), strict=True):
        assert torch.equal(narrow, wide.to(dtype))
