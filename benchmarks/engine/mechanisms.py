"""Each mechanism twice: as a good PyTorch user writes it with a full matrix, and as arguments of `qkv.attention`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

import qkv

BANDWIDTH = {"gaussian": 8.0, "boxcar": 11.0, "epanechnikov": 12.0}
"""Points with 64 normal coordinates are √128 ≈ 11.3 apart: about half of the pairs are within these widths."""


class Size(NamedTuple):
    """The shape of a problem: (*leading, queries or keys, width)."""

    leading: tuple[int, ...]
    queries: int
    keys: int
    width: int
    value_width: int

    def __str__(self) -> str:
        lead = " × ".join(map(str, self.leading))
        return f"{lead} × {self.queries:,} queries × {self.keys:,} keys, widths {self.width} and {self.value_width}"


Equation = Callable[..., Tensor]


def _none(_: Size) -> tuple[Tensor, ...]:
    return ()


@final
@dataclass(frozen=True)
class Mechanism:
    """One mechanism.

    Attributes:
        full: the equation, (query, key, value, *parameters) -> output; takes `dropout` if the mechanism has dropout.
        given: parameters -> arguments of `qkv.attention` besides query, key and value.
        parameters: size -> tensors; those that need a gradient are learned.
        hidden: numbers per pair in the full tensor.
        dropout: the fraction of weights dropped; results are compared without it.
    """

    full: Equation
    given: Callable[..., dict[str, Any]] = dict
    parameters: Callable[[Size], tuple[Tensor, ...]] = _none
    hidden: Callable[[Size], int] = lambda size: 1
    dropout: float = 0.0


def products(q: Tensor, k: Tensor) -> Tensor:
    scale: float = q.shape[-1] ** -0.5
    return q @ k.mT * scale


def scaled_dot(q: Tensor, k: Tensor, v: Tensor, *, dropout: float = 0.0) -> Tensor:
    weights = torch.softmax(products(q, k), -1)
    return (F.dropout(weights, dropout) if dropout else weights) @ v


def causal(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    return torch.softmax(products(q, k).masked_fill(hidden, -torch.inf), -1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(products(q, k) + bias, -1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    distance = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs()
    return torch.softmax(products(q, k) - 0.1 * distance, -1) @ v


def softcapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(10 * torch.tanh(products(q, k) / 10), -1) @ v


def sink(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    scores = products(q, k)
    column = sink[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ v


def cosine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(8 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT, -1) @ v


def bilinear(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    return torch.softmax(q @ weight @ k.mT * weight.shape[-1] ** -0.5, -1) @ v


def additive(q: Tensor, k: Tensor, v: Tensor, vector: Tensor, query_weight: Tensor, key_weight: Tensor) -> Tensor:
    return projected(q @ query_weight.mT, k @ key_weight.mT, v, vector)


def projected(a: Tensor, b: Tensor, v: Tensor, vector: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(a[..., :, None, :] + b[..., None, :, :]) @ vector, -1) @ v


def _sums(q: Tensor, k: Tensor, query_vector: Tensor, key_vector: Tensor) -> Tensor:
    return (q @ query_vector)[..., :, None] + (k @ key_vector)[..., None, :]


def concat(q: Tensor, k: Tensor, v: Tensor, *vectors: Tensor) -> Tensor:
    return torch.softmax(torch.relu(_sums(q, k, *vectors)), -1) @ v


def graph(q: Tensor, k: Tensor, v: Tensor, *vectors: Tensor) -> Tensor:
    return torch.softmax(F.leaky_relu(_sums(q, k, *vectors), 0.2), -1) @ v


def concat_mean(q: Tensor, k: Tensor, v: Tensor, *vectors: Tensor) -> Tensor:
    return torch.relu(_sums(q, k, *vectors)) @ v / k.shape[-2]


def squared_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.cdist(q, k).square() / (-2 * BANDWIDTH["gaussian"] ** 2), -1) @ v


def _smooth(weights: Tensor, v: Tensor) -> Tensor:
    # A query far from all keys has no neighbor: 0, not NaN.
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def gaussian(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _smooth(torch.exp(torch.cdist(q, k).square() / (-2 * BANDWIDTH["gaussian"] ** 2)), v)


def boxcar(q: Tensor, k: Tensor, v: Tensor, *, bandwidth: float = BANDWIDTH["boxcar"]) -> Tensor:
    return _smooth((torch.cdist(q, k) <= bandwidth).to(v.dtype), v)


def epanechnikov(q: Tensor, k: Tensor, v: Tensor, *, bandwidth: float = BANDWIDTH["epanechnikov"]) -> Tensor:
    return _smooth(torch.relu(1 - (torch.cdist(q, k) / bandwidth).square()), v)


def uniform(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = q.new_full((*q.shape[:-1], k.shape[-2]), 1 / k.shape[-2])
    return weights @ v


def identity(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ k.mT @ v


def mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ k.mT / k.shape[-2] @ v


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(products(q, k) - math.log(k.shape[-2])) @ v


def hard(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return v.take_along_dim(products(q, k).argmax(-1, keepdim=True), -2)


def sparsemax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The full matrix with the `entmax` package."""
    from entmax import sparsemax as project

    weights: Tensor = project(products(q, k), dim=-1)
    return weights @ v


def entmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The full matrix with the `entmax` package."""
    from entmax import entmax15

    weights: Tensor = entmax15(products(q, k), dim=-1)
    return weights @ v


def _hidden_keys(size: Size) -> tuple[Tensor, ...]:
    return (torch.ones(size.queries, size.keys, dtype=torch.bool).triu(1),)


def _bias(size: Size) -> tuple[Tensor, ...]:
    return (torch.randn(*size.leading[1:], size.queries, size.keys, requires_grad=True),)


def _sink(size: Size) -> tuple[Tensor, ...]:
    return (torch.randn(size.leading[-1], requires_grad=True),)


def _matrix(size: Size) -> tuple[Tensor, ...]:
    return ((torch.eye(size.width) + torch.randn(size.width, size.width) / 16).requires_grad_(),)


def _hidden_layer(size: Size) -> tuple[Tensor, ...]:
    scale = size.width**-0.5
    return tuple(
        (scale * torch.randn(shape)).requires_grad_()
        for shape in ((size.width,), (size.width, size.width), (size.width, size.width))
    )


def _vector(size: Size) -> tuple[Tensor, ...]:
    return ((size.width**-0.5 * torch.randn(size.width)).requires_grad_(),)


def _two_vectors(size: Size) -> tuple[Tensor, ...]:
    return tuple((size.width**-0.5 * torch.randn(size.width)).requires_grad_() for _ in range(2))


def _flat_boxcar(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return boxcar(q, k, v, bandwidth=0.5)


def _flat_epanechnikov(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return epanechnikov(q, k, v, bandwidth=0.5)


_s, _n = qkv.scores, qkv.normalizers

MECHANISMS: dict[str, Mechanism] = {
    "scaled_dot": Mechanism(scaled_dot),
    "causal": Mechanism(causal, lambda hidden: {"mask": qkv.masks.causal()}, _hidden_keys),
    "dropout": Mechanism(scaled_dot, dropout=0.1),
    "learned_bias": Mechanism(biased, lambda bias: {"bias": bias}, _bias),
    "alibi": Mechanism(alibi, lambda: {"bias": qkv.biases.alibi(0.1)}),
    "softcap": Mechanism(softcapped, lambda: {"score": _s.ScaledDot(softcap=10.0)}),
    "sink": Mechanism(sink, lambda sink: {"normalizer": _n.Softmax(sink)}, _sink),
    "cosine": Mechanism(cosine, lambda: {"score": _s.Cosine(8.0)}),
    "bilinear": Mechanism(bilinear, lambda m: {"score": _s.Bilinear(m, m.shape[-1] ** -0.5)}, _matrix),
    "additive": Mechanism(
        additive, lambda *given: {"score": _s.Additive(*given)}, _hidden_layer, hidden=lambda size: size.width
    ),
    "projected": Mechanism(
        projected, lambda vector: {"score": _s.Additive(vector)}, _vector, hidden=lambda size: size.width
    ),
    "concat": Mechanism(concat, lambda *given: {"score": _s.Concat(*given)}, _two_vectors),
    "concat_leaky": Mechanism(
        graph, lambda of_query, of_key: {"score": _s.Concat(of_query, of_key, "leaky_relu")}, _two_vectors
    ),
    "concat_mean": Mechanism(
        concat_mean, lambda *given: {"score": _s.Concat(*given), "normalizer": _n.Mean()}, _two_vectors
    ),
    "squared_distance": Mechanism(squared_distance, lambda: {"score": _s.SquaredDistance(BANDWIDTH["gaussian"])}),
    "gaussian": Mechanism(gaussian, lambda: {"score": _s.Gaussian(BANDWIDTH["gaussian"])}),
    "boxcar": Mechanism(boxcar, lambda: {"score": _s.Boxcar(BANDWIDTH["boxcar"])}),
    "epanechnikov": Mechanism(epanechnikov, lambda: {"score": _s.Epanechnikov(BANDWIDTH["epanechnikov"])}),
    "boxcar_line": Mechanism(_flat_boxcar, lambda: {"score": _s.Boxcar(0.5)}),
    "epanechnikov_line": Mechanism(_flat_epanechnikov, lambda: {"score": _s.Epanechnikov(0.5)}),
    "uniform": Mechanism(uniform, lambda: {"score": _s.Uniform()}),
    "identity": Mechanism(identity, lambda: {"score": _s.Dot(), "normalizer": _n.Identity()}),
    "mean": Mechanism(mean, lambda: {"score": _s.Dot(), "normalizer": _n.Mean()}),
    "sigmoid": Mechanism(sigmoid, lambda: {"normalizer": _n.Sigmoid()}),
    "hard": Mechanism(hard, lambda: {"normalizer": _n.Hard()}),
    "sparsemax": Mechanism(sparsemax, lambda: {"normalizer": _n.Sparsemax()}),
    "entmax": Mechanism(entmax, lambda: {"normalizer": _n.Entmax()}),
}
