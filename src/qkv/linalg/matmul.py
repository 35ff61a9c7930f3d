"""Products of matrices, by the fastest library that PyTorch brings for this processor.

PyTorch hands float32 products to MKL, which takes its wide registers on Intel's processors alone: on others oneDNN,
which PyTorch brings too, needs about half the time for the same sums. It is reached by one private operator, wrapped
here and nowhere else; where it cannot serve, the product is PyTorch's own.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.linalg.memory_pool import MemoryPool
from qkv.linalg.session import Session
from qkv.shapes import Shape, broadcast
from qkv.values.parameters import forward_mode, numbers, readable

if TYPE_CHECKING:
    from qkv.linalg.packed import PackedWeight

_LEAST = 2**22
"""Multiplications below which the call itself takes too much of the time."""
_LEAST_ITEM = 2**23
"""The same for one item of a batch, whose result is copied beside those of the others. On two threads 256 × 256 × 64
takes as long as by MKL, 512 × 512 × 64 two thirds; and each item waits for both cores, whoever else uses them."""
_MANY = 2**26
"""Multiplications from which on weights that come again are multiplied by panels; a process that decodes little needs
no Numba."""
_OFTEN = 24
"""Steps from which on a loop's weight is laid out for them: in either direction that takes as long as five to ten of
their products, and saves a third or half of each."""
_LARGE = 2**19
"""Numbers in a weight below which its products take no longer as they are."""
LONGEST = 384
"""How many terms are added up in one product.

Where terms have either sign, a chain of n additions makes an error that grows as n, and blocks of n of them one that
grows as √n: that of a product whose blocks are n times as long is √n times as large. MKL's blocks have 256 terms or
more; oneDNN's have 384 in registers of 512 bits, but a thousand and more in narrower ones. Of 384 terms at most, the
error is √(384/256) = 1.22 times MKL's, where the contract allows 1.5, which 576 terms would take.
"""
_PROCESSOR = Path("/proc/cpuinfo")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, kept: "KeptWeight | None" = None) -> Tensor:
    """x·Wᵀ + b, as `torch.nn.functional.linear`, differentiable.

    Args:
        x: (..., M).
        weight: W (N, M).
        bias: b (N,), or None.
        kept: where a session keeps the weight packed, from `kept_weight`; used if no gradient is recorded.

    Returns:
        (..., N).

    Example:
        >>> linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
        tensor([[4., 4., 4., 4.],
                [4., 4., 4., 4.]])
    """
    if not onednn_serves(x, weight) or not (bias is None or _added(weight, bias)):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        given = (x, weight) if bias is None else (x, weight, bias)
        if any(tensor.requires_grad for tensor in given):
            found: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
            return found
    # A tensor that inference mode made has no version, so its changes could not be detected.
    elif kept is not None and not weight.is_inference():
        return kept.times(x, weight, bias)
    return _product(x, weight, bias)


class _Met(NamedTuple):
    """A weight as it was at its last product. It is held, so that no other weight comes to lie at its address."""

    mark: tuple[int, int, torch.Size, tuple[int, ...]]
    weight: Tensor
    packed: "Tensor | PackedWeight | None"


@final
class KeptWeight:
    """One weight in a session: packed from its second product on, and again whenever it has changed.

    A change shows in the weight's version, as PyTorch's autograd finds it, or in its address.

    Args:
        memory: where products lie.
    """

    def __init__(self, memory: MemoryPool) -> None:
        self._memory = memory
        self._met: _Met | None = None

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x·Wᵀ + b, without a gradient, for what oneDNN serves."""
        mark, met = (weight.data_ptr(), weight._version, weight.shape, weight.stride()), self._met
        if met is None or met.mark != mark:
            self._met = _Met(mark, weight, None)
            return _product(x, weight, bias)
        packed = met.packed
        if packed is None:
            packed = _packed(x, weight)
            self._met = met._replace(packed=packed)
        return _product(x, packed, bias) if isinstance(packed, Tensor) else packed.times(x, bias, self._memory)


def kept_weight(session: Session | None, owner: Hashable) -> KeptWeight | None:
    """Return where a session keeps one weight; None without a session.

    Args:
        session: of a decoding, or None.
        owner: the module of the weight, or the module and the name of a part.
    """
    return None if session is None else session.keep(owner, partial(KeptWeight, session.memory))


def _packed(x: Tensor, weight: Tensor) -> "Tensor | PackedWeight":
    """A weight for products of our own where they are large, else as oneDNN reads it."""
    if x.numel() * weight.shape[0] >= _MANY and (paneled := _compiled()) is not None:
        return paneled(weight.detach())
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach(), None)
    return found


