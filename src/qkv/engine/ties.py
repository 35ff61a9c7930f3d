"""Equal keys have equal scores, wherever they stand, so that a tie under `Hard` goes to the first of them.

Products and vectorized functions round by the place of a number in a tile and in a register: scores of one query and
equal keys can differ in their last bits, and the largest is then any of them. So each key takes the score of the first
one that equals it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from qkv.masks.lower import Visibility
from qkv.shapes import broadcasts_to
from qkv.values.execution import has_plain_memory, readable

FEW = 1 << 10
"""How many keys may be compared as bytes in a set."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GOLDEN = -0x61C8864680B583EB
"""2⁶⁴ divided by the golden ratio, as a negative int64."""


def first_equals(key: Tensor, visibility: Visibility | None = None) -> Tensor | None:
    """Return for each key the position of the first one that equals it.

    Equal keys have equal hashes, which bring them together in a sorted list; keys there are compared, so that a
    collision cannot join different ones. It takes time K log K, and memory linear in the keys.

    Args:
        key: (..., K, E).
        visibility: the mask; keys that no query sees may equal others, as they do where they are zeroed.

    Returns:
        (..., K), int64; None if it can be seen that no two keys are equal.

    Example:
        >>> first_equals(torch.tensor([[1.0, -0.0], [2.0, 0.0], [1.0, 0.0]]))
        tensor([0, 1, 0])
        >>> first_equals(torch.eye(3)) is None
        True
    """
    key = key.detach() if key.requires_grad else key
    # While a graph is captured, its sizes are symbolic, and no branch may depend on them.
    if has_plain_memory(key) and key.numel() > 0 and key.shape[:-1].numel() <= FEW:
        leading_numbers = key.select(-1, 0).flatten().tolist()
        visible = None if visibility is None else visibility.keys_with_queries()
        if visible is not None and broadcasts_to(visible.shape, key.shape[:-1]):
            leading_numbers = list(compress(leading_numbers, visible.expand(key.shape[:-1]).flatten().tolist()))
        if len(set(leading_numbers)) == len(leading_numbers):
            return None
        # A NaN equals nothing, whatever its bytes are.
        if not bool(key.sum().isnan()):
            return _first_of_few(key)
    if _exports or torch.onnx.is_in_onnx_export():
        return _first_by_pairs(key)
    hashes = _hashes(key)
    order = hashes.argsort(dim=-1, stable=True)
    hashes = hashes.gather(-1, order)
    index = torch.arange(key.shape[-2], device=key.device).expand_as(hashes)
    # Not by slices of K − 1 keys, whose size an export with a varying length would have to know.
    repeats = (hashes == hashes.gather(-1, (index - 1).clamp(min=0))) & (index > 0)
    if _may_branch(key) and not repeats.any():
        return None
    # The sort is stable: the first of equal keys comes first among them.
    first = order.gather(-1, index.masked_fill(repeats, 0).cummax(-1).values)
    first = torch.zeros_like(first).scatter(-1, order, first)
    same = (key == key.gather(-2, first[..., None].expand_as(key))).all(-1)
    return torch.where(same, first, index)


@contextmanager
def compared_by_pairs() -> Iterator[None]:
    """Compare all pairs of keys in the code inside, which a converter to ONNX follows.

    So do other threads meanwhile, with the same results: PyTorch's compiler follows no variable of a thread.
    """
    _exports.append(None)
    try:
        yield
    finally:
        _exports.pop()


_exports: list[None] = []
"""One entry for each export to ONNX that runs."""


def _may_branch(key: Tensor) -> bool:
    """Return whether the numbers of a call may decide which branch it takes: not while it is traced."""
    return readable(key) and torch._C._get_tracing_state() is None


def _first_of_few(key: Tensor) -> Tensor | None:
    """Compute `first_equals` of few keys of numbers, by a dictionary of their bytes: a tenth of the time of a sort."""
    # Adding 0 makes 0 of −0.
    rows = ((key.float() if key.dtype.itemsize == 2 else key) + 0).contiguous()
    count, size = key.shape[-2], key.shape[-1] * rows.element_size()
    keys = rows.numpy().reshape(-1, key.shape[-1]).view(np.dtype((np.void, size))).ravel().tolist()
    firsts: list[int] = []
    for start in range(0, len(keys), count):
        first_index: dict[object, int] = {}
        firsts += [first_index.setdefault(one, index) for index, one in enumerate(keys[start : start + count])]
    first = torch.from_numpy(np.array(firsts, dtype=np.int64)).view(key.shape[:-1])
    return None if torch.equal(first, torch.arange(count, device=key.device).expand_as(first)) else first


def _first_by_pairs(key: Tensor) -> Tensor:
    """Compute `first_equals` by comparing all pairs, as ONNX has no operator for the bits of a number."""
    index = torch.arange(key.shape[-2], device=key.device)
    same = (key.unsqueeze(-2) == key.unsqueeze(-3)).all(-1) | (index[:, None] == index)
    return same.int().argmax(-1)


def _hashes(key: Tensor) -> Tensor:
    """Return a hash of each key, (..., K), int64."""
    # 0 and −0 are equal; the sum is exact.
    bits = _bits(key.masked_fill(key == 0, 0.0).contiguous())
    return (_mixed(bits) * (_mixed(torch.arange(1, key.shape[-1] + 1, device=key.device) * _GOLDEN) | 1)).sum(-1)


def _bits(x: Tensor) -> Tensor:
    """Return an integer for each number, the same for equal ones: its bits, or what they stand for.

    The tracer has no view of other types, nor has `vmap` before PyTorch 2.12.
    """
    if torch._C._get_tracing_state() is None and not torch._C._functorch.is_batchedtensor(x):
        return x.view(_INTEGERS[x.element_size()]).long()
    mantissa, exponent = torch.frexp(x.double())
    return (mantissa * 2.0**53).long() * 2048 + exponent


def _mixed(x: Tensor) -> Tensor:
    """Mix high bits into low ones, as common numbers differ in a few high bits only."""
    x = (x ^ (x >> 32)) * _GOLDEN
    return x ^ (x >> 29)


def shared(scores: Tensor, first: Tensor | None, start: int = 0) -> Tensor:
    """Give equal keys the score of the first one.

    Args:
        scores: (..., Q, K), or a part of their columns.
        first: of these columns, from `first_equals`; None for no equal keys.
        start: the first column.

    Example:
        >>> shared(torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([0, 1, 0]))
        tensor([[1., 5., 1.]])
        >>> shared(torch.tensor([[5.0, 2.0, 3.0]]), torch.tensor([1, 0, 0]), start=1)
        tensor([[5., 2., 2.]])
    """
    if first is None or scores.shape[-1] == 0:
        return scores
    if start:
        first = _within(first, start + first.shape[-1])
    first_scores = scores.gather(-1, first.unsqueeze(-2).expand_as(scores))
    # Scores that were equal already keep their own gradients.
    return torch.where(first_scores == scores, scores, first_scores) if scores.requires_grad else first_scores


def _within(first: Tensor, count: int) -> Tensor:
    """Return for each column of a part the first one of the part with the same entry; entries are below `count`."""
    columns = torch.arange(first.shape[-1], device=first.device).expand_as(first)
    least = first.new_full((*first.shape[:-1], count), first.shape[-1]).scatter_reduce(-1, first, columns, "amin")
    return least.gather(-1, first)
