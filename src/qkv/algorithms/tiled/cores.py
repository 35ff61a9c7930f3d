"""The cores on a tile, forward and backward, without a tensor of (row, column, width).

A tile is h rows and c columns for some leading indices. Forward computes x, (..., h, c); backward computes the
gradients of the operands from that of x. Autograd does not record what is done here.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.linalg.centering import NEARBY
from qkv.linalg.matmul import batched
from qkv.values.execution import on_host

INNER = 1 << 18
"""The most hidden features of a chunk: one MiB of float32, which stays in the cache."""
INNER_RESIDENT = 1 << 26
"""The same on a GPU, where small chunks would spend the time on launches: 256 MiB of float32."""

FEW_QUERIES = 32
"""Below this many queries a median of the keys takes longer than subtracting every key from every query."""


class CoreInputs(NamedTuple):
    """The operands of a core in one tile.

    Attributes:
        query: (..., h, F), all leading dimensions.
        key: (..., c, F), leading dimensions of size 1 broadcast.
        vector: (..., F), for `tanh_sum`.
        center: (..., 1, F) in float64, for `distance`: the point about which products are exact enough; None to
            subtract keys from queries directly.
        rooted: whether a root follows a distance, so that small distances need all their digits.
    """

    query: Tensor
    key: Tensor
    vector: Tensor | None = None
    center: Tensor | None = None
    rooted: bool = False


class CoreGradients(NamedTuple):
    """The gradients of the operands, not yet summed over the leading dimensions in which they broadcast."""

    query: Tensor
    key: Tensor
    vector: Tensor | None = None


class Core(NamedTuple):
    """A core: `forward(operands) -> x`, `backward(operands, gradient of x) -> gradients`."""

    forward: Callable[[CoreInputs], Tensor]
    backward: Callable[[CoreInputs, Tensor], CoreGradients]


def _dot(operands: CoreInputs) -> Tensor:
    return batched(operands.query, operands.key.mT)


def _dot_backward(operands: CoreInputs, g: Tensor) -> CoreGradients:
    return CoreGradients(batched(g, operands.key), batched(operands.query.mT, g).mT)


def _relu_sum(operands: CoreInputs) -> Tensor:
    return operands.query + operands.key.mT


def _relu_sum_backward(operands: CoreInputs, g: Tensor) -> CoreGradients:
    return CoreGradients(g.sum(-1, keepdim=True), g.sum(-2).unsqueeze(-1))


def _chunks(operands: CoreInputs) -> Iterator[slice]:
    """Divide the columns into chunks whose hidden features fit the cache, or a part of a GPU's memory."""
    columns = operands.key.shape[-2]
    inner = INNER if on_host(operands.query.device) else INNER_RESIDENT
    step = max(1, inner // max(operands.query.numel(), 1))
    return (slice(start, min(start + step, columns)) for start in range(0, columns, step))


def _hidden(operands: CoreInputs, chunk: slice) -> Tensor:
    return torch.tanh_(operands.query[..., :, None, :] + operands.key[..., None, chunk, :])


def _tanh_sum(operands: CoreInputs) -> Tensor:
    assert operands.vector is not None
    x = operands.query.new_empty(*operands.query.shape[:-1], operands.key.shape[-2])
    for chunk in _chunks(operands):
        x[..., chunk] = (_hidden(operands, chunk) @ operands.vector[..., None, :, None]).squeeze(-1)
    return x


def _tanh_sum_backward(operands: CoreInputs, g: Tensor) -> CoreGradients:
    assert operands.vector is not None
    v = operands.vector.unsqueeze(-2)
    query = torch.zeros_like(operands.query, memory_format=torch.contiguous_format)
    key = query.new_empty(*g.shape[:-2], *operands.key.shape[-2:])
    vector = query.new_zeros(*g.shape[:-2], 1, v.shape[-1])
    for chunk in _chunks(operands):
        t = _hidden(operands, chunk)
        g_hc = g[..., chunk]
        # Sum within each row first, then over rows: one long running sum in float32 loses half a digit more.
        vector += (g_hc.unsqueeze(-2) @ t).sum(-3)
        slope = t.square_().neg_().add_(1).mul_(g_hc.unsqueeze(-1))
        query += slope.sum(-2)
        key[..., chunk, :] = slope.sum(-3)
    return CoreGradients(query.mul_(v), key.mul_(v), vector.squeeze(-2))


def subtraction_is_faster(query: Tensor) -> bool:
    """Return whether subtracting keys from queries is as fast as products: for narrow points, and for few queries."""
    return query.shape[-1] < 4 or query.shape[-2] < FEW_QUERIES


_MAX_GATHERED = 1 << 22
"""The most numbers that are gathered for pairs of small distance."""


def recompute_small_distances(x: Tensor, query: Tensor, key: Tensor, query_norms: Tensor) -> None:
    """Compute squared distances again by subtraction where they are small compared with the norms.

    Args:
        x: ‖q−k‖² by float64 products, (..., h, c); updated in place.
        query: (..., h, F), float64.
        key: (..., c, F), float64; leading dimensions of size 1 broadcast.
        query_norms: ‖q‖², (..., h, 1).
    """
    small = x < query_norms * NEARBY
    count = int(small.sum())
    if count * max(query.shape[-1], 1) > min(_MAX_GATHERED, x.numel()):
        x.copy_(torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist").square_())
    elif count:
        *items, row, column = small.nonzero(as_tuple=True)
        keys = key.expand(*x.shape[:-2], *key.shape[-2:])
        x[small] = (query[(*items, row)] - keys[(*items, column)]).square_().sum(-1)


def _centered(operands: CoreInputs) -> tuple[Tensor, Tensor]:
    if operands.center is None:
        return operands.query.double(), operands.key.double()
    return operands.query.double() - operands.center, operands.key.double() - operands.center


def _distance(operands: CoreInputs) -> Tensor:
    if operands.center is None:
        return torch.cdist(operands.query, operands.key, compute_mode="donot_use_mm_for_euclid_dist").square_()
    a, b = _centered(operands)
    x = (a @ b.mT).mul_(-2)
    query_norms = a.square().sum(-1, keepdim=True)
    x += query_norms
    x += b.square().sum(-1).unsqueeze(-2)
    if operands.rooted:
        recompute_small_distances(x, a, b, query_norms)
    return x.clamp_(min=0).to(operands.query.dtype)


def _distance_backward(operands: CoreInputs, g: Tensor) -> CoreGradients:
    """Return 2 Σ g (q − k) for each operand, in float64, because in float32 the sums would cancel."""
    if operands.query.dtype == torch.float64:
        return _subtraction_backward(operands, g)
    a, b = _centered(operands)
    g = g.double()
    query = (a * g.sum(-1, keepdim=True)).sub_(g @ b).mul_(2)
    key = (b * g.sum(-2).unsqueeze(-1)).sub_(g.mT @ a).mul_(2)
    return CoreGradients(query.to(operands.query.dtype), key.to(operands.query.dtype))


def _subtraction_backward(operands: CoreInputs, g: Tensor) -> CoreGradients:
    a, b = operands.query.contiguous(), operands.key.expand(*g.shape[:-2], *operands.key.shape[-2:]).contiguous()
    if 0 in (*a.shape, *b.shape):
        return CoreGradients(torch.zeros_like(a), torch.zeros_like(b))
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    g = g * distance * 2
    cdist_backward = torch.ops.aten._cdist_backward
    return CoreGradients(
        cdist_backward(g, a, b, 2.0, distance), cdist_backward(g.mT.contiguous(), b, a, 2.0, distance.mT.contiguous())
    )


CORES = {
    "dot": Core(_dot, _dot_backward),
    "relu_sum": Core(_relu_sum, _relu_sum_backward),
    "tanh_sum": Core(_tanh_sum, _tanh_sum_backward),
    "distance": Core(_distance, _distance_backward),
}