def few(rows: int) -> bool:
    """Whether products of so many rows are for panels: these take eight at a time, and many rows are MKL's own.

    Example:
        >>> few(1), few(16), few(1000)
        (False, True, False)
    """
    return 8 <= rows <= 128


def packed_weight(weight: Tensor, steps: int, rows: int) -> "PackedWeight | None":
    """A weight W (N, M) laid out for the steps of a loop, each a product x·Wᵀ of few rows without a gradient.

    Args:
        weight: W, which stays as it is while it is used.
        steps: how many products there will be.
        rows: of each of them.

    Returns:
        None where that does not pay, or cannot be: not float32, not on the CPU, under autocast or transformations,
        or without compiled kernels.

    Example:
        >>> packed_weight(torch.ones(4, 3), 100, 8) is None
        True
    """
    pays = steps >= _OFTEN and weight.numel() >= _LARGE and few(rows)
    if not pays or weight.dtype != torch.float32 or not numbers(weight) or torch.is_autocast_enabled("cpu"):
        return None
    paneled = _compiled()
    return None if paneled is None else paneled(weight.detach())


@lru_cache
def _compiled() -> "type[PackedWeight] | None":
    """Products by panels, where Numba runs and shares them among PyTorch's threads."""
    try:
        from qkv.compiled.openmp import linked
        from qkv.linalg.packed import PackedWeight
    except (ImportError, OSError, RuntimeError):
        return None
    return PackedWeight if linked() else None


def product(left: Tensor, right: Tensor) -> Tensor:
    """A product of two matrices (R, M) and (M, N), as `left @ right`, without a gradient."""
    if not onednn_serves(left, right.mT):
        return left @ right
    # oneDNN takes its first operand by rows and copies it where it lies by columns: the smaller one then comes first.
    if not left.is_contiguous() and right.numel() < left.numel():
        return _product(right.mT, left, None).mT
    return _product(left, right.mT, None)


def batched(left: Tensor, right: Tensor, room: Callable[[Shape], Tensor] | None = None) -> Tensor:
    """Products (..., R, M) · (..., M, N), as `left @ right`, without a gradient.

    Args:
        left: (..., R, M).
        right: (..., M, N).
        room: gives memory of the shape asked for, where the products may lie; without it they get memory of their own.

    Returns:
        (..., R, N).

    Example:
        >>> batched(torch.ones(3, 1, 2, 5), torch.ones(4, 5, 6)).shape
        torch.Size([3, 4, 2, 6])
    """
    *heads, rows, terms = left.shape
    columns = right.shape[-1]
    lead = broadcast(tuple(heads), tuple(right.shape[:-2]))
    if lead is None or not onednn_favored(left, right):
        if room is None or lead is None:
            return left @ right
        return torch.matmul(left, right, out=room((*lead, rows, columns)))
    if prod(lead) == 1:
        found = _long(left.reshape(rows, terms), right.reshape(terms, columns))
        return torch.ops.aten._unsafe_view.default(found, (*lead, rows, columns))  # type: ignore[no-any-return]
    shape = (*lead, rows, columns)
    found = torch.empty(shape, dtype=torch.float32, device="cpu") if room is None else room(shape)
    for own, one, other in zip(_items(found, lead), _items(left, lead), _items(right, lead), strict=True):
        own.copy_(_long(one, other))
    return found


def onednn_favored(left: Tensor, right: Tensor) -> bool:
    """Whether `batched` takes oneDNN."""
    large = left.shape[-2] * right.shape[-2] * right.shape[-1] >= _LEAST_ITEM
    return large and left.shape[-1] == right.shape[-2] and _answered(left, right)


def contiguous_rows(x: Tensor) -> Tensor:
    """The same numbers, row by row without gaps where `batched` would ask that of them again and again."""
    return x if x.dtype != torch.float32 or not _answered(x, x) or _gapless(x) else x.contiguous()


def _gapless(x: Tensor) -> bool:
    """Whether oneDNN reads the matrices as they lie; with gaps between rows it takes a thousand times as long."""
    rows, columns = x.stride()[-2:]
    return (columns == 1 and rows == x.shape[-1]) or (rows == 1 and columns == x.shape[-2])


def _items(x: Tensor, lead: Shape) -> list[Tensor]:
    parts = [x.expand(*lead, *x.shape[-2:])]
    for _ in lead:
        parts = [item for part in parts for item in part.unbind()]
    return parts


