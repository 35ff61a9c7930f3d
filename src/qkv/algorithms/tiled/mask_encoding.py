"""Encode masks as arguments of a registered operator, which are tensors, numbers and text.

A composition of masks is written in postfix order, operands before the operation that combines them: `causal(2) &
~dense(t)` is `"number causal:start tensor dense not and"`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor

from qkv.engine.mechanism import full_rank
from qkv.masks.base import Both, Dense, Either, Inverse, Mask
from qkv.masks.patterns import MASKS, clamped

_COMBINED: dict[type[Mask], str] = {Both: "and", Either: "or", Inverse: "not"}
_NAMES: dict[type[Mask], str] = {cls: _COMBINED.get(cls) or cls.__name__.lower() for cls in MASKS}
_CLASSES = {name: cls for cls, name in _NAMES.items()}
_FIELDS: dict[type[Mask], tuple[str, ...]] = {cls: tuple(part.name for part in fields(cls)) for cls in MASKS}
"""Not read from the class when a mask is encoded, which PyTorch traces."""


def encode(mask: Mask, rank: int) -> tuple[str, list[Tensor], list[int]] | None:
    """Encode a mask as text, tensors and numbers; return None if it contains a user-defined mask.

    Args:
        mask: any composition.
        rank: of the leading shape, to which dense masks are reshaped.

    Example:
        >>> from qkv.masks.patterns import causal, lengths
        >>> encode(causal(2) | lengths(3), rank=1)
        ('number causal:start number none lengths or', [], [2, 3])
    """
    tensors: list[Tensor] = []
    numbers: list[int] = []
    words = _words(mask, rank, tensors, numbers)
    return None if words is None else (" ".join(words), tensors, numbers)


def _words(mask: Mask, rank: int, tensors: list[Tensor], numbers: list[int]) -> list[str] | None:
    name = _NAMES.get(type(mask))
    if name is None:
        return None
    words = []
    for part in [getattr(mask, field) for field in _FIELDS[type(mask)]]:
        if isinstance(part, Mask):
            inner = _words(part, rank, tensors, numbers)
            if inner is None:
                return None
            words += inner
        elif part is None:
            words.append("none")
        elif isinstance(part, Tensor):
            words.append("tensor")
            tensors.append(full_rank(part, rank + 2) if isinstance(mask, Dense) else part)
        elif isinstance(part, str):
            name = f"{name}:{part}"
        else:
            words.append("number")
            # An operator's numbers are int64, whose limits are far beyond any position.
            numbers.append(clamped(part))
    return [*words, name]


def decode(code: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> Mask:
    """Return the mask that `encode` wrote.

    Example:
        >>> decode("number causal:start number none lengths or", [], [2, 3])
        Either(left=Causal(offset=2, align='start'), right=Lengths(keys=3, queries=None))
    """
    stack: list[Any] = []
    tensor, number = iter(tensors), iter(numbers)
    for word in code.split(" "):
        if word in ("none", "tensor", "number"):
            stack.append(None if word == "none" else next(tensor if word == "tensor" else number))
            continue
        name, *texts = word.split(":")
        cls: Any = _CLASSES[name]
        start = len(stack) + len(texts) - len(_FIELDS[cls])
        stack[start:] = [cls(*stack[start:], *texts)]
    return stack.pop()  # type: ignore[no-any-return]
