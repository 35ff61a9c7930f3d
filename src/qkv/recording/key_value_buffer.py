"""A buffer that stores the keys and values of a growing cache once, however many calls read them."""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.biases import Bias
from qkv.masks.base import as_mask
from qkv.masks.patterns import span
from qkv.values.pytree import tensors_in
from qkv.values.rows import select_rows


class StoredKeys(NamedTuple):
    """Stored keys and values.

    Attributes:
        key, value: (..., K, E) and (..., K, V).
        dropped: how many keys come before those that the call was given, because its cache dropped them.
    """

    key: Tensor
    value: Tensor
    dropped: int = 0


@final
class KeyValueBuffer:
    """Memory for the keys and values of consecutive calls of a layer, of which each may see a few more.

    A cache that concatenates makes new tensors for every call: T steps would store T²/2 keys. Here each call stores a
    view of one buffer of at most 2T keys. Early keys, which a cache with a sliding window drops, stay here.

    Example:
        >>> buffer, keys = KeyValueBuffer(), torch.arange(6.0).reshape(1, 6, 1)
        >>> views = [buffer.keep(keys[:, :n], keys[:, :n], n if n == 4 else 1) for n in (4, 5, 6)]
        >>> torch.equal(views[2].key, keys), views[1].key.data_ptr() == views[2].key.data_ptr()
        (True, True)
        >>> buffer.keep(torch.tensor([[[4.0], [5.0], [6.0]]]), torch.tensor([[[4.0], [5.0], [6.0]]]), 1).dropped
        4
    """

    def __init__(self) -> None:
        self._length = 0
        self._pair: tuple[Tensor, ...] = ()

    @property
    def length(self) -> int:
        """How many keys are stored."""
        return self._length

    def crop(self, length: int) -> None:
        """Drop all but the first keys; calls that use the others keep them."""
        if length < self._length:
            self._pair, self._length = tuple(x[..., :length, :] for x in self._pair), length

    def continues(self, key: Tensor, queries: int, start: int) -> bool:
        """Return whether keys repeat those that are kept up to a position, as far as a window has not dropped them.

        Args:
            key: all that a call was given, (..., K, E).
            queries: how many of the last ones are new.
            start: position of the first new one.
        """
        old = key.shape[-2] - queries
        if not self._pair or not 0 <= old <= start <= self._length:
            return False
        return same_numbers(key[..., :old, :], self._pair[0][..., start - old : start, :])

    def select(self, rows: Tensor) -> None:
        """Select rows of the batch, as a beam search does."""
        self._pair = tuple(select_rows(x, rows.to(x.device)) for x in self._pair)

    def keep(self, key: Tensor, value: Tensor, queries: int, start: int | None = None) -> StoredKeys:
        """Return the same keys and values, in memory shared with those of earlier calls if they continue them.

        Args:
            key, value: all that the call was given.
            queries: how many of the last ones can be new.
            start: position of the first new one, if known: without any earlier key, new ones then continue others too.
        """
        pair, length, count = (key, value), self._length, key.shape[-2]
        if self._pair and count == length and self._ends_with(pair, count):
            return self._stored(count)
        old = count - queries
        continues = 0 < old <= length or (old == 0 and start == length)
        if not self._pair or not continues or not self._ends_with(pair, old):
            self._pair, self._length = pair, count
            return StoredKeys(key, value)
        self._append([x[..., old:, :] for x in pair])
        return self._stored(self._length, length - old)

    def _stored(self, count: int, dropped: int = 0) -> StoredKeys:
        key, value = (buffer[..., :count, :] for buffer in self._pair)
        return StoredKeys(key, value, dropped)

    def _append(self, new: list[Tensor]) -> None:
        length, total = self._length, self._length + new[0].shape[-2]
        if self._pair[0].shape[-2] < total:
            wider = tuple(x.new_empty(*x.shape[:-2], 2 * total, x.shape[-1]) for x in self._pair)
            for buffer, x in zip(wider, self._pair, strict=True):
                buffer[..., :length, :] = x[..., :length, :]
            self._pair = wider
        for buffer, x in zip(self._pair, new, strict=True):
            buffer[..., length:total, :] = x
        self._length = total

    def _ends_with(self, pair: tuple[Tensor, ...], count: int) -> bool:
        """Return whether the first keys and values of a call are the last that are kept."""
        start = self._length - count
        return all(
            same_numbers(x[..., :count, :], buffer[..., start : self._length, :])
            for x, buffer in zip(pair, self._pair, strict=True)
        )


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same numbers; NaN, in a model that diverged, is the same as NaN.

    Example:
        >>> same_numbers(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan]))
        True
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def with_hidden_keys(options: dict[str, Any], dropped: int, queries: int, keys: int) -> dict[str, Any]:
    """Return the options of a call whose keys are preceded by some that it does not see.

    Args:
        options: score, mask, bias and the like.
        dropped: the number of preceding keys.
        queries, keys: Q, and K without them.

    Example:
        >>> with_hidden_keys({"bias": torch.ones(1, 2)}, 2, 1, 2)["bias"]
        tensor([[0., 0., 1., 1.]])
    """
    if not dropped:
        return options
    mask, visible = options.get("mask"), span(dropped)
    options = options | {"mask": visible if mask is None else visible & as_mask(mask).shifted(dropped)}
    bias = options.get("bias")
    if isinstance(bias, Bias):
        device = next((x.device for x in tensors_in(bias)), None)
        bias = bias.tile(torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device))
    if isinstance(bias, Tensor):
        expanded = bias.ndim > 0 and bias.shape[-1] == keys
        options["bias"] = F.pad(bias.detach(), (dropped, 0)) if expanded else bias
    return options
