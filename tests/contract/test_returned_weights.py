"""The output's graph passes through the weights that are returned beside it, and no gradient is counted twice."""

from collections.abc import Callable

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, Request, by_part, drawn, near, same_bits, served_part
from tests.contract.mechanisms import NORMALIZER, ON_CPU, SCORE
from tests.contract.served import by_served
from torch import Tensor

from qkv.functional import attention, attention_with_weights
from qkv.masks.patterns import causal, lengths
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.pytorch import TorchMultiheadAttention

BACKENDS = (*ON_CPU, "auto")
MASKS = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([0, 6])),
    "dense": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.6,
}
Loss = Callable[[Tensor, Tensor], Tensor]


def graph(call: Call, backend: str) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    leaves = {name: x.detach().clone().requires_grad_() for name, x in call.leaves.items()}
    return leaves, *call._call(attention_with_weights, leaves, backend)


def slopes(loss: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, materialize_grads=True))


def cotangent(x: Tensor) -> Tensor:
    return torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape)


SLOPING = [name for name in BACKENDS if name != "lookup"]
"""Backends whose weights have slopes."""


@by_part
@by_served(lambda mask: drawn(mask=MASKS[mask]), SLOPING, every=2, mask=MASKS)
def test_losses_on_output_and_weights_add_up(backend: str, mask: str, whole: bool) -> None:
    """In one pass, in two, in either order, and after a pass that ended at the weights."""
    ran = 0
    calls = [Call.draw(*mechanism, mask=MASKS[mask]) for mechanism in MECHANISMS]
    parts = (0, 1) if whole else (list(MASKS).index(mask), 3)
    for call in served_part(calls, lambda call: backend == "auto" or call.serves(backend), *parts):
        leaves, output, weights = graph(call, backend)
        if not weights.requires_grad:
            continue
        ran += 1
        of_output, of_weights = ((x * cotangent(x)).sum() for x in (output, weights))
        alone = slopes(of_weights, leaves)
        first = slopes(of_output, leaves)
        torch.autograd.grad(of_output, weights, retain_graph=True)
        assert all(map(same_bits, slopes(of_weights, leaves), alone)), call
        assert all(map(same_bits, slopes(of_output, leaves), first)), call
        both = slopes(of_output + of_weights, leaves)
        assert all(near(x, y + z) for x, y, z in zip(both, first, alone, strict=True)), call
    assert ran


def scaled_dot(dtype: torch.dtype) -> Request:
    return Call.draw(SCORE["scaled_dot"], NORMALIZER["softmax"], dtype=dtype).request()


