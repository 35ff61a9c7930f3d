"""One tile of the weights from its queries, its keys and the row state."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from qkv.algorithms.matrix.reference import scores, seen_by
from qkv.engine.position_bias import bias_tile
from qkv.engine.problem import Call
from qkv.normalizers.base import Normalizer, divide, hide
from qkv.normalizers.dense import Sigmoid
from qkv.normalizers.kinds import KNOWN
from qkv.normalizers.sparse import Entmax, clamped_power
from qkv.normalizers.steep import is_steep
from qkv.values.execution import on_host
from qkv.values.parameters import spread

LARGEST = 1 << 24
"""The most numbers that a tile's scores can take during computation (a hidden layer counts per pair)."""


SHORT = 256
"""The most keys of a row of which a part takes no longer than all of it."""


def tile(
    call: Call, kind: str, state: Callable[[], Tensor], rows: slice, columns: slice, provided: bool = False
) -> Tensor:
    """Compute the weights of some queries on some keys, exactly.

    Rows that are short, or requested whole, are normalized as they are, without the row state. A part of a longer row
    follows from its scores and the state: both are rounded, differently, so that the only visible key could weigh
    1.000003; weights that cannot exceed 1 are cut off there.

    Args:
        call: the tensors of the problem.
        kind: the normalizer.
        state: returns the row state of all rows, (..., Q), if needed; for `hard` the winning key of each row.
        rows, columns: the part to compute.
        provided: whether the state comes from the caller, so that whole rows follow from it, and can be checked.

    Returns:
        (..., rows, columns), at least float32.
    """
    rows, columns = _bounds(rows, call.query.shape[-2]), _bounds(columns, call.key.shape[-2])
    keys = call.key.shape[-2]
    normalized_here = not provided and kind != "hard" and (keys <= SHORT or columns == slice(0, keys))
    by_rows = normalized_here or _by_rows(call, kind)
    stripes = _stripes(call, by_rows, rows, columns)
    if by_rows:
        dtype = weight_type(call)
        return torch.cat([complete_rows(call, stripe)[..., columns].to(dtype) for stripe in stripes], -2)
    return torch.cat([_piece(call, kind, state(), stripe, columns) for stripe in stripes], -2)


def _bounds(part: slice, size: int) -> slice:
    """Return the same part without negative positions, which masks and biases do not take."""
    start, stop, _ = part.indices(size)
    return slice(start, max(start, stop))


def _stripes(call: Call, by_rows: bool, rows: slice, columns: slice) -> list[slice]:
    start, stop = rows.start, rows.stop
    width = call.key.shape[-2] if by_rows else columns.stop - columns.start
    depth = call.query.shape[-1] if call.score.core in ("tanh_sum", "distance") else 1
    row_size = max(1, prod(call.visibility.grid.leading) * width * depth)
    height = max(1, LARGEST // row_size)
    return [slice(at, min(at + height, stop)) for at in range(start, max(stop, start + 1), height)]


def _piece(call: Call, kind: str, state: Tensor, rows: slice, columns: slice) -> Tensor:
    dtype = weight_type(call)
    visible = call.visibility.tile(rows, columns)
    if visible is not None and visible.numel() and on_host(visible.device) and bool(visible.all()):
        visible = None  # filling masked entries takes longer than the weights
    bias = bias_tile(call.bias, rows, columns)
    piece = call._replace(query=call.query[..., rows, :], key=call.key[..., columns, :], bias=bias)
    s_QK = scores(piece)
    if kind == "hard":
        indices = torch.arange(columns.start, columns.stop, dtype=torch.int64, device=s_QK.device)
        winner = state[..., rows, None]
        w_QK = (indices == winner).to(dtype).masked_fill(winner.isnan(), torch.nan)
        return hide(w_QK.expand_as(s_QK), visible, 0)
    if visible is not None:
        # Before any arithmetic: whatever a masked score is, its weight gets no gradient from it.
        s_QK = hide(s_QK, visible, 0.0)
    # Scores and a state around 100 are subtracted in float64, where nothing is lost, and rounded afterwards.
    w_QK = _WEIGHTS[kind](call.normalizer, s_QK.double(), state[..., rows, None].double()).to(dtype)
    # Beside negative ones, which a bias can make of a sum, a weight may exceed 1.
    at_most_one = call.normalizer.convex and not (kind == "sum" and call.bias is not None)
    w_QK = w_QK.clamp(max=1) if at_most_one else w_QK
    return w_QK if visible is None else w_QK.masked_fill(~visible, 0)


def weight_type(call: Call) -> torch.dtype:
    """Return the dtype of a map's weights: that of the query, at least float32."""
    return torch.promote_types(call.query.dtype, torch.float32)


def _by_rows(call: Call, kind: str) -> bool:
    """Return whether the row state does not determine the weights, so that whole rows must be computed."""
    return kind not in KNOWN or (isinstance(call.normalizer, Entmax) and is_steep(call.normalizer.alpha))


def complete_rows(call: Call, rows: slice) -> Tensor:
    """Compute rows of weights, (..., rows, K), by the normalizer itself.

    A masked key has weight 0, in a row of NaN too.
    """
    piece = call._replace(query=call.query[..., rows, :], bias=bias_tile(call.bias, rows))
    visible = seen_by(piece, call.visibility.tile(rows, slice(None)))
    return hide(call.normalizer(scores(piece), visible), visible, 0)


def _softmax(normalizer: Normalizer, s: Tensor, lse: Tensor) -> Tensor:
    # A fully masked row: e^(s − ∞) = 0. A row with a score of ∞ is NaN, as everywhere.
    finite_or_nan = torch.where(lse == torch.inf, torch.nan, lse)
    return torch.exp(s - torch.where(lse == -torch.inf, torch.inf, finite_or_nan))


def _sum(normalizer: Normalizer, s: Tensor, total: Tensor) -> Tensor:
    return divide(s, total)


def _mean(normalizer: Normalizer, s: Tensor, count: Tensor) -> Tensor:
    return divide(s, count)


def _identity(normalizer: Normalizer, s: Tensor, nothing: Tensor) -> Tensor:
    return s


def _sigmoid(normalizer: Normalizer, s: Tensor, count: Tensor) -> Tensor:
    bias = normalizer.bias if isinstance(normalizer, Sigmoid) else None
    return torch.sigmoid(s + (-count.clamp(min=1).log() if bias is None else spread(bias)))


def _power(normalizer: Normalizer, s: Tensor, threshold: Tensor) -> Tensor:
    """max(0, (α−1)s − τ)^(1/(α−1)); sparsemax is α = 2."""
    alpha = spread(normalizer.alpha) if isinstance(normalizer, Entmax) else 2.0
    # Rounding the exponent to half precision would change every weight.
    alpha = torch.as_tensor(alpha, dtype=torch.float64, device=s.device)
    # A bias may hide a key by −inf, which times a gradient of 0 would be NaN.
    hidden = s == -torch.inf
    over = torch.where(hidden, 0.0, s) * (alpha - 1) - threshold
    w = clamped_power(torch.where(hidden, -1.0, over), 1 / (alpha - 1))
    return w.masked_fill(threshold.isnan(), torch.nan)


_WEIGHTS: dict[str, Callable[[Normalizer, Tensor, Tensor], Tensor]] = {
    "softmax": _softmax,
    "sum": _sum,
    "mean": _mean,
    "identity": _identity,
    "sigmoid": _sigmoid,
    "sparsemax": _power,
    "entmax": _power,
}
