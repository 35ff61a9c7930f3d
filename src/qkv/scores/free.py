"""Scores without a fixed equation: uniform and user-defined."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from qkv.errors import ConfigError, DtypeError, ShapeError, value_named
from qkv.scores.base import Core, Operands, Score
from qkv.shapes import Shape, broadcast, broadcasts_to, show
from qkv.values.parameters import Owner
from qkv.values.plain_modules import is_watched
from qkv.values.pytree import value


@final
@value
@dataclass(frozen=True)
class Uniform(Score):
    """s = 1 for every pair: average pooling.

    Source: the special case α = 1/m of attention pooling (Zhang et al., "Dive into Deep Learning", section 11.1).

    Example:
        >>> import torch
        >>> Uniform()(torch.zeros(1, 3), torch.zeros(2, 3))
        tensor([[1., 1.]])
    """

    core: ClassVar[Core] = "dot"
    non_negative: ClassVar[bool] = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Return ones."""
        lead = broadcast(tuple(query.shape[:-2]), tuple(key.shape[:-2])) or ()
        return query.new_ones(*lead, query.shape[-2], key.shape[-2])

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """1·1, a dot product of width one."""
        return Operands(query.new_ones(*query.shape[:-1], 1), key.new_ones(*key.shape[:-1], 1))

    def check(self, query: Shape, key: Shape) -> None:
        """Accept any widths."""


@final
@dataclass(frozen=True, eq=False)
class Learned(Score):
    """s = module(q, k): a user-defined network on pairs, or any function of a tile of queries and keys.

    The function is called with queries (..., Q, D) and keys (..., K, E), all or a tile of them, and returns scores
    (..., Q, K), where s_ij depends only on q_i and k_j. Gradients reach the parameters that it closes over.

    Args:
        module: the function, for example a `torch.nn.Module`.

    Raises:
        ConfigError: the argument is not callable.

    Example:
        >>> import torch
        >>> manhattan = Learned(lambda query, key: -torch.cdist(query, key, p=1))
        >>> manhattan(torch.zeros(1, 2), torch.ones(3, 2))
        tensor([[-2., -2., -2.]])
    """

    core: ClassVar[Core] = "tile"
    module: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.module):
            from qkv.scores import __all__ as names

            value = value_named(self.module, "qkv.scores", names) or "Example: qkv.scores.ScaledDot()."
            hint = f"{value} A function of (query, key) that returns scores (..., Q, K) is one too."
            raise ConfigError("score", "a value of qkv.scores or a callable", repr(self.module), hint)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Call the function and check the shape and the element type of its result."""
        scores = self.module(query, key)
        lead = broadcast(tuple(query.shape[:-2]), tuple(key.shape[:-2])) or ()
        shape = (*lead, query.shape[-2], key.shape[-2])
        if not isinstance(scores, Tensor) or not broadcasts_to(tuple(scores.shape), shape):
            got = show(tuple(scores.shape)) if isinstance(scores, Tensor) else type(scores).__name__
            hint = "The function is called with queries (..., Q, D) and keys (..., K, E), or a tile of them."
            raise ShapeError("score", f"scores of shape {show(shape)}", got, hint)
        if not scores.is_floating_point():
            hint = "A function that returns True for what may be seen is a mask; other numbers need .to(query.dtype)."
            raise DtypeError("score", "scores of a floating-point dtype", f"{scores.dtype}", hint)
        return scores.expand(shape)

    def prepare(self, query: Tensor, key: Tensor) -> Operands:
        """The function itself is the core; it is called on tiles."""
        return Operands(query, key)

    def check(self, query: Shape, key: Shape) -> None:
        """Accept any widths; the function decides."""


def as_score(score: object) -> Score:
    """Accept a callable as a score.

    Example:
        >>> as_score(lambda query, key: query @ key.mT).core
        'tile'
    """
    if isinstance(score, Score):  # nearly always
        return score
    if isinstance(score, Owner):
        score = Learned(score) if is_watched(score) else score.value()  # type: ignore[arg-type]
    if isinstance(score, type):
        name = score.__name__
        raise ConfigError("score", "a value of qkv.scores or a callable", f"the class {name}", f"Use {name}().")
    return score if isinstance(score, Score) else Learned(score)  # type: ignore[arg-type]
