"""Rows whose weights are small on average, of which the sums of `windows_kernel` lose digits: summed pair by pair.

A parabola or triangle is summed there as a polynomial whose terms are several times as large as the kernel at its
center: n weights are off by a few u·n in total (u, a roundoff of float64), however small they are. Near the edge of the
support, 1 − d² and 1 − |d| are far below 1, and dividing a row by its small total magnifies that error. So rows whose
weights are below `LEAST` on average are computed here from each of their own pairs: a weight f is then off by a few u,
as that of the equation is, and the sums by no more than its own are. In the backward pass these rows give the kernel
nothing to sum, because their factors 1/Σf would reach all keys near them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.sorted.two_pointer_parallel import Doubles, Indices, Numbers, Points, SideSums, Support
from qkv.algorithms.sorted.windows_kernel import PARABOLA

LEAST = 1 / 4
"""The average weight below which a row is light."""
_PAIRS = 2**18
"""The most numbers, pairs times columns of values, that are computed together."""


class LightRows(NamedTuple):
    """The light rows of a call.

    Attributes:
        rows: their queries' indices, (L,).
        begins, ends: the range of each one's keys, in the order of the keys, (L,).
    """

    rows: NDArray[np.int64]
    begins: Indices
    ends: Indices


class LightGradients(NamedTuple):
    """Gradients from the light rows.

    Attributes:
        a: of their queries, (L,).
        scale: of 1/h², the part of each row, (L,).
        b: of all keys, (R·K,).
        value: of all values, (R·K, V).
    """

    a: Doubles
    scale: Doubles
    b: Doubles
    value: Doubles


class _Pairs(NamedTuple):
    """Some pairs of light rows with their keys.

    Attributes:
        part: which of the light rows, a slice.
        starts: the first pair of each of these rows.
        row: the row of each pair, counted within the part.
        query, key: indices of each pair.
        f, slope, scale_slope: the weight, its derivative by the query, and that by 1/h².
    """

    part: slice
    starts: NDArray[np.int64]
    row: NDArray[np.int64]
    query: NDArray[np.int64]
    key: Indices
    f: Doubles
    slope: Doubles
    scale_slope: Doubles


def find(kernel_sums: SideSums) -> LightRows | None:
    """Find the light rows.

    Args:
        kernel_sums: normalized sums of `two_pointer_parallel.windows`, with queries as targets.

    Returns:
        The rows; None if there are none.
    """
    begins, ends = kernel_sums.begins, kernel_sums.ends
    rows = np.flatnonzero(kernel_sums.totals < LEAST * (ends - begins))
    return LightRows(rows, begins[rows], ends[rows]) if rows.size else None


def sums(support: Support, queries: Points, keys: Points, value: Numbers, light: LightRows) -> tuple[Doubles, Doubles]:
    """Return Σ f v / Σ f and Σ f of the light rows.

    Args:
        support: the kernel.
        queries, keys: their coordinates.
        value: (R·K, V).
        light: the rows.

    Returns:
        (L, V) and (L,).

    Example:
        >>> from qkv.algorithms.sorted.two_pointer_parallel import Points
        >>> a, b = Points(np.zeros(1), np.zeros(1, np.uint64), np.ones(1, np.uint64)), np.array([0.99, 2.0])
        >>> keys = Points(b, np.array([0, 1], np.uint64), np.array([2], np.uint64))
        >>> light = LightRows(np.array([0]), np.array([0], np.uint64), np.array([1], np.uint64))
        >>> sums(Support(PARABOLA, np.ones(1)), a, keys, np.array([[5.0], [7.0]]), light)
        (array([[5.]]), array([0.0199]))
    """
    outputs, totals = np.empty((light.rows.size, value.shape[1])), np.empty(light.rows.size)
    for pairs in _parts(support, queries, keys, light, value.shape[1]):
        total = np.add.reduceat(pairs.f, pairs.starts)
        # Weights that sum to 1 first: products with f may underflow.
        weights = pairs.f * inverse(total)[pairs.row]
        outputs[pairs.part] = np.add.reduceat(weights[:, None] * value[pairs.key], pairs.starts)
        totals[pairs.part] = total
    return outputs, totals


def gradients(
    support: Support,
    queries: Points,
    keys: Points,
    value: Numbers,
    light: LightRows,
    factor: Doubles,
    grad: Numbers,
    extra: Doubles,
) -> LightGradients:
    """Return what the light rows add to the gradients.

    Args:
        support: the kernel.
        queries, keys: their coordinates.
        value: (R·K, V).
        light: the rows.
        factor: 1/Σf of each query, (R·Q,).
        grad: gradients of the output, (R·Q, V).
        extra: what is added to each product of a value with the output's gradient, (R·Q,).

    Returns:
        The gradients.
    """
    d_a, d_scale = np.empty(light.rows.size), np.empty(light.rows.size)
    d_b, d_value = np.zeros(keys.coordinates.size), np.zeros(value.shape)
    for pairs in _parts(support, queries, keys, light, value.shape[1]):
        row_grad, by = grad[pairs.query].astype(np.float64), factor[pairs.query]
        d_f = ((row_grad * value[pairs.key]).sum(-1) + extra[pairs.query]) * by
        d_a[pairs.part] = np.add.reduceat(pairs.slope * d_f, pairs.starts)
        d_scale[pairs.part] = np.add.reduceat(pairs.scale_slope * d_f, pairs.starts)
        order = pairs.key.argsort(kind="stable")
        touched, starts = np.unique(pairs.key[order], return_index=True)
        d_b[touched] -= np.add.reduceat((pairs.slope * d_f)[order], starts)
        d_value[touched] += np.add.reduceat(((pairs.f * by)[:, None] * row_grad)[order], starts)
    return LightGradients(d_a, d_scale, d_b, d_value)


def _parts(support: Support, queries: Points, keys: Points, light: LightRows, columns: int) -> Iterator[_Pairs]:
    """Yield the pairs of the light rows, a bounded number at a time; a row is never divided."""
    counts = (light.ends - light.begins).astype(np.int64)
    last = counts.cumsum()
    start, most = 0, max(1, _PAIRS // max(1, columns))
    while start < counts.size:
        before = int(last[start] - counts[start])
        stop = max(start + 1, int(np.searchsorted(last, before + most, side="right")))
        yield _pairs(support, queries, keys, light, slice(start, stop), counts[start:stop])
        start = stop


def _pairs(
    support: Support, queries: Points, keys: Points, light: LightRows, part: slice, counts: NDArray[np.int64]
) -> _Pairs:
    starts = counts.cumsum() - counts
    row = np.arange(counts.size).repeat(counts)
    within = np.arange(row.size) - starts[row]
    query = light.rows[part][row]
    key = keys.order[light.begins[part].astype(np.int64)[row] + within]
    distance = queries.coordinates[query].astype(np.float64) - keys.coordinates[key]
    scale = support.scale[query // (queries.coordinates.size // queries.counts.size)]
    # In the dtype of the coordinates a pair may lie within the support, and in float64 beyond it.
    # Divided by h², not multiplied by 1/h²: at a distance of exactly h the weight is 0.
    x = distance * distance / (1 / scale)
    if support.kind == PARABOLA:
        f, slope, scale_slope = np.maximum(1 - x, 0.0), -2 * scale * distance, -(distance * distance)
    else:
        per_width = np.sqrt(scale)
        f, slope = np.maximum(1 - np.sqrt(x), 0.0), -np.sign(distance) * per_width
        scale_slope = -abs(distance) / per_width / 2
    near = f > 0
    return _Pairs(part, starts, row, query, key, f, np.where(near, slope, 0.0), np.where(near, scale_slope, 0.0))


def inverse(total: Doubles) -> Doubles:
    """Return 1/total, and 0 for a total of 0."""
    result: Doubles = np.divide(1.0, total, out=np.zeros_like(total), where=total != 0)
    return result
