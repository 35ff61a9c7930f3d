"""Statistics of a map's rows and keys, all computed in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from qkv.engine.problem import Call
from qkv.errors import ConfigError, ShapeError, UnsupportedError, expect_name
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
        provided: whether the state comes from the caller.
    """

    call: Call
    kind: str
    state: Tensor
    shape: Shape
    provided: bool = False


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


def gather(source: WeightSource, names: Sequence[str], count: int) -> Statistics:
    """Compute several statistics in one pass.

    Args:
        source: the matrix.
        names: some of `NAMES`.
        count: n, number of largest weights per row; 0 for none.

    Returns:
        The statistics, with the leading dimensions of the call.

    Raises:
        ConfigError: a name is unknown, or `count` exceeds the number of keys.
        UnsupportedError: entropy of weights that can be negative.
        ShapeError: rows do not sum to what the normalizer promises: the state belongs to other rows.
    """
    _check(source, names, count)
    largest = max(count, int("peak" in names))
    served = compiled.serves(source.call, source.kind, largest) and 0 not in source.shape
    # The compiled pass compares weights, and NaN is neither above nor below another.
    if served and not bool((source.state.isnan() | (source.state == torch.inf)).any()):
        sums = compiled.sums(source.call, source.state, source.shape, largest)
    else:
        sums = _by_tiles(source, "entropy" in names, largest)
    if "entropy" in names:
        expect_entropy(source, sums.entropy)
    error = sum_error(source, sums.total)
    if source.kind == "softmax" and not source.provided and 0 not in source.shape:
        sums = _renormalized(source, sums)
    return Statistics(
        sums.received if "received" in names else None,
        sums.entropy if "entropy" in names else None,
        sums.weights[..., 0] if "peak" in names else None,
        sums.total if "total" in names else None,
        sums.weights[..., :count] if count else None,
        sums.keys[..., :count] if count else None,
        error,
    )


def _renormalized(source: WeightSource, sums: compiled.MapSums) -> compiled.MapSums:
    """Scale entropies and largest weights so that rows have the promised sums: scores and row state round differently.

    If weights w become cw, −Σ cw log cw is c times the entropy, minus Σ cw times log c.
    """
    promised = _promised(source)
    assert promised is not None
    promised = promised.expand(sums.total.shape)
    usual = (sums.total > 0) & (promised > 0) & sums.total.isfinite()
    c = torch.where(usual, promised / sums.total, 1.0)
    entropy = (c * sums.entropy - torch.where(usual, promised, sums.total) * c.log()).clamp(min=0)
    weights = (sums.weights * c[..., None]).clamp(max=1).to(sums.weights.dtype)
    total = torch.where(usual, promised, sums.total)
    return sums._replace(total=total, entropy=entropy, weights=weights)


def pool(source: WeightSource, size: tuple[int, int], how: Literal["mean", "max"]) -> Tensor:
    """Return the downsampled matrix, (..., height, width).

    Raises:
        ConfigError: there are more blocks than rows or keys, or `how` is unknown.
    """
    expect_name("how", how, ("mean", "max"))
    if not all(1 <= blocks <= count for blocks, count in zip(size, source.shape[-2:], strict=True)):
        got, most = show(size), show(source.shape[-2:])
        raise ConfigError("height, width", f"from 1 up to {most}", got, "Each block must contain at least one weight.")
    tally = Pooled(source.shape, source.call.query.device, size, how, weight_type(source.call))
    with torch.no_grad():
        sweep(*source, [tally])
    return tally.result()


def sum_error(source: WeightSource, total: Tensor, rows: Tensor | None = None) -> float | None:
    """Compare the sums of rows with what the normalizer promises.

    Args:
        source: the matrix.
        total: Σ w of rows.
        rows: the indices of these rows; None for all.

    Returns:
        The largest error; None if nothing is promised.

    Raises:
        ShapeError: the error is far more than rounding.
    """
    source = source._replace(state=source.state.detach())
    promised = _promised(source)
    if promised is None or total.numel() == 0:
        return None
    promised = promised.expand(source.shape[:-1])
    promised = promised if rows is None else promised[..., rows]
    finite = total.isfinite() & promised.isfinite()
    error = float(torch.where(finite, total - promised, 0).abs().max())
    largest = float(torch.where(source.state.isfinite(), source.state, 0).abs().max())
    bound = 1e-3 + 64 * torch.finfo(torch.float32).eps * largest
    if error > bound:
        hint = "Pass the state that attention_with_state returned for this query, key and mechanism."
        got = f"sums that are off by {error:.3g}"
        raise ShapeError(
            "state", "the state of these rows, under which their weights have the expected sums", got, hint
        )
    return error


@torch.no_grad()
def _promised(source: WeightSource) -> Tensor | None:
    """Return the expected sum of the weights of each row."""
    normalizer, state = source.call.normalizer, source.state.double()
    if not normalizer.convex:
        return None
    nonempty = source.call.visibility.rows_with_keys()
    full = torch.ones_like(state) if nonempty is None else nonempty.double().expand(state.shape)
    match source.kind:
        case "softmax":
            full = full * (state > -torch.inf)
            sink = normalizer.sink if isinstance(normalizer, Softmax) else None
            if sink is None:
                return full
            limit = finite(torch.as_tensor(spread(sink, 1), dtype=torch.float64, device=state.device))
            return full * -torch.expm1(limit - finite(state))
        case "sum":
            return full * (state != 0)
        case "hard":
            return full * (state >= 0)
        case _:
            return full * state.isfinite()


def _by_tiles(source: WeightSource, entropy: bool, count: int) -> compiled.MapSums:
    device = source.call.query.device
    received, total = Received(source.shape, device), Total(source.shape, device)
    tallies: list[Tally] = [received, total]
    entropies = Entropy(source.shape, device)
    largest = Largest(source.shape, device, weight_type(source.call), max(count, 1))
    tallies += [entropies] if entropy else []
    tallies += [largest] if count else []
    with torch.no_grad():
        sweep(*source, tallies)
    return compiled.MapSums(received.result(), total.result(), entropies.result(), largest.weights, largest.keys)


def _check(source: WeightSource, names: Sequence[str], count: int) -> None:
    for name in names:
        expect_name("statistics", name, NAMES, "names of statistics")
    if not 0 <= count <= source.shape[-1]:
        hint = "A row has only as many weights as there are keys."
        raise ConfigError("topk", f"from 0 to {source.shape[-1]} keys", str(count), hint)
    if "entropy" in names:
        check_entropy(source)


def check_entropy(source: WeightSource) -> None:
    """Raise UnsupportedError if weights can be negative."""
    normalizer, score = source.call.normalizer, source.call.score
    if not (normalizer.convex or normalizer.non_negative or (score.non_negative and source.call.bias is None)):
        raise _negative(source)


def expect_entropy(source: WeightSource, entropy: Tensor) -> None:
    """Raise UnsupportedError if weights were negative, which a bias can make of a sum: their entropy is −∞."""
    if source.kind == "sum" and source.call.bias is not None and bool((entropy == -torch.inf).any()):
        raise _negative(source)


def _negative(source: WeightSource) -> UnsupportedError:
    normalizer, score = source.call.normalizer, source.call.score
    biased = " and a bias" if source.call.bias is not None else ""
    got = f"{type(score).__name__}{biased} under {type(normalizer).__name__}"
    hint = "Negative weights have no logarithm; received() and topk() accept them."
    return UnsupportedError("entropy", "weights that are never negative", got, hint)


class _Refused(torch.autograd.Function):
    """Returns its input; its backward pass raises an error that says that there is no gradient."""

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
