"""One tile of the weights from its queries, its keys and the row state."""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from qkv.algorithms.matrix.reference import divides_exponentials, scores, seen_by, shares
from qkv.engine.position_bias import bias_tile
from qkv.engine.problem import Call
from qkv.normalizers.base import Normalizer, divide, hide
from qkv.normalizers.dense import Sigmoid
from qkv.normalizers.kinds import KNOWN
from qkv.normalizers.sparse import Entmax, clamped_power
from qkv.normalizers.steep import is_steep
from qkv.values.parameters import spread

LARGEST = 1 << 24
"""The most numbers that a tile's scores can take during computation (a hidden layer counts per pair)."""


def tile(call: Call, kind: str, state: Tensor, rows: slice, columns: slice) -> Tensor:
    """Compute the weights of some queries on some keys, exactly.

    Args:
        call: the tensors of the problem.
        kind: the normalizer.
        state: row state of all rows, (..., Q); for `hard` the winning key of each row.
        rows, columns: the part to compute.

    Returns:
        (..., rows, columns).
    """
    rows, columns = _places(rows, call.query.shape[-2]), _places(columns, call.key.shape[-2])
    return torch.cat([_piece(call, kind, state, stripe, columns) for stripe in _stripes(call, kind, rows, columns)], -2)


def _places(part: slice, size: int) -> slice:
    """The same part without negative numbers, which masks and biases know nothing of."""
    start, stop, _ = part.indices(size)
    return slice(start, max(start, stop))


def _stripes(call: Call, kind: str, rows: slice, columns: slice) -> list[slice]:
    start, stop = rows.start, rows.stop
    width = columns.stop - columns.start if not _by_rows(call, kind) else call.key.shape[-2]
    depth = call.query.shape[-1] if call.score.core in ("tanh_sum", "distance") else 1
    each = max(1, prod(call.visibility.grid.leading) * width * depth)
    height = max(1, LARGEST // each)
    return [slice(at, min(at + height, stop)) for at in range(start, max(stop, start + 1), height)]


def _piece(call: Call, kind: str, state: Tensor, rows: slice, columns: slice) -> Tensor:
    if _by_rows(call, kind):
        return whole_rows(call, rows)[..., columns].to(state.dtype)
    visible = call.visibility.tile(rows, columns)
    if visible is not None and visible.numel() and bool(visible.all()):
        visible = None  # filling masked entries takes longer than the weights
    if divides_exponentials(call) and _faint(state[..., rows]):
        return whole_rows(call, rows)[..., columns].to(state.dtype)
    bias = bias_tile(call.bias, rows, columns)
    piece = call._replace(query=call.query[..., rows, :], key=call.key[..., columns, :], bias=bias)
    s_QK = scores(piece)
    if kind == "hard":
        places = torch.arange(columns.start, columns.stop, dtype=torch.int64, device=s_QK.device)
        return hide((places == state[..., rows, None]).to(s_QK.dtype).expand_as(s_QK), visible, 0)
    w_QK = _WEIGHTS[kind](call.normalizer, s_QK.to(state.dtype), state[..., rows, None])
    return w_QK if visible is None else w_QK.masked_fill(~visible, 0)


def _by_rows(call: Call, kind: str) -> bool:
    """Return whether the row state does not determine the weights, so that whole rows must be computed."""
    return kind not in KNOWN or (isinstance(call.normalizer, Entmax) and is_steep(call.normalizer.alpha))


def whole_rows(call: Call, rows: slice) -> Tensor:
    """Compute some rows of weights on all keys, (..., rows, K), with the normalizer itself."""
    piece = call._replace(query=call.query[..., rows, :], bias=bias_tile(call.bias, rows))
    if divides_exponentials(call):
        return shares(piece, call.visibility.tile(rows, slice(None)))
    return call.normalizer(scores(piece), seen_by(piece, call.visibility.tile(rows, slice(None))))


def _faint(total: Tensor) -> bool:
    """Return whether a sum is subnormal and has lost digits."""
    return bool(((total > 0) & (total < torch.finfo(total.dtype).tiny)).any())


def _softmax(normalizer: Normalizer, s: Tensor, lse: Tensor) -> Tensor:
    # A fully masked row: e^(s − ∞) = 0.
    return torch.exp(s - torch.where(lse == -torch.inf, torch.inf, lse))


def _sum(normalizer: Normalizer, s: Tensor, total: Tensor) -> Tensor:
    return divide(s, total)


def _mean(normalizer: Normalizer, s: Tensor, count: Tensor) -> Tensor:
    return divide(s, count)


def _identity(normalizer: Normalizer, s: Tensor, nothing: Tensor) -> Tensor:
    return s


def _sigmoid(normalizer: Normalizer, s: Tensor, count: Tensor) -> Tensor:
    own = normalizer.bias if isinstance(normalizer, Sigmoid) else None
    return torch.sigmoid(s + (-count.clamp(min=1).log() if own is None else spread(own)))


def _power(normalizer: Normalizer, s: Tensor, threshold: Tensor) -> Tensor:
    """max(0, (α−1)s − τ)^(1/(α−1)); sparsemax is α = 2."""
    alpha = spread(normalizer.alpha) if isinstance(normalizer, Entmax) else 2.0
    # Rounding the exponent to half precision would change every weight.
    alpha = torch.as_tensor(alpha, dtype=torch.float64, device=s.device)
    return clamped_power(s * (alpha - 1) - threshold, 1 / (alpha - 1)).to(s.dtype)


_WEIGHTS: dict[str, Callable[[Normalizer, Tensor, Tensor], Tensor]] = {
    "softmax": _softmax,
    "sum": _sum,
    "mean": _mean,
    "identity": _identity,
    "sigmoid": _sigmoid,
    "sparsemax": _power,
    "entmax": _power,
}
