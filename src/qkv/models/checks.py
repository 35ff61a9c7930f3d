"""Checks of what models are given: tokens and lengths, and where features of a source begin."""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ShapeError, UnsupportedError
from qkv.values.rows import real_positions
from qkv.values.sharded import is_sharded

Part = TypeVar("Part", bound=nn.Module)


def clean_source(source: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Check a batch of sources, and zero the entries at or after each row's length.

    Args:
        source: token ids (B, S), int64.
        lengths: (B,), int64, from 0 to S.
        size: vocabulary size.

    Returns:
        The ids, 0 in the padding, at least one column; and which are real, (B, S) bool.

    Raises:
        ShapeError: a shape or dtype is wrong, a length exceeds S, or an id is not in the vocabulary.

    Example:
        >>> clean_source(torch.tensor([[5, 9]]), torch.tensor([1]), size=8)
        (tensor([[5, 0]]), tensor([[ True, False]]))
    """
    _expect("source", source, 2, "(B, S)")
    _expect("lengths", lengths, 1, "(B,)")
    if lengths.shape[0] != source.shape[0]:
        hint = "Give one length for each row."
        raise ShapeError("lengths", f"{source.shape[0]} numbers", f"{lengths.shape[0]}", hint)
    if source.shape[1] == 0:
        source = F.pad(source, (0, 1))
    real = real_positions(lengths, source.shape[1])
    ids = torch.where(real, source, 0)
    _within("lengths", lengths, source.shape[1] + 1, "A length counts the tokens of its row.")
    _within("source", ids, size, "Use the tokenizer that the model was trained with.")
    return ids, real


def padding_of(lengths: Tensor, longest: int) -> Tensor | None:
    """Return the lengths if any row is padded, else None: attention without a mask is cheaper.

    Args:
        lengths: (B,).
        longest: S, the positions of each row.

    Returns:
        `lengths`, or None; on an accelerator always `lengths`, because checking would synchronize.

    Example:
        >>> padding_of(torch.tensor([2, 2]), 2) is None
        True
    """
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and bool((lengths >= longest).all()):
        return None
    return lengths


class Sides(NamedTuple):
    """A batch of sources whose features, symbols after a mark, are a second source with an attention of its own.

    Attributes:
        lengths: symbols before the mark, (B,).
        features: which positions hold features, bool (B, S).
    """

    lengths: Tensor
    features: Tensor


def split_source(ids_BS: Tensor, lengths: Tensor, mark: int) -> Sides:
    """Split sources at the last mark of each row; a row without one has no features.

    Args:
        ids_BS: (B, S), int64.
        lengths: real positions, (B,).
        mark: the id between a source and its features.

    Example:
        >>> sides = split_source(torch.tensor([[5, 6, 4, 7], [5, 6, 7, 0]]), torch.tensor([4, 3]), mark=4)
        >>> sides.lengths.tolist(), sides.features.int().tolist()
        ([2, 3], [[0, 0, 0, 1], [0, 0, 0, 0]])
    """
    indices = torch.arange(ids_BS.shape[1], device=ids_BS.device)
    real = indices < lengths[:, None]
    last = torch.where((ids_BS == mark) & real, indices, -1).amax(1)
    before = torch.where(last < 0, lengths, last)
    return Sides(before, (indices > before[:, None]) & real)


def check_target(target: Tensor, rows: int, size: int) -> None:
    """Check target tokens (rows, T), int64.

    Raises:
        ShapeError: the shape or dtype is wrong, or an id is not in the vocabulary.

    Example:
        >>> check_target(torch.tensor([[1, 5]]), rows=1, size=8)
    """
    _expect("target", target, 2, "(B, T)")
    if target.shape[0] != rows or (target.shape[1] == 0 and not is_sharded()):
        hint = "Each row starts with the begin token."
        raise ShapeError("target", f"{rows} rows of at least one token", f"{tuple(target.shape)}", hint)
    _within("target", target, size, "Use the tokenizer that the model was trained with.")


def _expect(argument: str, ids: Tensor, rank: int, shape: str) -> None:
    if ids.ndim != rank or ids.dtype != torch.int64:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise ShapeError(argument, f"int64 of shape {shape}", got, "Token ids and counts are integers.")


def _within(argument: str, ids: Tensor, end: int, hint: str) -> None:
    # On an accelerator this would synchronize at every step; the device's own assertion has to suffice.
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and ids.numel():
        low, high = ids.aminmax()
        if low < 0 or high >= end:
            got = f"{int(low) if low < 0 else int(high)}"
            raise ShapeError(argument, f"numbers from 0 to {end - 1}", got, hint)


def parts_of(stack: nn.ModuleList, kind: type[Part], name: str) -> list[Part]:
    """Return the parts of a stack, all of which must have the methods of one class.

    Args:
        stack: the list.
        kind: the class; a subclass will do.
        name: how an error names the list.

    Raises:
        UnsupportedError: a part was replaced by a module of another class.

    Example:
        >>> parts_of(nn.ModuleList([nn.Linear(2, 3)]), nn.GRU, "layers")
        Traceback (most recent call last):
        qkv.errors.UnsupportedError: layers.0: expected a GRU; got Linear. Replace a part inside of it, or subclass it.
    """
    parts: list[Part] = []
    for index, part in enumerate(stack):
        if not isinstance(part, kind):
            hint = "Replace a part inside of it, or subclass it."
            raise UnsupportedError(f"{name}.{index}", f"a {kind.__name__}", type(part).__name__, hint)
        parts.append(part)
    return parts
