"""Matrix products by the fastest code for their kind on this processor.

Which code that is was measured for each kind of product (docs/understanding/planner.md):

- Large products and those of a backward pass: by oneDNN, which ships with PyTorch, on processors with registers of 512
  bits that MKL reports it does not use; there oneDNN takes half (Zen 5) to nine tenths (Zen 4) of the time for the same
  sums. Everywhere else PyTorch's own products are as fast or faster. oneDNN is called through one private operator, in
  this module only; where the operator is missing or its result is wrong, PyTorch computes the product.
- Products of a few rows with a weight that is used repeatedly: with the weight packed for our own kernel, on every
  processor whose registers hold 256 bits or more.

`apply_layer` computes plain linear layers this way, and calls any other layer.
"""

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import out_of_memory_text
from qkv.linalg import mkl
from qkv.linalg.memory_pool import MemoryPool
from qkv.linalg.session import DecodingSession
from qkv.shapes import Shape, broadcast
from qkv.values.execution import has_plain_memory, readable, transformed
from qkv.values.mapped import by_sample
from qkv.values.plain_modules import is_plain

if TYPE_CHECKING:
    from qkv.linalg.packed import PackedWeight

_MIN_MULTIPLICATIONS = 2**23
"""Multiplications of one product, or of one item of a batch, below which oneDNN saves no time.

On one thread of a Zen 4, a layer's product and its two gradients take 1.5 times as long as PyTorch's at 192 × 64 × 256,
1.2 times at 64 × 256 × 512, and as long at 256 × 256 × 512: oneDNN's operator starts in 13 µs, PyTorch's in 2. On two
threads each item of a batch waits for both cores, even if other work uses them.
"""
_MIN_FOR_PANELS = 2**26
"""Multiplications from which repeated weights are packed into panels; a short decoding process loads no kernels."""
_MIN_STEPS = 24
"""Steps of a loop from which its weight is packed.

Packing takes as long as five to ten of the products, each of which then takes a third to a half less.
"""
_MIN_ELEMENTS = 2**19
"""Elements of a weight below which packing saves no time."""
LONGEST = 384
"""The most terms that one product sums.

For terms of either sign, the error of a product grows with the square root of the length of the blocks in which it is
summed. MKL's blocks have at least 256 terms; oneDNN's have 384 in registers of 512 bits, but more than a thousand in
narrower ones. With at most 384 terms the error is √(384/256) = 1.22 times MKL's; the contract allows 1.5, which would
be reached at 576 terms.
"""
_MIN_REGISTER_BITS = 256
"""Bits of a register in which packed products were measured to be faster; in narrower ones their sums do not fit."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: "CachedWeight | None" = None) -> Tensor:
    """Compute x·Wᵀ + b, as `torch.nn.functional.linear`, differentiable.

    Args:
        x: (..., M).
        weight: W (N, M).
        bias: b (N,), or None.
        packed: the packed weight of a session, from `cached_weight`; used if no gradient is recorded.

    Returns:
        (..., N).

    Example:
        >>> linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
        tensor([[4., 4., 4., 4.],
                [4., 4., 4., 4.]])
    """
    if packed is not None and not torch.is_grad_enabled() and packed.serves(x, weight, bias):
        return packed.times(x, weight, bias)
    if not onednn_serves(x, weight) or not (bias is None or _can_add_bias(weight, bias)):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in (x, weight, bias)):
        output: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return output
    return _product(x, weight, bias)


class _LastWeight(NamedTuple):
    """A weight at its last product; the reference keeps its address from being reused."""

    identity: tuple[int, int, torch.Size, tuple[int, ...]]
    weight: Tensor
    packed: "Tensor | PackedWeight | None"


@final
class CachedWeight:
    """One weight in a session: packed from its second product on, and again whenever it has changed.

    A change is detected by the tensor's version, as in autograd, or by its address.

    Args:
        memory: the pool in which products are allocated.
    """

    def __init__(self, memory: MemoryPool) -> None:
        self._memory = memory
        self._last: _LastWeight | None = None

    def serves(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Return whether a product is faster with a packed weight, whose changes can be detected."""
        # An inference tensor has no version.
        if not _fits(x, weight) or weight.is_inference() or not (bias is None or _can_add_bias(weight, bias)):
            return False
        return (_packs_by_panels(x, weight) and _is_eager_float32(x, weight)) or onednn_serves(x, weight)

    def times(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x·Wᵀ + b without gradients, for operands that `serves` accepts."""
        identity, last = (weight.data_ptr(), weight._version, weight.shape, weight.stride()), self._last
        if last is None or last.identity != identity:
            self._last = _LastWeight(identity, weight, None)
            return linear(x, weight, bias)
        packed = last.packed
        if packed is None:
            packed = _packed(x, weight)
            self._last = last._replace(packed=packed)
        return _product(x, packed, bias) if isinstance(packed, Tensor) else packed.times(x, bias, self._memory)


def cached_weight(session: DecodingSession | None, owner: Hashable) -> CachedWeight | None:
    """Return a session's object for one weight; None without a session.

    Args:
        session: the session of a decoding, or None.
        owner: the module of the weight, or the module and the name of a part.
    """
    return None if session is None else session.keep(owner, partial(CachedWeight, session.memory))


def _packed(x: Tensor, weight: Tensor) -> "Tensor | PackedWeight":
    """Pack a weight into panels for our own kernel, or into oneDNN's layout."""
    if _packs_by_panels(x, weight) and (packed_weight_class := _packed_weight_class()) is not None:
        return packed_weight_class(weight.detach())
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach(), None)
    return reordered


