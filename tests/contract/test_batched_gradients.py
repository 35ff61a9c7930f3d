"""Several gradients of one output at once are those of one after another, in every backend."""

from collections.abc import Callable

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call
from tests.contract.mechanisms import ON_CPU
from tests.pairs import in_turn
from torch import Tensor

from qkv.functional import attention
from qkv.masks.patterns import causal

CALLS = {f"{score.name}-{normalizer.name}": (score, normalizer) for score, normalizer in MECHANISMS}
SIZES = {"few": ((2, 2), 5, 7), "many": ((2,), 130, 140)}
Leaves = dict[str, Tensor]


def batched(output: Tensor, leaves: Leaves, cotangents: Tensor) -> tuple[Tensor, ...]:
    options = {"retain_graph": True, "materialize_grads": True}
    return torch.autograd.grad(output, list(leaves.values()), cotangents, is_grads_batched=True, **options)


def mapped(output: Tensor, leaves: Leaves, cotangents: Tensor) -> tuple[Tensor, ...]:
    def gradients(cotangent: Tensor) -> tuple[Tensor, ...]:
        options = {"retain_graph": True, "materialize_grads": True}
        return torch.autograd.grad(output, list(leaves.values()), cotangent, **options)

    return torch.func.vmap(gradients)(cotangents)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("name", "size", "dtype"), in_turn(CALLS, SIZES, (torch.float32, torch.float64), every=9))
def test_gradients_at_once_are_those_of_one_after_another(name: str, size: str, dtype: torch.dtype) -> None:
    call = Call.draw(*CALLS[name], SIZES[size], dtype, mask=causal(1))
    for backend in (*ON_CPU, "auto"):
        if backend != "auto" and call.refusal(backend) is not None:
            continue
        leaves = {leaf: x.detach().requires_grad_() for leaf, x in call.leaves.items()}
        tensors = (leaves["query"], leaves["key"], leaves["value"])
        output = attention(*tensors, **call.arguments(leaves), backend=backend)
        cotangents = torch.randn(3, *output.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
        alone = [
            torch.autograd.grad(output, list(leaves.values()), x, retain_graph=True, materialize_grads=True)
            for x in cotangents
        ]
        expected = [torch.stack(parts) for parts in zip(*alone, strict=True)]
        ways: list[Callable[[Tensor, Leaves, Tensor], tuple[Tensor, ...]]] = [batched, mapped]
        for way in ways:
            for leaf, one, other in zip(leaves, way(output, leaves, cotangents), expected, strict=True):
                scale = float(other.abs().max())
                near = torch.allclose(one, other, rtol=1e-4, atol=1e-5 * scale + 1e-12)
                assert near, (backend, way.__name__, leaf)


@pytest.mark.parametrize("name", CALLS)
def test_second_derivatives_at_once_are_those_of_one_after_another(name: str) -> None:
    call = Call.draw(*CALLS[name], ((2,), 2, 3), torch.float64, mask=causal(1))
    leaves = {leaf: x.detach().requires_grad_() for leaf, x in call.leaves.items()}
    inputs = list(leaves.values())
    output = attention(leaves["query"], leaves["key"], leaves["value"], **call.arguments(leaves))
    gradients = torch.autograd.grad(output.square().sum(), inputs, create_graph=True, materialize_grads=True)
    first = torch.cat([x.flatten() for x in gradients])
    if not first.requires_grad:
        return
    cotangents = torch.randn(2, len(first), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options = {"retain_graph": True, "materialize_grads": True}
    alone = [torch.autograd.grad(first, inputs, x, **options) for x in cotangents]
    for leaf, one, others in zip(leaves, batched(first, leaves, cotangents), zip(*alone, strict=True), strict=True):
        expected = torch.stack(others)
        near = torch.allclose(one, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max()) + 1e-12)
        assert near, leaf
