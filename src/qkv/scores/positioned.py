"""A score with a bias computed from positions, which are carried along with the vectors so that any tile has them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from qkv.errors import ShapeError, error_message
from qkv.scores.base import Score
from qkv.scores.widened import equation
from qkv.shapes import broadcast, show
from qkv.values.positions import DIGITS, read, spell


def with_positions(x: Tensor) -> Tensor:
    """Append each row's position to the row, (..., N, D) to (..., N, D + 4).

    Example:
        >>> with_positions(torch.zeros(2, 1))
        tensor([[0., 0., 0., 0., 0.],
                [0., 1., 0., 0., 0.]])
    """
    return torch.cat([x, spell(x)], -1)


@final
@dataclass(frozen=True, eq=False)
class Positioned:
    """score(q, k) + bias(i, j), for vectors that carry their positions, as a function of tiles.

    Args:
        score: applied to the vectors without their positions.
        bias: function of positions (Q, 1) and (K,).
        fixed: whether the bias needs no gradient.
    """

    score: Score
    bias: Callable[[Tensor, Tensor], Tensor]
    fixed: bool = False

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the scores of a tile, (..., Q, K)."""
        s_QK = equation(self.score, query[..., :-DIGITS], key[..., :-DIGITS])
        if s_QK.numel() == 0:
            return s_QK
        bias_QK = self.bias(_positions(query)[:, None], _positions(key))
        if broadcast(tuple(bias_QK.shape), tuple(s_QK.shape)) != tuple(s_QK.shape):
            hint = "tile(rows, columns) is called with positions (Q, 1) and (K,), sometimes only some of them."
            expected = f"a shape that broadcasts to (..., Q, K) = {show(tuple(s_QK.shape))}"
            raise ShapeError(error_message("bias", expected, f"shape {show(tuple(bias_QK.shape))}", hint))
        return s_QK + bias_QK.to(s_QK.dtype)


def _positions(x: Tensor) -> Tensor:
    """Read the positions, the same for every leading index except where a masked row was zeroed: hence the maximum."""
    digits = x[..., -DIGITS:].detach()
    return read(digits.flatten(0, -3).amax(0) if x.ndim > 2 else digits)


def repeat_key_heads(score: Score, repeats: int) -> Score:
    """Return the same score for keys with repeated heads, as grouped-query attention needs."""
    changes = {}
    for name, own, of_key in score.parameters:
        parameter = getattr(score, name)
        if of_key and isinstance(parameter, Tensor) and parameter.ndim > own and parameter.shape[-own - 1] > 1:
            changes[name] = parameter.repeat_interleave(repeats, -own - 1)
    return replace(score, **changes) if changes else score  # type: ignore[type-var]
