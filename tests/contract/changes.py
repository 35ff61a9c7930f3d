"""How the numbers of a tensor can change, most of them without a trace in its version, and values that hold tensors."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv import biases
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, dense, documents, lengths, span, window
from qkv.values.parameters import Parameter

B, H, Q, K = 2, 2, 6, 6


def _in_place(x: Tensor, new: Tensor) -> None:
    with torch.no_grad():
        x.copy_(new)


def _by_numpy(x: Tensor, new: Tensor) -> None:
    x.detach().numpy()[...] = new.numpy()


def _by_data(x: Tensor, new: Tensor) -> None:
    x.data.copy_(new)


def _replaced_data(x: Tensor, new: Tensor) -> None:
    x.data = new.clone()


def _by_dlpack(x: Tensor, new: Tensor) -> None:
    torch.utils.dlpack.from_dlpack(x.detach()).copy_(new)


def _by_storage(x: Tensor, new: Tensor) -> None:
    x.untyped_storage().copy_(new.clone().untyped_storage())


def _reset(x: Tensor, new: Tensor) -> None:
    with torch.no_grad():
        x.set_(new.clone())  # type: ignore[call-overload]


WAYS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "in place": _in_place,
    "numpy": _by_numpy,
    ".data": _by_data,
    ".data =": _replaced_data,
    "dlpack": _by_dlpack,
    "storage": _by_storage,
    "set_": _reset,
}
"""Each writes new numbers of the same shape and dtype into a contiguous tensor."""


def other(x: Tensor) -> Tensor:
    """Return numbers that differ from a tensor's, and serve as well in its place."""
    return ~x if x.dtype == torch.bool else x.flip(-1) + 1 if x.dtype == torch.int64 else x.flip(-1) * 1.25 + 0.25


def table() -> Tensor:
    """Draw a mask; the numbers are the same each time."""
    return torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(0)) < 0.6


def _of(numbers: list[int]) -> Callable[[], Tensor]:
    return lambda: torch.tensor(numbers)


MASKS: dict[str, tuple[Callable[..., Mask], list[Callable[[], Tensor]]]] = {
    "dense": (dense, [table]),
    "broadcast": (dense, [table()[0, 0, :1].clone]),
    "not dense": (lambda x: ~dense(x), [table]),
    "dense or causal": (lambda x: dense(x) | causal(), [table]),
    "dense and lengths": (lambda x, n: dense(x) & lengths(n), [table, _of([3, 5])]),
    "dense and dense": (lambda x, y: dense(x) & dense(y), [table, table]),
    "lengths": (lengths, [_of([3, 5])]),
    "span": (span, [_of([1, 0]), _of([3, 5])]),
    "lengths of both": (lengths, [_of([3, 5]), _of([2, 5])]),
    "not lengths": (lambda n: ~lengths(n), [_of([2, 4])]),
    "offsets": (causal, [_of([0, 2])]),
    "offsets from the end, or": (lambda n: causal(n, align="end") | lengths(1), [_of([0, 2])]),
    "window": (lambda n: window(2, 1, offset=n), [_of([0, 2])]),
    "documents": (documents, [_of([0, 0, 0, 1, 1, 2])]),
    "scattered documents": (documents, [_of([0, 1, 0, 1, 2, 2])]),
    "two documents": (documents, [_of([0, 1, 0, 1, 2, 2]), _of([0, 0, 1, 1, 2, 2])]),
}
"""Every kind of mask: how it is built from tensors, and what makes these."""


class Halves(biases.Bias):
    """A number for pairs in one half, no function of j − i."""

    parameters = (Parameter("bonus", 0),)

    def __init__(self, bonus: Tensor) -> None:
        self.bonus = bonus

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.bonus[:, None, None] * (rows_Q1 // 3 == columns_K // 3)


def closing_over(bonus: Tensor) -> biases.Bias:
    """Return a bias whose tensor no field names."""

    class Closure(biases.Bias):
        def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
            return bonus[:, None, None] * (rows_Q1 // 3 == columns_K // 3)

    return Closure()


BIASES: dict[str, tuple[Callable[[Tensor], biases.Bias], tuple[int, ...]]] = {
    "alibi": (biases.alibi, (H,)),
    "relative": (biases.relative, (H, 5)),
    "yours": (Halves, (H,)),
    "yours, a closure": (closing_over, (H,)),
}
"""Every kind of position bias: how it is built from a tensor, and the shape of that."""