def _long(left: Tensor, right: Tensor) -> Tensor:
    """A product of two matrices whose sums are taken in parts."""
    right = right if _gapless(right) else right.contiguous()
    terms = left.shape[-1]
    if terms <= LONGEST:
        return _product(left.contiguous(), right.mT, None)
    found = None
    for start in range(0, terms, LONGEST):
        part = slice(start, start + LONGEST)
        # Rows of a matrix that lies column by column have gaps.
        own = right[part] if right.stride(-1) == 1 else right[part].contiguous()
        share = _product(left[:, part].contiguous(), own.mT, None)
        found = share if found is None else found.add_(share)
    assert found is not None
    return found


def onednn_serves(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN takes a product: large ones in float32, called eagerly on a processor that MKL does not favor.

    `torch.backends.mkldnn.set_flags(False)` leaves all of them to PyTorch, and so does what does not fit: the private
    operator checks nothing, where PyTorch names the shapes.
    """
    large = weight.ndim == 2 and x.ndim > 1 and x.numel() * weight.shape[0] >= _LEAST
    return large and x.shape[-1] == weight.shape[1] and _apart(weight) and _answered(x, weight)


def _apart(weight: Tensor) -> bool:
    """Whether rows share no memory, or one row is all of them: oneDNN has no name for rows that overlap."""
    (rows, columns), (by_row, by_column) = weight.shape, weight.stride()
    return 0 in (by_row, by_column) or by_row >= columns * by_column or by_column >= rows * by_row


def _added(weight: Tensor, bias: Tensor) -> bool:
    """Whether oneDNN adds a bias: it reads numbers beside each other, one for each column, whatever it is given."""
    fits = bias.dtype == torch.float32 and bias.shape == weight.shape[:1]
    return fits and bias.is_contiguous() and readable(bias)


def _answered(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and readable(x)
        and readable(weight)
        and torch._C._get_tracing_state() is None
        and _favored()
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
        and not forward_mode()
    )


@lru_cache
def _favored() -> bool:
    """Whether oneDNN answers, and the processor is none that MKL was made for."""
    one = torch.ones(1, 1, dtype=torch.float32, device="cpu")
    try:
        with torch.no_grad():
            answers = bool(_product(one, one, None) == 1)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        # A private operator: another version of PyTorch may have it in another form, or not at all.
        return False
    return answers and bool(_vendors()) and not mkl_favored()


def mkl_favored() -> bool:
    """Whether the processor is one that MKL was made for, whose products take its wide registers.

    Example:
        >>> mkl_favored() in (True, False)
        True
    """
    return "GenuineIntel" in _vendors()


@lru_cache
def _vendors() -> frozenset[str]:
    try:
        lines = _PROCESSOR.read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split(":")[-1].strip() for line in lines if "vendor_id" in line)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x if x.ndim == 2 else x.flatten(0, -2)
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    # No view, as of PyTorch's own product: what follows may write over it.
    return found if x.ndim == 2 else torch.ops.aten._unsafe_view.default(found, (*x.shape[:-1], weight.shape[0]))


@final
class _Linear(torch.autograd.Function):
    """The product with its gradients, which are two more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, given = grad.flatten(0, -2), x.flatten(0, -2)
        to_x, to_weight, to_bias = ctx.needs_input_grad
        # Products of tensors that record their own gradients are PyTorch's: second derivatives follow.
        times = torch.matmul if torch.is_grad_enabled() else product
        return (
            times(rows, weight).view_as(x) if to_x else None,
            times(rows.mT, given) if to_weight else None,
            rows.sum(0) if to_bias else None,
        )


@final
class Linear(nn.Linear):
    """PyTorch's layer, by `linear`.

    Example:
        >>> Linear(3, 4)(torch.zeros(2, 3)).shape
        torch.Size([2, 4])
    """

    def forward(self, input: Tensor, session: Session | None = None) -> Tensor:
        """(..., M) to (..., N); a session keeps the weight packed."""
        return linear(input, self.weight, self.bias, kept_weight(session, self))


def apply_layer(layer: nn.Module, x: Tensor, session: Session | None) -> Tensor:
    """layer(x), with the session where the layer is a `Linear`; a module put in its place gets x alone.

    Example:
        >>> apply_layer(nn.ReLU(), torch.tensor([-1.0]), Session())
        tensor([0.])
    """
    found: Tensor = layer(x) if session is None or not isinstance(layer, Linear) else layer(x, session)
    return found
