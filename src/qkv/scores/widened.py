"""Equations in at least float32: half precision is widened first, and autocast must not narrow it again."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from qkv.scores.base import Operands, Score


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
    with as_it_is(query):
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
    with as_it_is(query):
        return score.prepare(wide(query), wide(key))


def as_it_is(x: Tensor) -> AbstractContextManager[None]:
    """Keep autocast from narrowing the widened tensors."""
    kind = x.device.type
    narrows = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if narrows else _NOTHING


_NOTHING = nullcontext()
"""It has no state: one serves all calls."""
