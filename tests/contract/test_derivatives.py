"""First and second derivatives match finite differences."""

from collections.abc import Callable

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call
from tests.contract.served import by_served
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.patterns import lengths
from qkv.normalizers.dense import Hard, Sum
from qkv.scores.free import Learned
from qkv.scores.kernels import Boxcar

NAMES = {f"{score.name}-{normalizer.name}": (score, normalizer) for score, normalizer in MECHANISMS}
CONSTANT = [name for name in NAMES if "hard" in name or "boxcar" in name]
SMOOTH = [name for name in NAMES if name not in CONSTANT]
SIZES = ((2,), 2, 3)


def of_leaves(call: Call, backend: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    leaves = {name: x.requires_grad_() for name, x in call.leaves.items()}

    def compute(*given: Tensor) -> Tensor:
        return call.with_leaves(**dict(zip(leaves, given, strict=True))).output(backend)

    return compute, list(leaves.values())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", SMOOTH)
def test_reference_has_the_gradients_of_finite_differences(name: str, masked: bool) -> None:
    mask = lengths(torch.tensor([2, 0])) if masked else None
    compute, leaves = of_leaves(Call.draw(*NAMES[name], SIZES, mask=mask, value_width=2), "reference")
    assert gradcheck(compute, leaves, atol=1e-6, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_reference_has_every_entry_of_the_jacobian(name: str) -> None:
    compute, leaves = of_leaves(Call.draw(*NAMES[name], SIZES, value_width=2), "reference")
    assert gradcheck(compute, leaves, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_reference_has_second_derivatives(name: str) -> None:
    compute, leaves = of_leaves(Call.draw(*NAMES[name], SIZES, value_width=2), "reference")
    assert gradgradcheck(compute, leaves, atol=1e-5)


@pytest.mark.parametrize("name", ["scaled_dot-softmax", "additive-softmax", "gaussian-sum", "cosine-softmax"])
def test_second_derivatives_of_the_common_mechanisms(name: str) -> None:
    compute, leaves = of_leaves(Call.draw(*NAMES[name], ((2,), 1, 2), value_width=1), "reference")
    assert gradgradcheck(compute, leaves, atol=1e-5, fast_mode=True)


@by_served(lambda name: Call.draw(*NAMES[name]).request(), name=CONSTANT)
def test_constant_mechanisms_have_zero_gradients(backend: str, name: str) -> None:
    """Under Hard and Boxcar only values are learned; the other gradients are zero, not missing."""
    call = Call.draw(*NAMES[name])
    gradients = call.gradients(backend)[1]
    assert gradients["value"].abs().sum() > 0
    assert all((x == 0).all() for leaf, x in gradients.items() if leaf != "value")


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
@pytest.mark.parametrize("options", [{"score": Boxcar(2.0), "normalizer": Sum()}, {"normalizer": Hard()}], ids=str)
def test_a_constant_mechanism_may_be_all_that_learns(backend: str, options: dict) -> None:
    """Backward runs even if only the query requires a gradient."""
    query, key = torch.randn(5, 4, requires_grad=True), torch.randn(7, 4)
    attention(query, key, key, **options, backend=backend).sum().backward()
    assert query.grad is not None
    assert (query.grad == 0).all()


def test_a_boxcar_of_many_points_may_be_all_that_learns() -> None:
    """In one dimension, where `auto` chooses the sorted backend; the bandwidth as well."""
    query, bandwidth = torch.randn(600, 1, requires_grad=True), torch.ones((), requires_grad=True)
    key = torch.randn(700, 1)
    for leaf, score in ((query, Boxcar(1.0)), (bandwidth, Boxcar(bandwidth))):
        for backend in ("sorted", "reference", "blocked"):
            leaf.grad = None
            x = query if leaf is query else query.detach()
            attention(x, key, key, score=score, backend=backend).sum().backward()
            assert leaf.grad is not None, backend
            assert (leaf.grad == 0).all(), backend


@by_served(lambda: Call.draw(*NAMES["learned-softmax"]).request())
def test_gradients_reach_what_a_callable_closes_over(backend: str) -> None:
    network = torch.nn.Linear(4, 1, dtype=torch.float64)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)

    def score(query: Tensor, key: Tensor) -> Tensor:
        return network(torch.tanh(query[..., :, None, :] * scale + key[..., None, :, :])).squeeze(-1)

    query, key, value = torch.randn(3, 2, 5, 4, dtype=torch.float64).unbind()
    found = []
    for name in (backend, "reference"):
        output = attention(query, key, value, score=Learned(score), backend=name)
        found.append(torch.autograd.grad(output.square().sum(), [scale, *network.parameters()], materialize_grads=True))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found, strict=True))
    assert found[0][0].abs() > 0


def test_a_callable_works_under_autocast() -> None:
    """A network in float32 meets queries that autocast turned into bfloat16."""
    network = torch.nn.Linear(4, 1)

    def score(query: Tensor, key: Tensor) -> Tensor:
        return network(torch.tanh(query[..., :, None, :] + key[..., None, :, :])).squeeze(-1)

    query, key, value = torch.randn(3, 2, 5, 4).unbind()
    for backend in ("reference", "blocked"):
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = attention(query, key, value, score=score, backend=backend)
        output.float().sum().backward()
        assert output.dtype == torch.bfloat16
        assert network.weight.grad is not None


def test_weights_have_gradients() -> None:
    """A loss on the weights themselves, as in guided attention."""
    query, key, value = (torch.randn(2, n, 4, dtype=torch.float64, requires_grad=True) for n in (2, 3, 3))
    assert gradcheck(lambda *given: attention_with_weights(*given)[1], [query, key, value])


@pytest.mark.parametrize(
    "name", ["scaled_dot-softmax", "gaussian-sum", "scaled_dot-sparsemax", "scaled_dot-entmax_learned"]
)
def test_states_have_gradients(name: str) -> None:
    call = Call.draw(*NAMES[name], SIZES, value_width=1)
    leaves = {leaf: x.requires_grad_() for leaf, x in call.leaves.items() if leaf != "value"}

    def compute(*given: Tensor) -> Tensor:
        changed = call.with_leaves(**dict(zip(leaves, given, strict=True)))
        return changed._call(attention_with_state, changed.leaves, "reference")[1].value

    assert gradcheck(compute, list(leaves.values()), fast_mode=True)
