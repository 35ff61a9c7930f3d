"""Statistics of softmax weights over dot products: tile by tile, a matrix product and one compiled pass over it."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.compiled.available import why_unavailable
from qkv.engine.mechanism import full_rank
from qkv.engine.problem import Call
from qkv.scores.base import without_autocast
from qkv.scores.pointwise import Linear
from qkv.shapes import Shape

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_HEIGHT, _WIDTH = 256, 2048


class MapSums(NamedTuple):
    """The results of one pass, with the leading dimensions of the call.

    Attributes:
        received: (..., K), float64.
        total, entropy: (..., Q), float64.
        weights, keys: the n largest of each row, (..., Q, n).
    """

    received: Tensor
    total: Tensor
    entropy: Tensor
    weights: Tensor
    keys: Tensor


@final
@dataclass(frozen=True)
class RowStatistics:
    """The rows of a tile and their accumulated statistics.

    Attributes:
        lse: (R,), float64.
        first, last: int32 (R,): the keys that each row may see.
        total: Σ w, (R,), updated in place.
        entropy: −Σ w·log w, (R,), updated in place.
        best, keys: logarithms of the n largest weights in descending order, and their keys, (R, n), updated in place.
    """

    lse: Doubles
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    total: Doubles
    entropy: Doubles
    best: Floats
    keys: NDArray[np.int64]


def serves(call: Call, kind: str, count: int) -> bool:
    """Return whether the pass supports a call: dot products under softmax, at most float32, an interval mask, no bias.

    Args:
        call: the tensors of the problem.
        kind: the normalizer.
        count: number of largest weights per row.
    """
    plain = call.score.core == "dot" and isinstance(call.score.pointwise, Linear) and kind == "softmax"
    intervals = call.visibility.kind in ("all", "causal", "keys", "bounds")
    here = call.query.device.type == "cpu" and call.query.dtype != torch.float64
    return plain and intervals and here and call.bias is None and count <= 64 and why_unavailable() is None


@torch.no_grad()
def sums(call: Call, state: Tensor, shape: Shape, count: int) -> MapSums:
    """Run the pass.

    Args:
        call: the tensors of the problem, supported by `serves`.
        state: lse of all rows, (..., Q).
        shape: (..., Q, K), leading dimensions of the call.
        count: n, number of largest weights per row.

    Returns:
        The sums.
    """
    with without_autocast(call.query):
        return _sums(call, state, shape, count)


def _sums(call: Call, state: Tensor, shape: Shape, count: int) -> MapSums:
    leading, (queries, keys) = shape[:-2], shape[-2:]
    operands = call.score.prepare(call.query.float(), call.key.float())
    factor = operands.scale if isinstance(operands.scale, Tensor) else None
    query = operands.query if factor is None else operands.query * factor.float()
    flat_query, flat_key = (_flat(x, leading) for x in (query, operands.key))
    bounds = [_flat_rows(bound, leading, queries) for bound in _bounds(call, keys)]
    lse = state.detach().double().reshape(-1, queries).contiguous()  # PyTorch's own can be strided
    items = prod(leading)
    out = MapSums(
        torch.zeros(items, keys, dtype=torch.float64, device="cpu"),
        torch.zeros(items, queries, dtype=torch.float64, device="cpu"),
        torch.zeros(items, queries, dtype=torch.float64, device="cpu"),
        torch.full((items, queries, max(count, 1)), -torch.inf, dtype=torch.float32, device="cpu"),
        torch.zeros(items, queries, max(count, 1), dtype=torch.int64, device="cpu"),
    )
    scale = 1.0 if isinstance(operands.scale, Tensor) else operands.scale
    for item in range(items):
        sums_of_item = MapSums(*(x[item] for x in out))
        _item(flat_query[item], flat_key[item], scale, lse[item], [x[item] for x in bounds], sums_of_item)
    # If a row sees fewer keys than requested, the rest have weight 0.
    return MapSums(*(x.reshape(*leading, *x.shape[1:]) for x in out._replace(weights=out.weights.exp())))


def _item(query: Tensor, key: Tensor, scale: float, lse: Tensor, bounds: list[Tensor], out: MapSums) -> None:
    buffer = torch.empty(_HEIGHT * _WIDTH, dtype=torch.float32, device="cpu")
    for start in range(0, query.shape[0], _HEIGHT):
        span = slice(start, min(start + _HEIGHT, query.shape[0]))
        inputs = (x[span].numpy() for x in (lse, *bounds, out.total, out.entropy, out.weights, out.keys))
        rows = RowStatistics(*inputs)
        low, high = int(bounds[0][span].min()), int(bounds[1][span].max())
        for column in range(low // _WIDTH * _WIDTH, high, _WIDTH):
            piece = key[column : column + _WIDTH]
            size = (span.stop - span.start, piece.shape[0])
            products = torch.mm(query[span], piece.T, out=buffer[: prod(size)].view(size))
            add_tile(products.numpy(), scale, column, rows, out.received[column : column + _WIDTH].numpy())


def add_tile(products: Floats, scale: float, column: int, rows: RowStatistics, received: Doubles) -> None:
    """Add a tile to the sums of its rows and keys.

    Args:
        products: q·k, (R, C), C-contiguous; overwritten.
        scale: multiplies them.
        column: the first key of the tile.
        rows: the rows of the tile.
        received: Σ w over rows, (C,), updated in place.

    Example:
        >>> rows = RowStatistics(
        ...     np.log(np.full(1, 2.0)), np.zeros(1, np.int32), np.full(1, 2, np.int32),
        ...     np.zeros(1), np.zeros(1), np.full((1, 1), -np.inf, np.float32), np.zeros((1, 1), np.int64))
        >>> received = np.zeros(2)
        >>> add_tile(np.zeros((1, 2), np.float32), 1.0, 0, rows, received)
        >>> received.round(4), rows.entropy.round(4), np.exp(rows.best).round(4), rows.keys
        (array([0.5, 0.5]), array([0.6931]), array([[0.5]], dtype=float32), array([[0]]))
    """
    from qkv.compiled import thread_pool
    from qkv.introspect.weight_statistics_kernel import tally

    code, height = tally.at(np.float32), products.shape[0]
    time = products.size * 1e-3
    chunks = thread_pool.chunks(time, height)
    parts = np.zeros((chunks, products.shape[1]))
    sums = rows.total, rows.entropy, rows.best, rows.keys

    def work(chunk: int) -> None:
        share = thread_pool.share(chunk, chunks, height)
        code(chunk, *share, column, scale, products, rows.lse, rows.first, rows.last, parts, *sums)

    thread_pool.run(work, chunks, time)
    received += parts.sum(0)


def _bounds(call: Call, keys: int) -> tuple[Tensor, Tensor]:
    first, last = call.visibility.bounds or (None, None)
    zero = torch.zeros(1, dtype=torch.int32, device="cpu")
    count = torch.full((1,), keys, dtype=torch.int32, device="cpu")
    return zero if first is None else first, count if last is None else last


def _flat(x: Tensor, leading: Shape) -> Tensor:
    rank = len(leading) + 2
    return full_rank(x, rank).expand(*leading, *x.shape[-2:]).reshape(prod(leading), *x.shape[-2:])


def _flat_rows(x: Tensor, leading: Shape, queries: int) -> Tensor:
    return x.expand(*leading, queries).reshape(-1, queries).contiguous()
