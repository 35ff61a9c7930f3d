"""Grouped heads equal repeated heads, with every mechanism, mask, bias and per-head parameter."""

from collections.abc import Iterator
from typing import Any

import torch
from tests.contract.calls import Request, by_part, near, request
from tests.contract.served import by_served
from torch import Tensor

from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, documents, lengths, span, window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.base import Score
from qkv.scores.free import Learned, Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat

B, H, G, Q, K, D, V, A = 2, 6, 3, 5, 7, 4, 4, 3


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def each(x: Tensor, dim: int = 0) -> Tensor:
    """Repeat each key head for every query head of its group."""
    return x.repeat_interleave(H // G, dim)


def mechanisms() -> dict[str, tuple[Score, Score, Normalizer, Normalizer]]:
    """Score and normalizer for grouped heads, and the same for repeated heads."""
    torch.manual_seed(1)
    scale, width, alpha = draw(H), draw(H).exp(), 1.3 + torch.rand(H, dtype=torch.float64) / 2
    matrix, hidden, left, right = draw(H, D, D), draw(H, A), draw(H, A, D), draw(G, A, D)
    a, b = draw(H, D), draw(G, D)
    same: dict[str, tuple[Score, Normalizer]] = {
        "dot": (Dot(), Softmax()),
        "scaled_dot": (ScaledDot(), Softmax(sink=draw(H))),
        "scale": (ScaledDot(scale), Softmax()),
        "shared scale": (ScaledDot(draw(1)), Softmax()),
        "softcap": (ScaledDot(softcap=2.0), Softmax()),
        "cosine": (Cosine(scale), Sigmoid(draw(H))),
        "bilinear": (Bilinear(matrix), Softmax()),
        "shared bilinear": (Bilinear(draw(D, D), scale), Sparsemax()),
        "distance": (SquaredDistance(width), Softmax()),
        "gaussian": (Gaussian(width), Sum()),
        "boxcar": (Boxcar(width + 1), Sum()),
        "epanechnikov": (Epanechnikov(width + 2), Sum()),
        "uniform": (Uniform(), Sum()),
        "entmax": (Dot(), Entmax(alpha)),
        "mean": (Dot(), Mean()),
        "identity": (Dot(), Identity()),
        "hard": (Dot(), Hard()),
        "learned": (Learned(lambda query, key: torch.cdist(query, key).neg()), Softmax()),
        "shared additive": (Additive(draw(A), draw(A, D), draw(A, D)), Softmax()),
    }
    return {name: (score, score, normalizer, normalizer) for name, (score, normalizer) in same.items()} | {
        "additive": (Additive(hidden, left, right), Additive(hidden, left, each(right)), Softmax(), Softmax()),
        "concat": (Concat(a, b), Concat(a, each(b)), Mean(), Mean()),
        "leaky": (Concat(a, b, "leaky_relu"), Concat(a, each(b), "leaky_relu"), Softmax(), Softmax()),
    }


MASKS: dict[str, Mask | Tensor | None] = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([4, 7])),
    "lengths per head": lengths(torch.arange(2 * H).view(2, H) % 8),
    "span": span(torch.tensor([2, 0]), torch.tensor([7, 4])),
    "window": window(1, 2),
    "documents": documents(torch.arange(Q) // 2, torch.arange(K) // 2),
    "dense": torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(0)) < 0.6,
    "dense for all heads": torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(0)) < 0.6,
    "predicate": window(1, 1) | lengths(torch.arange(2 * H).view(2, H) % 8),
}


def inputs() -> list[Tensor]:
    torch.manual_seed(2)
    return [x.requires_grad_() for x in (draw(B, H, Q, D), draw(B, G, K, D), draw(B, G, K, V))]


def grouped(**options: Any) -> Request:
    return request(*(x.detach() for x in inputs()), **options, enable_gqa=True)


def each_mechanism(mask: str) -> Iterator[Request]:
    for score, _, normalizer, _ in mechanisms().values():
        yield request(*inputs(), score=score, normalizer=normalizer, mask=MASKS[mask], enable_gqa=True)


@by_part
@by_served(each_mechanism, every=2, mask=MASKS)
def test_grouped_heads_are_repeated_heads(backend: str, mask: str, whole: bool) -> None:
    """In the fast suite every other mechanism, and the others with the next mask."""
    for turn, (name, (score, repeated, normalizer, same)) in enumerate(mechanisms().items()):
        if not whole and turn % 2 != list(MASKS).index(mask) % 2:
            continue
        query, key, value = inputs()
        call = request(query, key, value, score=score, normalizer=normalizer, mask=MASKS[mask], enable_gqa=True)
        if not call.is_served(backend):
            continue
        output, weights = attention_with_weights(query, key, value, **call.options, backend=backend)
        expected, theirs = attention_with_weights(
            query, each(key, 1), each(value, 1), score=repeated, normalizer=same, mask=MASKS[mask], backend="reference"
        )
        assert near(output, expected), name
        assert near(weights, theirs), name
        cotangent = draw(*output.shape)
        ours = torch.autograd.grad(output, [query, key, value], cotangent, materialize_grads=True)
        full = torch.autograd.grad(expected, [query, key, value], cotangent, materialize_grads=True)
        assert all(near(one, other, 2000) for one, other in zip(ours, full, strict=True)), name


@by_served(
    lambda shape: grouped(bias=draw(*shape)), shape=[(H, Q, K), (B, H, 1, 1), (Q, K), (B, 1, Q, K), (1, 1, 1, K)]
)
def test_grouped_heads_take_a_bias(backend: str, shape: tuple[int, ...]) -> None:
    query, key, value = (x.detach() for x in inputs())
    bias = draw(*shape)
    output = attention(query, key, value, bias=bias, enable_gqa=True, backend=backend)
    assert near(output, attention(query, each(key, 1), each(value, 1), bias=bias, backend="reference"))


@by_served(grouped)
def test_grouped_heads_have_a_state(backend: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    state = attention_with_state(query, key, value, enable_gqa=True, backend=backend)[1]
    expected = attention_with_state(query, each(key, 1), each(value, 1), backend="reference")[1]
    assert state.lse.shape == (B, H, Q)
    assert near(state.lse, expected.lse)


@by_served(lambda: grouped(dropout=0.3))
def test_grouped_heads_drop_what_repeated_heads_drop(backend: str) -> None:
    query, key, value = (x.detach() for x in inputs())
    drawn = [torch.Generator().manual_seed(5) for _ in range(2)]
    output = attention(query, key, value, dropout=0.3, generator=drawn[0], enable_gqa=True, backend=backend)
    repeated = attention(query, each(key, 1), each(value, 1), dropout=0.3, generator=drawn[1], backend="reference")
    assert near(output, repeated)


def test_one_group_is_multi_query_attention() -> None:
    query, key, value = draw(B, H, Q, D), draw(B, 1, K, D), draw(B, 1, K, V)
    assert near(attention(query, key, value, enable_gqa=True), attention(query, key, value))
