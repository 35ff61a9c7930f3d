"""A mask as models of `transformers` pass it around: a bool tensor (B, 1, Q, K) that is made only when it is read."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from qkv.errors import UnsupportedError
from qkv.masks.base import Mask
from qkv.masks.lower import matrix

_ALIASES = ("aten::detach", "aten::alias", "aten::lift_fresh")


class LazyMask(Tensor):
    """A tensor without memory that stands for a mask; an operation on it first makes the table.

    Args:
        mask: the mask; None if it hides nothing.
        shape: (B, 1, Q, K).
        device: the device of the table.

    Attributes:
        mask: the mask.

    Example:
        >>> from qkv.masks.patterns import causal
        >>> lazy = LazyMask(causal(), (1, 1, 2, 2), torch.device("cpu"))
        >>> lazy.shape, lazy.logical_not().int().tolist()
        (torch.Size([1, 1, 2, 2]), [[[[0, 1], [0, 0]]]])
    """

    mask: Mask | None

    @staticmethod
    def __new__(cls, mask: Mask | None, shape: Sequence[int], device: torch.device) -> "LazyMask":
        """Create the tensor."""
        lazy = Tensor._make_wrapper_subclass(cls, torch.Size(shape), dtype=torch.bool, device=device)
        lazy.mask = mask
        return lazy

    def __init__(self, mask: Mask | None, shape: Sequence[int], device: torch.device) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyMask({self.mask}, shape={tuple(self.shape)})"

    def table(self) -> Tensor:
        """Return the mask as a bool tensor (B, 1, Q, K)."""
        batch, one, queries, keys = self.shape
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        return matrix(self.mask, queries, keys, (batch, one)).to(self.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation on the table; what only passes the mask on keeps it as it is."""
        first = args[0] if args else None
        name = func._schema.name
        if isinstance(first, LazyMask) and (
            name in _ALIASES or (name == "aten::slice" and _is_whole(first, *args[1:]))
        ):
            return LazyMask(first.mask, first.shape, first.device)
        if func._schema.is_mutable:
            hint = "Clone it first; the clone is a plain tensor."
            raise UnsupportedError("attention_mask", "a mask that stays as it is", name, hint)
        plain = tree_map_only(LazyMask, LazyMask.table, (args, dict(kwargs or {})))
        return func(*plain[0], **plain[1])


def _is_whole(mask: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> bool:
    return not start and step == 1 and (end is None or end >= mask.shape[dim])
