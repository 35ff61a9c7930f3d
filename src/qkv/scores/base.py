"""What a score is: an equation on pairs, and its fast form as a core on prepared operands.

A score says how well a key matches a query. Every score is

    s_ij = pointwise(scale · core(a_i, b_j))        with (a, b) = prepare(query, key),

where `prepare` is plain PyTorch of linear size (projections, norms) and `core` is one of five functions on pairs.
Backends know cores, never scores.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from qkv.errors import DtypeError, ShapeError
from qkv.scores.pointwise import Linear, Pointwise
from qkv.shapes import Shape, broadcast, show
from qkv.values.checked import explained_by
from qkv.values.parameters import Parameter, expect_floats

Core = Literal["dot", "tanh_sum", "relu_sum", "distance", "tile"]


class Operands(NamedTuple):
    """The operands of a core; F is their common width.

    Attributes:
        query: a, (..., Q, F).
        key: b, (..., K, F).
        scale: multiplies the core's result; a number, or a tensor (..., 1, 1).
        vector: the hidden weights of `tanh_sum`, (..., F).
    """

    query: Tensor
    key: Tensor
    scale: float | Tensor = 1.0
    vector: Tensor | None = None

    def with_number(self) -> tuple[Tensor, Tensor, float]:
        """Return query, key and a scale that is a number; a scale that is a tensor is multiplied into the query."""
        if isinstance(self.scale, Tensor):
            # Half precision would round query × scale, which the core does not.
            wide = torch.promote_types(self.query.dtype, torch.float32)
            return self.query.to(wide) * self.scale.to(wide), self.key.to(wide), 1.0
        return self.query, self.key, self.scale


class Maps(NamedTuple):
    """Matrices that map queries and keys to the operands of a core, (..., N, D) → (..., N, F); None for no change.

    Attributes:
        query: (..., F, D), or (..., D) for F = 1.
        key: (..., F, E), or (..., E).
        scale, vector: as in `Operands`.
        unit: whether queries and keys are divided by their norms instead, by `qkv.scores.products.unit`.
    """

    query: Tensor | None
    key: Tensor | None
    scale: float | Tensor = 1.0
    vector: Tensor | None = None
    unit: bool = False


class Score(ABC):
    """How well a key matches a query: a small frozen value.

    Attributes:
        core: the function of a pair that backends compute.
        non_negative: whether it is a kernel: no score is ever below 0, and `Sum` is its normalizer by default.
        piecewise_constant: whether it changes by jumps only, so that query, key and parameters get zero gradient.
        parameters: the fields that can be tensors; per-head ones align from the right.
    """

    core: ClassVar[Core]
    non_negative: ClassVar[bool] = False
    piecewise_constant: ClassVar[bool] = False
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            setattr(cls, "__call__", explained_by(_expect_pair)(vars(cls)["__call__"]))  # noqa: B010 - a method

    @abstractmethod
    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the scores literally by the equation.

        Args:
            query: (..., Q, D).
            key: (..., K, E).

        Returns:
            The scores s, (..., Q, K).
        """

    @abstractmethod
    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """Compute the core's operands from query and key, in linear time and memory.

        Computed operands are at least float32: half precision would round them once more than the equation does.
        """

    @property
    def maps(self) -> Maps | None:
        """What `prepare` does, where it only multiplies by matrices or divides by norms; None for anything else."""
        return None

    @property
    def pointwise(self) -> Pointwise:
        """The elementwise function after the core."""
        return Linear()

    @property
    def summable(self) -> bool:
        """Whether `Sum` may normalize it, because no score is ever below 0."""
        return self.non_negative

    def check(self, query: Shape, key: Shape) -> None:
        """Raise ShapeError if the widths do not fit this score."""
        same_width(query, key)


def _expect_pair(score: Score, query: Tensor, key: Tensor) -> None:
    """Check the query and the key that a score is called with."""
    expect_floats("query", query)
    expect_floats("key", key)
    for name in ("dtype", "device"):
        if getattr(query, name) != getattr(key, name):
            expected = f"{name} {getattr(query, name)}, that of query"
            raise DtypeError("key", expected, f"{getattr(key, name)}", f"Use key.to(query.{name}).")
    score.check(tuple(query.shape), tuple(key.shape))
    if broadcast(tuple(query.shape[:-2]), tuple(key.shape[:-2])) is None:
        got = f"{show(tuple(query.shape))} and {show(tuple(key.shape))}"
        raise ShapeError("key", "leading dimensions that broadcast with query", got, "Expand the smaller one.")


def same_width(query: Shape, key: Shape) -> None:
    """Raise ShapeError if query and key have different widths."""
    if query[-1] != key[-1]:
        raise ShapeError(
            "key",
            f"width {query[-1]}, that of query",
            f"width {key[-1]} in shape {show(key)}",
            "For different widths use qkv.scores.Bilinear or qkv.scores.Additive.",
        )


def expect_width(argument: str, expected: int, got: int, of: str) -> None:
    """Raise ShapeError if a width is not the expected one."""
    if expected != got:
        raise ShapeError(argument, f"width {expected}, that of {of}", f"width {got}", "Make the two widths equal.")


def equation(score: Score, query: Tensor, key: Tensor) -> Tensor:
    """Compute a built-in score in at least float32, (..., Q, K); a user-defined function gets its inputs unchanged.

    Example:
        >>> from qkv.scores.products import Dot
        >>> equation(Dot(), torch.ones(1, 2).half(), torch.ones(3, 2).half()).dtype
        torch.float32
    """
    if score.core == "tile":
        return wide(score(query, key))
    query, key = wide(query), wide(key)
    with without_autocast(query):
        return score(query, key)


HALVES = frozenset({torch.float16, torch.bfloat16})


def wide(x: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return x.float() if x.dtype in HALVES else x


def prepared_wide(score: Score, query: Tensor, key: Tensor) -> Operands:
    """Compute operands in float32: half precision would round each of them before the core.

    Example:
        >>> from qkv.scores.products import Cosine
        >>> prepared_wide(Cosine(), torch.ones(1, 2).half(), torch.ones(3, 2).half()).query.dtype
        torch.float32
    """
    with without_autocast(query):
        return score.prepare(wide(query), wide(key))


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Return a context in which autocast does not narrow tensors on the device of x."""
    kind = x.device.type
    narrows = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if narrows else _NULL_CONTEXT


_NULL_CONTEXT = nullcontext()
"""It has no state: one serves all calls."""
