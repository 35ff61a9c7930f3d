"""Statistics of a map's rows and keys, all computed in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from qkv.engine.problem import Call
from qkv.errors import ConfigError, ShapeError, UnsupportedError, nearest
from qkv.introspect import compiled
from qkv.introspect.sweep import Entropy, Largest, Pooled, Received, Tally, Total, sweep
from qkv.introspect.tiles import weight_type
from qkv.normalizers.dense import Softmax
from qkv.shapes import Shape, show
from qkv.values.parameters import finite, spread

NAMES = ("received", "entropy", "peak", "total")


class WeightSource(NamedTuple):
    """A lazy matrix of weights and what computes it.

    Attributes:
        call: the tensors of the problem.
        kind: the normalizer.
        state: row state of all rows, (..., Q); for `hard` the winning key of each row.
        shape: (..., Q, K), leading dimensions of the call.
        given: whether the state comes from the caller.
    """

    call: Call
    kind: str
    state: Tensor
    shape: Shape
    given: bool = False


@final
@dataclass(frozen=True, eq=False)
class Statistics:
    """The results of one pass over a map; None for statistics that were not requested.

    Attributes:
        received: Σ_i w_ij of each key, (..., K), float64.
        entropy: −Σ_j w_ij log w_ij of each row in nats, (..., Q), float64.
        peak: the largest weight of each row, (..., Q).
        total: Σ_j w_ij of each row, (..., Q), float64.
        weights, keys: the n largest weights of each row in descending order, and their keys, (..., Q, n); ties go to
            earlier keys. The keys of zero weights are arbitrary.
        error: the largest |Σ_j w_ij − what the normalizer promises| over all rows; None if it promises nothing.
    """

    received: Tensor | None = None
    entropy: Tensor | None = None
    peak: Tensor | None = None
    total: Tensor | None = None
    weights: Tensor | None = None
    keys: Tensor | None = None
    error: float | None = None


def gather(whole: WeightSource, names: Sequence[str], count: int) -> Statistics:
    """Compute several statistics in one pass.

    Args:
        whole: the matrix.
        names: some of `NAMES`.
        count: n, number of largest weights per row; 0 for none.

    Returns:
        The statistics, with the leading dimensions of the call.

    Raises:
        ConfigError: a name is unknown, or `count` exceeds the number of keys.
        UnsupportedError: entropy of weights that can be negative.
        ShapeError: rows do not sum to what the normalizer promises: the state belongs to other rows.
    """
    _check(whole, names, count)
    kept = max(count, int("peak" in names))
    if compiled.serves(whole.call, whole.kind, kept) and 0 not in whole.shape:
        found = compiled.sums(whole.call, whole.state, whole.shape, kept)
    else:
        found = _by_tiles(whole, "entropy" in names, kept)
    error = trouble(whole, found.total)
    if whole.kind == "softmax" and not whole.given and 0 not in whole.shape:
        found = _renormalized(whole, found)
    return Statistics(
        found.received if "received" in names else None,
        found.entropy if "entropy" in names else None,
        found.weights[..., 0] if "peak" in names else None,
        found.total if "total" in names else None,
        found.weights[..., :count] if count else None,
        found.keys[..., :count] if count else None,
        error,
    )


def _renormalized(whole: WeightSource, found: compiled.MapSums) -> compiled.MapSums:
    """Divide what rows hold by the sum of their weights: scores here and in the row state were rounded differently.

    If weights w become cw, −Σ cw log cw is c times the entropy, minus Σ cw times log c.
    """
    promised = _promised(whole)
    assert promised is not None
    promised = promised.expand(found.total.shape)
    usual = (found.total > 0) & (promised > 0) & found.total.isfinite()
    c = torch.where(usual, promised / found.total, 1.0)
    entropy = (c * found.entropy - torch.where(usual, promised, found.total) * c.log()).clamp(min=0)
    weights = (found.weights * c[..., None]).clamp(max=1).to(found.weights.dtype)
    total = torch.where(usual, promised, found.total)
    return found._replace(total=total, entropy=entropy, weights=weights)


def pool(whole: WeightSource, size: tuple[int, int], how: Literal["mean", "max"]) -> Tensor:
    """Return the downsampled matrix, (..., height, width).

    Raises:
        ConfigError: there are more blocks than rows or keys, or `how` is unknown.
    """
    if how not in ("mean", "max"):
        raise ConfigError("how", '"mean" or "max"', repr(how), nearest(str(how), ("mean", "max")))
    if not all(1 <= blocks <= count for blocks, count in zip(size, whole.shape[-2:], strict=True)):
        got, most = show(size), show(whole.shape[-2:])
        raise ConfigError("height, width", f"from 1 up to {most}", got, "Each block must contain at least one weight.")
    tally = Pooled(whole.shape, whole.call.query.device, size, how, weight_type(whole.call))
    with torch.no_grad():
        sweep(*whole, [tally])
    return tally.result()


def trouble(whole: WeightSource, total: Tensor, rows: Tensor | None = None) -> float | None:
    """Compare the sums of rows with what the normalizer promises.

    Args:
        whole: the matrix.
        total: Σ w of rows.
        rows: the indices of these rows; None for all.

    Returns:
        The largest error; None if nothing is promised.

    Raises:
        ShapeError: the error is far more than rounding.
    """
    whole = whole._replace(state=whole.state.detach())
    promised = _promised(whole)
    if promised is None or total.numel() == 0:
        return None
    promised = promised.expand(whole.shape[:-1])
    promised = promised if rows is None else promised[..., rows]
    finite = total.isfinite() & promised.isfinite()
    error = float(torch.where(finite, total - promised, 0).abs().max())
    largest = float(torch.where(whole.state.isfinite(), whole.state, 0).abs().max())
    bound = 1e-3 + 64 * torch.finfo(torch.float32).eps * largest
    if error > bound:
        hint = "Pass the state that attention_with_state returned for this query, key and mechanism."
        got = f"sums that are off by {error:.3g}"
        raise ShapeError(
            "state", "the state of these rows, under which their weights have the expected sums", got, hint
        )
    return error


@torch.no_grad()
def _promised(whole: WeightSource) -> Tensor | None:
    """Return the expected sum of the weights of each row."""
    normalizer, state = whole.call.normalizer, whole.state.double()
    if not normalizer.convex:
        return None
    seeing = whole.call.visibility.rows_with_keys()
    full = torch.ones_like(state) if seeing is None else seeing.double().expand(state.shape)
    match whole.kind:
        case "softmax":
            full = full * (state > -torch.inf)
            sink = normalizer.sink if isinstance(normalizer, Softmax) else None
            if sink is None:
                return full
            own = finite(torch.as_tensor(spread(sink, 1), dtype=torch.float64, device=state.device))
            return full * -torch.expm1(own - finite(state))
        case "sum":
            return full * (state != 0)
        case "hard":
            return full * (state >= 0)
        case _:
            return full * state.isfinite()


def _by_tiles(whole: WeightSource, entropy: bool, count: int) -> compiled.MapSums:
    device = whole.call.query.device
    received, total = Received(whole.shape, device), Total(whole.shape, device)
    tallies: list[Tally] = [received, total]
    bits = Entropy(whole.shape, device)
    largest = Largest(whole.shape, device, weight_type(whole.call), max(count, 1))
    tallies += [bits] if entropy else []
    tallies += [largest] if count else []
    with torch.no_grad():
        sweep(*whole, tallies)
    return compiled.MapSums(received.result(), total.result(), bits.result(), largest.weights, largest.keys)


def _check(whole: WeightSource, names: Sequence[str], count: int) -> None:
    for name in names:
        if name not in NAMES:
            raise ConfigError("statistics", "names of statistics", repr(name), nearest(name, NAMES))
    if not 0 <= count <= whole.shape[-1]:
        hint = "A row has only as many weights as there are keys."
        raise ConfigError("topk", f"from 0 to {whole.shape[-1]} keys", str(count), hint)
    if "entropy" in names:
        check_entropy(whole)


def check_entropy(whole: WeightSource) -> None:
    """Raise UnsupportedError if weights can be negative."""
    normalizer = whole.call.normalizer
    if not (normalizer.convex or normalizer.non_negative or whole.call.score.non_negative):
        got = f"{type(whole.call.score).__name__} under {type(normalizer).__name__}"
        hint = "Negative weights have no logarithm; received() and topk() accept them."
        raise UnsupportedError("entropy", "weights that are never negative", got, hint)


class _Refused(torch.autograd.Function):
    """Returns its input; its backward pass raises, saying that there is no gradient."""

    @staticmethod
    def forward(ctx: Any, name: str, result: Tensor, *anchors: Tensor) -> Tensor:
        ctx.name = name
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        hint = "received() and entropy() have gradients; so has any tile, amap[..., rows, keys]."
        raise UnsupportedError(ctx.name, "no gradient asked of it", "a backward pass", hint)


def without_gradient(name: str, result: Tensor, anchors: Sequence[Tensor]) -> Tensor:
    """Make differentiating a result an error that names the differentiable alternatives."""
    return _Refused.apply(name, result, *anchors) if anchors else result  # type: ignore[no-untyped-call]
