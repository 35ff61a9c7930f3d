"""The cores on a tile of rows and columns, forward and backward, without a tensor of (row, column, width).

A tile is `h` rows and `c` columns for some leading indices. Forward gives x, (..., h, c); backward takes the gradient
of x and gives those of the operands. Nothing here is recorded by autograd.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.linalg.matmul import batched

INNER = 1 << 18
"""The most numbers that a chunk of hidden features may hold: one MiB of float32, which stays in the cache."""

FEW_QUERIES = 32
"""Below this many queries a median of the keys takes longer than subtracting every key from every query."""

REACH = 2.0**24
"""The largest ‖q−c‖·‖k−c‖/h² for which a squared distance may be a difference of float64 products.

Its absolute error is then below 4·2⁻⁵³·2²⁴ < 2⁻²⁶, a quarter of float32's rounding of a weight.
"""


class CoreInputs(NamedTuple):
    """What a core works on in one tile.

    Attributes:
        query: (..., h, F), all leading dimensions.
        key: (..., c, F), leading dimensions of size 1 broadcast.
        vector: (..., F), for `tanh_sum`.
        center: (..., 1, F) in float64, for `distance`: about it products are exact enough; None to subtract directly.
        rooted: whether a root follows a distance, so that small ones need all their digits.
    """

    query: Tensor
    key: Tensor
    vector: Tensor | None = None
    center: Tensor | None = None
    rooted: bool = False


class CoreGradients(NamedTuple):
    """The gradients of the sides; their leading dimensions may be larger than those of what broadcast."""

    query: Tensor
    key: Tensor
    vector: Tensor | None = None


class Rule(NamedTuple):
    """A core: `forward(sides) -> x`, `backward(sides, gradient of x) -> slopes`."""

    forward: Callable[[CoreInputs], Tensor]
    backward: Callable[[CoreInputs, Tensor], CoreGradients]


def _dot(sides: CoreInputs) -> Tensor:
    return batched(sides.query, sides.key.mT)


def _dot_backward(sides: CoreInputs, g: Tensor) -> CoreGradients:
    return CoreGradients(batched(g, sides.key), batched(sides.query.mT, g).mT)


def _relu_sum(sides: CoreInputs) -> Tensor:
    return sides.query + sides.key.mT


def _relu_sum_backward(sides: CoreInputs, g: Tensor) -> CoreGradients:
    return CoreGradients(g.sum(-1, keepdim=True), g.sum(-2).unsqueeze(-1))


def _chunks(sides: CoreInputs) -> Iterator[slice]:
    """Columns in chunks whose hidden features fit the cache."""
    columns = sides.key.shape[-2]
    step = max(1, INNER // max(sides.query.numel(), 1))
    return (slice(start, min(start + step, columns)) for start in range(0, columns, step))


def _hidden(sides: CoreInputs, chunk: slice) -> Tensor:
    return torch.tanh_(sides.query[..., :, None, :] + sides.key[..., None, chunk, :])


def _tanh_sum(sides: CoreInputs) -> Tensor:
    assert sides.vector is not None
    x = sides.query.new_empty(*sides.query.shape[:-1], sides.key.shape[-2])
    for chunk in _chunks(sides):
        x[..., chunk] = (_hidden(sides, chunk) @ sides.vector[..., None, :, None]).squeeze(-1)
    return x


def _tanh_sum_backward(sides: CoreInputs, g: Tensor) -> CoreGradients:
    assert sides.vector is not None
    v = sides.vector.unsqueeze(-2)
    query = torch.zeros_like(sides.query, memory_format=torch.contiguous_format)
    key = query.new_empty(*g.shape[:-2], *sides.key.shape[-2:])
    vector = query.new_zeros(*g.shape[:-2], 1, v.shape[-1])
    for chunk in _chunks(sides):
        t = _hidden(sides, chunk)
        g_hc = g[..., chunk]
        # Row by row, then the rows: one long running sum in float32 loses half a digit more.
        vector += (g_hc.unsqueeze(-2) @ t).sum(-3)
        slope = t.square_().neg_().add_(1).mul_(g_hc.unsqueeze(-1))
        query += slope.sum(-2)
        key[..., chunk, :] = slope.sum(-3)
    return CoreGradients(query.mul_(v), key.mul_(v), vector.squeeze(-2))


def center(query: Tensor, key: Tensor, scale: float | Tensor, steepness: float = 1.0) -> Tensor | None:
    """The point about which squared distances are safe as float64 products, or None where none is.

    ‖q−k‖² = ‖q−c‖² + ‖k−c‖² − 2(q−c)·(k−c) cancels where both norms are large and their difference is small. The median
    of the keys is a center that an outlier does not move; a pair cancels only where both of its vectors are far, so
    that the smaller of the two largest norms bounds the error.

    Args:
        query: (..., Q, F).
        key: (..., K, F).
        scale: 1/h², a number or a tensor.
        steepness: by how much a kernel's slope in ‖q−k‖²/h² exceeds 1.

    Returns:
        The center (..., 1, F) in float64; None where the products would not be exact enough, and for float64 operands.
    """
    if query.dtype == torch.float64 or 0 in (*query.shape, *key.shape):
        return None
    middle = key.median(-2, keepdim=True).values.double()
    far = [(x.double() - middle).square_().sum(-1).max() for x in (query, key)]
    steepest = scale.max() if isinstance(scale, Tensor) else scale
    return middle if bool(torch.minimum(*far) * steepest * steepness <= REACH) else None


def subtraction_is_faster(query: Tensor) -> bool:
    """Return whether subtracting takes no longer than products: for narrow points, and for so few queries that the
    median of the keys alone takes longer."""
    return query.shape[-1] < 4 or query.shape[-2] < FEW_QUERIES


NEARBY = 2.0**-20
"""Below this part of ‖q‖² a squared distance has lost digits: as a sum of F + 2 float64 products, of numbers no larger
than 4‖q‖², it is off by (F + 2)·2⁻⁵¹·‖q‖² at most. From there on that is (F + 2)·2⁻³¹ of it, a roundoff of float32 for
64 features; (x + δ)^(p/2) passes no more than that part on, whatever p < 2, and so does its slope."""

_FEW = 1 << 22
"""So many numbers of pairs are gathered at once."""


def resolve(x: Tensor, query: Tensor, key: Tensor, of_query: Tensor) -> None:
    """Subtract where squared distances are small beside the norms they were made of.

    Args:
        x: ‖q−k‖² by float64 products, (..., h, c); changed in place.
        query: (..., h, F), float64.
        key: (..., c, F), float64; leading dimensions of size 1 broadcast.
        of_query: ‖q‖², (..., h, 1).
    """
    nearby = x < of_query * NEARBY
    count = int(nearby.sum())
    if count * max(query.shape[-1], 1) > min(_FEW, x.numel()):
        x.copy_(torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist").square_())
    elif count:
        *lead, row, column = nearby.nonzero(as_tuple=True)
        keys = key.expand(*x.shape[:-2], *key.shape[-2:])
        x[nearby] = (query[(*lead, row)] - keys[(*lead, column)]).square_().sum(-1)


def _about(sides: CoreInputs) -> tuple[Tensor, Tensor]:
    if sides.center is None:
        return sides.query.double(), sides.key.double()
    return sides.query.double() - sides.center, sides.key.double() - sides.center


def _distance(sides: CoreInputs) -> Tensor:
    if sides.center is None:
        return torch.cdist(sides.query, sides.key, compute_mode="donot_use_mm_for_euclid_dist").square_()
    a, b = _about(sides)
    x = (a @ b.mT).mul_(-2)
    of_query = a.square().sum(-1, keepdim=True)
    x += of_query
    x += b.square().sum(-1).unsqueeze(-2)
    if sides.rooted:
        resolve(x, a, b, of_query)
    return x.clamp_(min=0).to(sides.query.dtype)


def _distance_backward(sides: CoreInputs, g: Tensor) -> CoreGradients:
    """2 Σ g (q − k) on each side; float64 products keep what float32 would cancel."""
    if sides.query.dtype == torch.float64:
        return _subtracted_backward(sides, g)
    a, b = _about(sides)
    g = g.double()
    query = (a * g.sum(-1, keepdim=True)).sub_(g @ b).mul_(2)
    key = (b * g.sum(-2).unsqueeze(-1)).sub_(g.mT @ a).mul_(2)
    return CoreGradients(query.to(sides.query.dtype), key.to(sides.query.dtype))


def _subtracted_backward(sides: CoreInputs, g: Tensor) -> CoreGradients:
    lead = g.shape[:-2]
    a, b = sides.query.contiguous(), sides.key.expand(*lead, *sides.key.shape[-2:]).contiguous()
    if 0 in (*a.shape, *b.shape):
        return CoreGradients(torch.zeros_like(a), torch.zeros_like(b))
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    g = g * distance * 2
    back = torch.ops.aten._cdist_backward
    return CoreGradients(back(g, a, b, 2.0, distance), back(g.mT.contiguous(), b, a, 2.0, distance.mT.contiguous()))


CORES = {
    "dot": Rule(_dot, _dot_backward),
    "relu_sum": Rule(_relu_sum, _relu_sum_backward),
    "tanh_sum": Rule(_tanh_sum, _tanh_sum_backward),
    "distance": Rule(_distance, _distance_backward),
}