@by_served(scaled_dot, BACKENDS, dtype=[torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_hook_on_the_weights_changes_what_reaches_the_query(backend: str, dtype: torch.dtype) -> None:
    """As in the equation: a rule of relevance that scales the gradient of the weights scales that of the query."""
    call = Call.draw(SCORE["scaled_dot"], NORMALIZER["softmax"], dtype=dtype)
    leaves, output, weights = graph(call, backend)
    plain = slopes((output * cotangent(output)).sum(), leaves)
    weights.register_hook(lambda gradient: 3 * gradient)
    query, key, value = slopes((output * cotangent(output)).sum(), leaves)
    assert near(query, 3 * plain[0], 40)
    assert near(key, 3 * plain[1], 40)
    assert same_bits(value, plain[2])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["softmax", "entmax", "sigmoid"])
def test_under_dropout_it_passes_through_the_weights_that_were_applied(name: str, mask: str) -> None:
    for score in ("scaled_dot", "gaussian", "additive"):
        call = Call.draw(SCORE[score], NORMALIZER[name], mask=MASKS[mask]).with_options(dropout=0.4)
        call = call.with_options(generator=torch.Generator().manual_seed(0))
        leaves, output, weights = graph(call, "auto")
        assert (weights == 0).any()
        assert near(output, weights @ leaves["value"])
        (slope,) = torch.autograd.grad(output.sum(), weights, retain_graph=True)
        of_values = leaves["value"].sum(-1)[..., None, :].expand_as(slope)
        assert near(slope[weights != 0], of_values[weights != 0])


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
def test_grouped_heads_return_weights_by_query_head(backend: str) -> None:
    query = torch.randn(2, 6, 5, 4, dtype=torch.float64, requires_grad=True)
    key, value = torch.randn(2, 2, 2, 7, 4, dtype=torch.float64).unbind()
    output, weights = attention_with_weights(query, key, value, enable_gqa=True, backend=backend)
    (slope,) = torch.autograd.grad(output.square().sum(), weights)
    assert near(slope, 2 * output @ value.repeat_interleave(3, 1).mT)


def test_the_output_can_be_changed_in_place() -> None:
    query, key, value = (x.requires_grad_() for x in torch.randn(3, 2, 5, 4).unbind())
    output, _ = attention_with_weights(query, key, value)
    output *= 2
    doubled = torch.autograd.grad(output.sum(), (query, key, value))
    plain = torch.autograd.grad(2 * attention(query, key, value).sum(), (query, key, value))
    assert all(map(same_bits, doubled, plain))


def test_infinite_gradients_cancel() -> None:
    """What the weights pass on is no difference of infinities."""
    query, key, value = (x.requires_grad_() for x in torch.randn(3, 2, 5, 4).unbind())
    output, weights = attention_with_weights(query, key, value)
    weights.register_hook(torch.clone)
    g = torch.zeros_like(output)
    g[0, 0, 0] = torch.inf
    (found,) = torch.autograd.grad(output, query, g)
    assert found[1].isfinite().all()
    assert found[0, 1:].isfinite().all()


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("mask", "compiled"),
    [
        pytest.param(mask, compiled, marks=pytest.mark.slow if compiled and mask not in ("none", "dense") else [])
        for mask in MASKS
        for compiled in (False, True)
    ],
)
def test_traced_and_transformed_calls_pass_through_the_weights_too(mask: str, compiled: bool) -> None:
    torch.compiler.reset()
    query, key, value = torch.randn(3, 2, 1, 5, 4, dtype=torch.float64).unbind()
    key, value = torch.randn(2, 2, 1, 7, 4, dtype=torch.float64).unbind()

    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output, weights = attention_with_weights(query, key, value, mask=MASKS[mask])
        return output.sin().sum() + weights.square().sum() + (output.sum((0, 1))[:, :1] * weights.sum((0, 1))).sum()

    given = [x.clone().requires_grad_() for x in (query, key, value)]
    want = torch.autograd.grad(loss(*given), given)
    if compiled:
        got = torch.autograd.grad(torch.compile(loss, backend="eager", fullgraph=True)(*given), given)
    else:
        got = torch.func.grad(loss, (0, 1, 2))(query, key, value)
    assert all(near(x, y) for x, y in zip(got, want, strict=True))


def test_forward_mode_and_batches_of_gradients() -> None:
    query, value = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)

    def loss(query: Tensor, value: Tensor, backend: str = "auto") -> Tensor:
        output, weights = attention_with_weights(query, query, value, backend=backend)
        return output.sin().sum() + weights.square().sum()

    each = torch.func.vmap(torch.func.grad(loss, (0, 1)))(query, value)
    alone = [torch.func.grad(loss, (0, 1))(*one) for one in zip(query, value, strict=True)]
    assert all(near(x, torch.stack(y)) for x, y in zip(each, zip(*alone, strict=True), strict=True))
    tangents = torch.randn_like(query[0]), torch.randn_like(value[0])
    _, slope = torch.func.jvp(loss, (query[0], value[0]), tangents)
    assert near(slope, sum((x * y).sum() for x, y in zip(alone[0], tangents, strict=True)))
    hessian = torch.func.hessian(loss)(query[0], value[0])
    of_eager = torch.autograd.functional.hessian(lambda *given: loss(*given, backend="reference"), (query[0], value[0]))
    assert near(hessian, of_eager[0][0])


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("score", ["scaled_dot", "gaussian", "additive"])
def test_a_layer_passes_through_the_weights_by_head(score: str, dropout: float) -> None:
    inner = MultiHeadAttention(8, 4, key_heads=2, score=score, dropout=dropout).double()
    x, memory = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(3, 7, 8, dtype=torch.float64)
    output, weights = TorchMultiheadAttention(inner)(x, memory, memory, average_attn_weights=False)
    assert (weights == 0).any() == (dropout > 0)
    (slope,) = torch.autograd.grad(output.sin().sum(), weights)
    leaf = weights.detach().requires_grad_()
    heads = leaf @ inner.project_memory(memory).value.repeat_interleave(2, 1)
    assert inner.output is not None
    literal = inner.output(heads.transpose(1, 2).flatten(-2))
    assert near(output, literal)
    assert near(slope, torch.autograd.grad(literal.sin().sum(), leaf)[0])
