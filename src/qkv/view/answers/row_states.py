"""log Σ e^s of adjacent rows of softmax weights: without a mask over the keys that all of them see, then the others.

A tile of a coarse level needs the states of a thousand rows, each over all of its keys. Without a mask PyTorch's fused
kernel serves, in a third to a fifth of the time that a causal mask with an offset takes.
"""

import torch
from torch import Tensor

from qkv.functional import attention_with_state
from qkv.masks.base import Bounds
from qkv.normalizers.dense import Softmax
from qkv.view.answers.head import Head

_MASKED = 1 << 22
"""The most pairs for which a mask is written out."""


def softmax_states(head: Head, bounds: Bounds | None, rows: slice) -> Tensor | None:
    """Return the row states of adjacent rows; None where this takes no less time than one pass with the mask.

    Args:
        head: the head.
        bounds: the keys each query may see, as `head.bounds()` returns them.
        rows: the rows, from start to stop.

    Example:
        >>> import torch, qkv
        >>> from qkv.view.answers.head import head_of
        >>> from qkv.view.scene import Layer
        >>> x = torch.zeros(1, 8, 4)
        >>> head = head_of(Layer("one", "self", "text", "text", x, x, x, options={"mask": qkv.masks.causal()}), 0)
        >>> softmax_states(head, head.bounds(), slice(6, 8)).exp().round()
        tensor([7., 8.], dtype=torch.float64)
    """
    plain = isinstance(head.normalizer, Softmax) and head.normalizer.sink is None and head.bias is None
    if not plain or bounds is None or head.query.device.type != "cpu":
        return None
    first, last = _of_rows(bounds, rows, head.shape)
    if not first.numel():
        return None
    common = slice(int(first.max()), int(last.min()))
    sides = slice(int(first.min()), common.start), slice(common.stop, int(last.max()))
    rest = sum(side.stop - side.start for side in sides)
    if common.stop - common.start < rest or first.numel() * rest > _MASKED:
        return None
    total = _lse(head, rows, common, None)
    for side in sides:
        if side.start < side.stop:
            at = torch.arange(side.start, side.stop, device=first.device)
            visible = (at >= first[:, None]) & (at < last[:, None])
            total = torch.logaddexp(total, _lse(head, rows, side, visible))
    return total


def _of_rows(bounds: Bounds, rows: slice, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the first visible key of each row, and the one after the last."""
    hidden = torch.zeros(shape[0], dtype=torch.int64)
    first = hidden if bounds.first is None else bounds.first
    last = hidden + shape[1] if bounds.last is None else bounds.last
    return first.expand(shape[0])[rows].clamp(min=0), last.expand(shape[0])[rows].clamp(max=shape[1])


def _lse(head: Head, rows: slice, keys: slice, visible: Tensor | None) -> Tensor:
    # The keys are the values: with equal widths nothing must be padded.
    key = head.key[keys]
    state = attention_with_state(head.query[rows], key, key, score=head.score, normalizer=Softmax(), mask=visible)[1]
    return state.value
