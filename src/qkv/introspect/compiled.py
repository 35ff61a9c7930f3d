"""Statistics of softmax weights over dot products in one compiled pass."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.compiled.available import why_unavailable
from qkv.engine.mechanism import full_rank
from qkv.engine.problem import Call
from qkv.scores.pointwise import Linear
from qkv.shapes import Shape

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
    from qkv.introspect.weight_statistics import RowStatistics, add_tile

    room = torch.empty(_HEIGHT * _WIDTH, dtype=torch.float32, device="cpu")
    for start in range(0, query.shape[0], _HEIGHT):
        at = slice(start, min(start + _HEIGHT, query.shape[0]))
        inputs = (x[at].numpy() for x in (lse, *bounds, out.total, out.entropy, out.weights, out.keys))
        rows = RowStatistics(*inputs)
        low, high = int(bounds[0][at].min()), int(bounds[1][at].max())
        for column in range(low // _WIDTH * _WIDTH, high, _WIDTH):
            piece = key[column : column + _WIDTH]
            size = (at.stop - at.start, piece.shape[0])
            products = torch.mm(query[at], piece.T, out=room[: prod(size)].view(size))
            add_tile(products.numpy(), scale, column, rows, out.received[column : column + _WIDTH].numpy())


def _bounds(call: Call, keys: int) -> tuple[Tensor, Tensor]:
    first, last = call.visibility.bounds or (None, None)
    none = torch.zeros(1, dtype=torch.int32, device="cpu")
    all_of = torch.full((1,), keys, dtype=torch.int32, device="cpu")
    return none if first is None else first, all_of if last is None else last


def _flat(x: Tensor, leading: Shape) -> Tensor:
    rank = len(leading) + 2
    return full_rank(x, rank).expand(*leading, *x.shape[-2:]).reshape(prod(leading), *x.shape[-2:])


def _flat_rows(x: Tensor, leading: Shape, queries: int) -> Tensor:
    return x.expand(*leading, queries).reshape(-1, queries).contiguous()
