"""Scores that are functions of a sum: additive (Bahdanau) and concatenation (Non-local, GAT)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from qkv.errors import expect_name
from qkv.scores.base import HALVES, Core, Maps, Operands, Score, expect_width, prepared_wide
from qkv.scores.pointwise import Leaky, Pointwise
from qkv.scores.products import project
from qkv.shapes import Shape
from qkv.values.parameters import Parameter
from qkv.values.pytree import value

_ACTIVATIONS: dict[str, Pointwise] = {"relu": Leaky(0.0), "leaky_relu": Leaky(0.2)}


@final
@value
@dataclass(frozen=True, eq=False)
class Additive(Score):
    """s = vᵀ tanh(W_q q + W_k k), the additive score: Bahdanau, "MLP", Luong's "concat".

    One matrix W applied to the concatenation [q; k] equals the two side by side: W = [W_q W_k].

    Args:
        vector: v, of shape (A,), or (H, A) per head.
        query_weight: W_q, (A, D) or (H, A, D); None if the queries are already projected (then D = A).
        key_weight: W_k, (A, E) or (G, A, E); None if the keys are already projected, which a decoder does once
            per sentence (then E = A).

    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate",
        appendix A.1.2.

    Example:
        >>> score = Additive(torch.ones(4), torch.ones(4, 2), torch.ones(4, 3))
        >>> score(torch.zeros(5, 2), torch.ones(7, 3)).shape
        torch.Size([5, 7])
    """

    core: ClassVar[Core] = "tanh_sum"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("vector", 1),
        Parameter("query_weight", 2),
        Parameter("key_weight", 2, of_key=True),
    )
    vector: Tensor
    query_weight: Tensor | None = None
    key_weight: Tensor | None = None

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """vᵀ tanh(W_q q + W_k k)."""
        a, b = self._projected(query, key)
        hidden = torch.tanh(a[..., :, None, :] + b[..., None, :, :])
        vector = self.vector.to(hidden.dtype)
        # As a matrix product, the gradient of the vector would be one sum over all pairs, term after term, with ten
        # times the error.
        return (hidden * (vector if vector.ndim == 1 else vector[..., None, None, :])).sum(-1)

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Project both sides, once per row."""
        if query.dtype in HALVES:
            return prepared_wide(self, query, key)
        a, b = self._projected(query, key)
        return Operands(a, b, 1.0, self.vector.to(a.dtype))

    @property
    def maps(self) -> Maps:
        """The projections of both sides."""
        return Maps(self.query_weight, self.key_weight, 1.0, self.vector)

    def check(self, query: Shape, key: Shape) -> None:
        """Check that all widths match A."""
        hidden = self.vector.shape[-1]
        for side, weight, shape in (("query", self.query_weight, query), ("key", self.key_weight, key)):
            if weight is None:
                expect_width(f"{side} (already projected)", hidden, shape[-1], "Additive(vector)")
            else:
                expect_width(f"Additive({side}_weight)", hidden, weight.shape[-2], "Additive(vector)")
                expect_width(f"Additive({side}_weight)", shape[-1], weight.shape[-1], side)

    def _projected(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        a = query if self.query_weight is None else project(query, self.query_weight)
        b = key if self.key_weight is None else project(key, self.key_weight)
        return a, b


@final
@value
@dataclass(frozen=True, eq=False)
class Concat(Score):
    """s = relu(w_q·q + w_k·k), the concatenation score; with `"leaky_relu"` that of graph attention (GAT).

    One vector w applied to the concatenation [q; k] equals the two side by side.

    Args:
        query_vector: w_q, of shape (D,), or (H, D) per head.
        key_vector: w_k, of shape (E,), or (G, E) per head.
        activation: `"relu"`, or `"leaky_relu"` with slope 0.2 below zero, as in GAT.

    Raises:
        ConfigError: the activation is unknown.

    Source: Wang et al. 2018, "Non-local Neural Networks", eq. 5 (the concatenation form); Veličković et al. 2018,
        "Graph Attention Networks", eq. 3.

    Example:
        >>> Concat(torch.tensor([1.0]), torch.tensor([1.0]))(torch.tensor([[1.0]]), torch.tensor([[2.0], [-5.0]]))
        tensor([[3., 0.]])
    """

    core: ClassVar[Core] = "relu_sum"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("query_vector", 1),
        Parameter("key_vector", 1, of_key=True),
    )
    query_vector: Tensor
    key_vector: Tensor
    activation: Literal["relu", "leaky_relu"] = "relu"

    def __post_init__(self) -> None:
        expect_name("Concat(activation)", self.activation, _ACTIVATIONS)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """relu(w_q·q + w_k·k)."""
        a, b = self._projected(query, key)
        return self.pointwise(a + b.mT)

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Compute one number per query and one per key."""
        if query.dtype in HALVES:
            return prepared_wide(self, query, key)
        return Operands(*self._projected(query, key))

    @property
    def maps(self) -> Maps:
        """The two vectors."""
        return Maps(self.query_vector, self.key_vector)

    @property
    def summable(self) -> bool:
        """True if the activation is relu, whose scores are never negative."""
        return self.activation == "relu"

    @property
    def pointwise(self) -> Pointwise:
        """The activation."""
        return _ACTIVATIONS[self.activation]

    def check(self, query: Shape, key: Shape) -> None:
        """Check that each vector has the width of its side."""
        expect_width("Concat(query_vector)", query[-1], self.query_vector.shape[-1], "query")
        expect_width("Concat(key_vector)", key[-1], self.key_vector.shape[-1], "key")

    def _projected(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        columns = self.query_vector.unsqueeze(-1), self.key_vector.unsqueeze(-1)
        return query @ columns[0].to(query.dtype), key @ columns[1].to(key.dtype)