def _packs_by_panels(x: Tensor, weight: Tensor) -> bool:
    """Return whether a product with a weight that is used repeatedly is fastest with panels."""
    if _onednn_is_faster():
        # oneDNN's own layout is faster for smaller products.
        serves = x.numel() * weight.shape[0] >= _MIN_FOR_PANELS
    else:
        serves = weight.numel() >= _MIN_ELEMENTS and suits_panels(x.numel() // max(1, x.shape[-1]))
    return serves and _packed_weight_class() is not None


def suits_panels(rows: int) -> bool:
    """Return whether products of this many rows are faster by panels, whose kernel takes eight rows at a time.

    Example:
        >>> suits_panels(1), suits_panels(16), suits_panels(1000)
        (False, True, False)
    """
    return 8 <= rows <= 128


def packed_weight(weight: Tensor, steps: int, rows: int) -> "PackedWeight | None":
    """Pack a weight W (N, M) for the steps of a loop, each a product x·Wᵀ of few rows without gradients.

    Args:
        weight: W, which must not change while the packed weight is in use.
        steps: the number of products.
        rows: the number of rows of each.

    Returns:
        The packed weight; None if packing would not save time or is impossible: not float32, not on the CPU, under
        autocast or transformations, or without compiled kernels.

    Example:
        >>> packed_weight(torch.ones(4, 3), 100, 8) is None
        True
    """
    saves_time = steps >= _MIN_STEPS and weight.numel() >= _MIN_ELEMENTS and suits_panels(rows)
    if (
        not saves_time
        or weight.dtype != torch.float32
        or not has_plain_memory(weight)
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    packed_weight_class = _packed_weight_class()
    return None if packed_weight_class is None else packed_weight_class(weight.detach())


@lru_cache
def _packed_weight_class() -> "type[PackedWeight] | None":
    """Return `PackedWeight` if it runs on PyTorch's threads and a register holds enough of its sums."""
    from qkv.compiled.openmp import linked
    from qkv.compiled.target import REGISTER
    from qkv.linalg.packed import PackedWeight

    return PackedWeight if REGISTER >= _MIN_REGISTER_BITS and linked() else None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Compute the product of two matrices (R, M) and (M, N), as `left @ right`, without gradients."""
    if not onednn_serves(left, right.mT):
        return left @ right
    # oneDNN copies a column-major first operand, so pass the smaller one first.
    if not left.is_contiguous() and right.numel() < left.numel():
        return _product(right.mT, left, None).mT
    return _product(left, right.mT, None)


def batched(left: Tensor, right: Tensor, allocate: Callable[[Shape], Tensor] | None = None) -> Tensor:
    """Compute products (..., R, M) · (..., M, N), as `left @ right`, without gradients.

    Args:
        left: (..., R, M).
        right: (..., M, N).
        allocate: returns a tensor of a given shape for the products; None to allocate a new one.

    Returns:
        (..., R, N).

    Example:
        >>> batched(torch.ones(3, 1, 2, 5), torch.ones(4, 5, 6)).shape
        torch.Size([3, 4, 2, 6])
    """
    *heads, rows, terms = left.shape
    columns = right.shape[-1]
    leading = broadcast(tuple(heads), tuple(right.shape[:-2]))
    if leading is None or not onednn_favored(left, right):
        if allocate is None or leading is None:
            return left @ right
        return torch.matmul(left, right, out=allocate((*leading, rows, columns)))
    if prod(leading) == 1:
        output = _blocked_product(left.reshape(rows, terms), right.reshape(terms, columns))
        return torch.ops.aten._unsafe_view.default(output, (*leading, rows, columns))  # type: ignore[no-any-return]
    shape = (*leading, rows, columns)
    output = torch.empty(shape, dtype=torch.float32, device="cpu") if allocate is None else allocate(shape)
    for out, a, b in zip(_items(output, leading), _items(left, leading), _items(right, leading), strict=True):
        out.copy_(_blocked_product(a, b))
    return output


def onednn_favored(left: Tensor, right: Tensor) -> bool:
    """Return whether `batched` uses oneDNN."""
    large = left.shape[-2] * right.shape[-2] * right.shape[-1] >= _MIN_MULTIPLICATIONS
    return large and left.shape[-1] == right.shape[-2] and _onednn_computes(left, right)


def contiguous_rows(x: Tensor) -> Tensor:
    """Return x, made contiguous if `batched` would otherwise copy it at each product."""
    return x if x.dtype != torch.float32 or not _onednn_computes(x, x) or _has_no_gaps(x) else x.contiguous()


def _has_no_gaps(x: Tensor) -> bool:
    """Return whether the matrices have no gaps between rows; with gaps oneDNN takes a thousand times as long."""
    rows, columns = x.stride()[-2:]
    return (columns == 1 and rows == x.shape[-1]) or (rows == 1 and columns == x.shape[-2])


def _items(x: Tensor, leading: Shape) -> list[Tensor]:
    parts = [x.expand(*leading, *x.shape[-2:])]
    for _ in leading:
        parts = [item for part in parts for item in part.unbind()]
    return parts


def _blocked_product(left: Tensor, right: Tensor) -> Tensor:
    """Compute the product of two matrices in blocks of `LONGEST` terms."""
    right = right if _has_no_gaps(right) else right.contiguous()
    terms = left.shape[-1]
    if terms <= LONGEST:
        return _product(left.contiguous(), right.mT, None)
    total = None
    for start in range(0, terms, LONGEST):
        part = slice(start, start + LONGEST)
        # Some rows of a column-major matrix have gaps between columns.
        block = right[part] if right.stride(-1) == 1 else right[part].contiguous()
        term = _product(left[:, part].contiguous(), block.mT, None)
        total = term if total is None else total.add_(term)
    assert total is not None
    return total


def onednn_serves(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN computes a product x·Wᵀ: large, float32, in an eager call, where oneDNN is the faster one.

    `torch.backends.mkldnn.set_flags(False)` leaves these products to PyTorch. So do shapes that do not fit: the private
    operator checks nothing, while PyTorch's error names the shapes.
    """
    return (
        _fits(x, weight)
        and x.numel() * weight.shape[0] >= _MIN_MULTIPLICATIONS
        and _rows_are_disjoint(weight)
        and _onednn_computes(x, weight)
    )


def packed_serves(x: Tensor) -> bool:
    """Return whether a step of a loop computes x·Wᵀ with a packed weight: float32, in an eager call."""
    if torch.compiler.is_compiling():
        return False
    return _is_eager_float32(x, x) and _packed_weight_class() is not None


def _fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether the shapes of a product fit, in an eager call."""
    if torch.compiler.is_compiling():  # before sizes are tested, which would tie a traced program to them
        return False
    return weight.ndim == 2 and x.ndim > 1 and x.shape[-1] == weight.shape[1]


def _rows_are_disjoint(weight: Tensor) -> bool:
    """Return whether rows do not overlap in memory, or are all one row: oneDNN cannot describe overlapping rows."""
    (rows, columns), (by_row, by_column) = weight.shape, weight.stride()
    return 0 in (by_row, by_column) or by_row >= columns * by_column or by_column >= rows * by_row


def _can_add_bias(weight: Tensor, bias: Tensor) -> bool:
    """Return whether oneDNN can add a bias: it reads one contiguous number per column, without checking."""
    fits = bias.dtype == torch.float32 and bias.shape == weight.shape[:1]
    return fits and bias.is_contiguous() and readable(bias)


def _onednn_computes(x: Tensor, weight: Tensor) -> bool:
    return _onednn_is_faster() and _is_eager_float32(x, weight) and bool(torch.backends.mkldnn.enabled)


def _is_eager_float32(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and readable(x)
        and readable(weight)
        and not torch.is_autocast_enabled("cpu")
        and not transformed()
    )


@lru_cache
def _onednn_is_faster() -> bool:
    """Return whether oneDNN fills registers that MKL leaves unused, and its private operator works here."""
    if not mkl.leaves_wide_registers_unused():
        return False
    one = torch.ones(1, 1, dtype=torch.float32, device="cpu")
    try:
        with torch.no_grad():
            return bool(_product(one, one, None) == 1)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        if out_of_memory_text(error) is not None:
            raise
        # Another version of PyTorch may lack the private operator, or have it with other arguments.
        return False


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x if x.ndim == 2 else x.flatten(0, -2)
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        # For rows with gaps oneDNN uses its reference loops, a hundred times as slow as a copy.
        weight = weight.contiguous()
    output: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    # Not a view, so that autograd lets later operators overwrite it, as with PyTorch's own product.
    return output if x.ndim == 2 else torch.ops.aten._unsafe_view.default(output, (*x.shape[:-1], weight.shape[0]))


@final
class _Linear(torch.autograd.Function):
    """The product with its gradients, which are two more products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @by_sample
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        g_rows, x_rows = grad.flatten(0, -2), x.flatten(0, -2)
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        # PyTorch's own products have second derivatives.
        times = torch.matmul if torch.is_grad_enabled() else product
        return (
            times(g_rows, weight).view_as(x) if wants_x else None,
            times(g_rows.mT, x_rows) if wants_weight else None,
            g_rows.sum(0) if wants_bias else None,
        )


def apply_layer(
    layer: nn.Module,
    x: Tensor,
    session: DecodingSession | None = None,
    columns: slice | None = None,
    owner: Hashable = None,
) -> Tensor:
    """Return layer(x), or some columns of it.

    Args:
        layer: a plain `nn.Linear`, computed by `qkv.linalg.matmul.linear`; any other module is called.
        x: (..., M).
        session: keeps the weight of a plain layer packed.
        columns: of the output, computed alone if the layer is plain; None for all.
        owner: the key under which the session keeps those columns of the weight.

    Returns:
        (..., N).

    Example:
        >>> import torch
        >>> layer, x = nn.Linear(3, 4), torch.randn(2, 3)
        >>> torch.allclose(apply_layer(layer, x, columns=slice(1, 3)), apply_layer(layer, x)[:, 1:3], atol=1e-6)
        True
        >>> apply_layer(nn.ReLU(), torch.tensor([-1.0]))
        tensor([0.])
    """
    if not is_plain(layer, nn.Linear):
        output: Tensor = layer(x)
        return output if columns is None else output[..., columns]
    weight, bias = layer.weight, layer.bias
    if columns is None:
        return linear(x, weight, bias, cached_weight(session, layer))  # type: ignore[arg-type]
    part = None if bias is None else bias[columns]  # type: ignore[index]
    return linear(x, weight[columns], part, cached_weight(session, owner))  # type: ignore[index]
