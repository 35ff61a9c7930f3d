"""Additive attention on the CPU: scores vᵀ tanh(a + b), normalizer and weighted sum, without a (Q, K, A) tensor.

**The factored tanh.** With E = e^{2a} and F = e^{2b},

    tanh(a + b) = (EF − 1)/(EF + 1),

so both exponentials are computed once per row, and a pair (query, key) costs a few multiply-adds and a quarter of a
division for each hidden feature: n₀/d₀ + n₁/d₁ = (n₀d₁ + n₁d₀)/(d₀d₁), and likewise for four. The result is as exact as
a tanh of each sum for these reasons, which hold per item and hidden feature, over the entries that some row sees:

1. *Range.* Let R be half the spread of the narrower side, m its middle, N = round(2m·log₂e). Keys narrower, say: F =
   2^(2b·log₂e − N) and E = 2^(2a·log₂e + N); the shift by N moves powers of two from one factor to the other and
   changes no product. |log₂F| ≤ 2R·log₂e + ½. (Queries narrower: the same with N = −round(2m·log₂e).)
2. *Clamping.* tanh(x) rounds to ±1 for |x| ≥ X₀ = 9.02 (float64: 19.1). The exponent of the wider side is clamped to
   ±(2(X₀ + R)·log₂e + ½); where that changes E, |a + b| ≥ X₀ for every key of the narrower side, and tanh is ±1
   with and without the clamp. The narrower side never reaches the clamp.
3. *No infinity, no zero.* Then |log₂(EF)| ≤ 2(X₀ + 2R)·log₂e + 1, which stays below 127 (float64: 1023) while R + ½ +
   X₀ ≤ 26.7 (186). Both factors and the product are finite and normal: neither ∞·0 nor ∞/∞ can occur.
4. *Rounding.* The exponentials are computed in float64 (Cody and Waite's reduction: 2x − n·ln 2 in two exact pieces)
   and rounded once. With u the unit roundoff, EF has a relative error of at most 2u, which moves x = a + b by at most
   u, whereas rounding the sum a + b moves it by u|a + b|. All that follows — v(EF − 1), EF + 1, one division for four
   features, the sum over features — rounds numbers as large as v·tanh. Σ v − 2v/(1 + EF) would take a third fewer
   operations, but it rounds numbers as large as v(1 − tanh): with few features its errors have three times the variance
   for a and b of standard deviation 1, seven times for ¼. The product of four denominators is finite because EF is at
   most 2^28 (float64: 2^60): where max a + max b can exceed 9.7 (20.7) it is capped, which changes tanh by 2^-27
   (2^-59) at most; |v| > 2^12 uses the direct form, so that the numerator is finite too.
5. *Small activations.* Where max|a| + max|b| < ½, an absolute error of u in x is not small relative to x. There tanh is
   an odd polynomial of a + b (relative error 2^-27; in float64 always the direct form).
6. *Everything else* (a wider range, |m| > 2^17, an entry that is not finite) uses tanh of a + b in float64, so that
   NaN and infinities are propagated.

7. *Few queries.* Below QK/(Q + K) = 4 the factors would cost more than they save:
   `qkv.algorithms.additive.direct_kernel` computes each tanh directly, as in 6, which is what a decoder's step does.

**Backward.** t = (EF − 1)/(EF + 1) is recomputed; with g the gradient of the scores, v·Σg(1 − t²) over keys and
queries are the gradients of a and b, Σgt that of v. 1 − t² is the derivative of what was computed, including where it
was clamped: autograd never runs through the clamp. Scores come from the same loop as in the forward pass, so they are
bit-identical.

**Sums.** Keys are processed in tiles whose size depends on A alone. Every row of the forward pass is computed by the
same operations regardless of the rows processed with it, so its bits depend neither on the number of threads nor on
other rows; those of the backward pass depend on the number of threads.

Measured on two AVX-512 cores, B 4, Q = K = 512, A 128, V 64, against the bare loop of its divisions and
multiply-adds: `benchmarks/kernels_tanh_sum.py`.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.additive import direct
from qkv.algorithms.additive.backward_kernel import BLOCK
from qkv.algorithms.additive.backward_kernel import backward as _backward
from qkv.algorithms.additive.direct import AdditiveGradients, Rows, Upstream
from qkv.algorithms.additive.factors_kernel import factors as _factors
from qkv.algorithms.additive.few_queries import few
from qkv.algorithms.additive.forward_kernel import forward as _forward
from qkv.algorithms.additive.layout_kernel import collect as _collect
from qkv.algorithms.additive.layout_kernel import lay_out as _lay_out
from qkv.compiled import thread_pool
from qkv.engine.key_ranges import Array, KeyRanges, Weighting, summed

# X₀, the largest R + ½ + X₀, the bound on |a| + |b| for small activations, whether the polynomial is exact enough, and
# the largest a + b that needs no cap: e^{2(a+b)} stays below 2^28 (float64: 2^60).
_LIMITS = {4: np.array([9.02, 26.7, 0.5, 1.0, 9.7]), 8: np.array([19.1, 186.0, 0.5, 0.0, 20.7])}
_MOST_PARTS = 8


@final
@dataclass(frozen=True)
class Factors:
    """The factors of queries and keys, computed once per row; see `qkv.algorithms.additive.factors_kernel`.

    With few queries nothing is computed: left, right and weight are query, key and vector themselves.

    Attributes:
        left: (N, Q, R); few queries: (N, Q, A).
        right: (N, tiles, R, keys per tile); few queries: (N, 1, K, A).
        weight: (N, R); few queries: (C, A).
        count: (N, 4); few queries: (N, 0).
        feature: (N, R); few queries: (N, 0).
    """

    left: Array
    right: Array
    weight: Array
    count: NDArray[np.int64]
    feature: NDArray[np.int64]

    @property
    def few(self) -> bool:
        """Whether queries are so few that each tanh is computed directly."""
        return bool(self.count.shape[1] == 0)


def factor(query: Array, key: Array, vector: Array, ranges: KeyRanges) -> Factors:
    """Compute both exponentials of each row, and decide per hidden feature how its tanh is computed.

    Args:
        query: a, projected queries (N, Q, A), C-contiguous.
        key: b, projected keys (N, K, A).
        vector: (C, A).
        ranges: the keys that each row may see.

    Returns:
        The factors, about as large as query and key.

    Source: the module's docstring.

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b = np.zeros((1, 40, 8), np.float32), np.ones((1, 30, 8), np.float32)
        >>> factor(a, b, np.ones((1, 8), np.float32), key_ranges(a.dtype, 1, 40, 30)).right.shape
        (1, 1, 20, 32)
    """
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    if few(queries, keys):
        none = np.empty((items, 0), np.int64)
        return Factors(query, key.reshape(items, 1, keys, width), vector, none, none)
    padded_width, size = (width + 12) // 4 * 4, tile_size(keys, width)
    shapes = (items, queries, padded_width), (items, -(-keys // size), padded_width, size), (items, padded_width)
    left, right, weight = (np.empty(shape, dtype) for shape in shapes)
    count, feature = np.empty((items, 4), np.int64), np.empty((items, padded_width), np.int64)
    bounds = ranges.first, ranges.last, ranges.mask, ranges.owner
    kernel_arguments = _LIMITS[dtype.itemsize], query, key, vector, *bounds, left, right, weight, count, feature
    scratch = (
        ((queries + keys,), np.bool_),
        ((width + keys + 1,), np.int64),
        ((9, padded_width), np.float64),
        ((16, padded_width), dtype),
    )
    thread_pool.run_in_chunks(
        _factors, dtype, items, items * (queries + keys) * width * 0.001, kernel_arguments, scratch
    )
    return Factors(left, right, weight, count, feature)


def tile_size(keys: int, width: int) -> int:
    """Return the number of keys per tile, such that a tile stays in a core's L2 cache; depends on K and A alone.

    Args:
        keys: K.
        width: A.

    Returns:
        A multiple of 16.

    Example:
        >>> tile_size(4096, 128), tile_size(20, 128)
        (512, 32)
    """
    return min(max(64, min(512, 65536 // max(width, 1) // 16 * 16)), max(16, (keys + 15) // 16 * 16))


def forward(factors: Factors, value: Array, weighting: Weighting) -> Rows:
    """Compute additive attention from its factors.

    Args:
        factors: the factors of queries and keys.
        value: (N, K, V), C-contiguous.
        weighting: how scores become weights.

    Returns:
        Output and row state.

    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", appendix
        A.1.2; rescaling over tiles: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b, v = np.zeros((1, 2, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> ranges = key_ranges(a.dtype, 1, 2, 3)
        >>> forward(factor(a, b, v, ranges), np.arange(3.0).reshape(1, 3, 1), Weighting(ranges)).out.ravel()
        array([1., 1.])
    """
    if factors.few:
        return direct.forward(_inputs(factors, value), weighting)
    (items, queries, _), dtype = factors.left.shape, value.dtype
    out = np.empty((items, queries, value.shape[2]), dtype)
    top, total = np.empty((items, queries), dtype), np.empty((items, queries), dtype)
    rows, size = items * queries, factors.right.shape[3]
    factor_arrays = factors.left, factors.right, factors.weight, factors.count
    kernel_arguments = weighting.code, *factor_arrays, value, *weighting.arguments(dtype), out, top, total
    time = rows * value.shape[1] * (factors.left.shape[2] + value.shape[2] / 2) * 6e-5
    thread_pool.run_in_chunks(_forward, dtype, rows, time, kernel_arguments, (((4, size), dtype), ((64,), dtype)))
    return Rows(out, top, total)


def backward(
    factors: Factors, vector: Array, value: Array, weighting: Weighting, rows: Rows, upstream: Upstream
) -> AdditiveGradients:
    """Compute the gradients of additive attention, in memory linear in Q and K.

    Args:
        factors, value, weighting: as given to `forward`.
        vector: as given to `factor`.
        rows: the result of `forward`.
        upstream: gradients of output and lse, and which gradients to compute.

    Returns:
        The gradients.

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b, v = np.zeros((1, 2, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> weighting, value = Weighting(key_ranges(a.dtype, 1, 2, 3)), np.arange(3.0).reshape(1, 3, 1)
        >>> factors = factor(a, b, v, weighting.ranges)
        >>> rows, upstream = forward(factors, value, weighting), Upstream(np.ones((1, 2, 1)))
        >>> backward(factors, v, value, weighting, rows, upstream).value.ravel()
        array([0.66666667, 0.66666667, 0.66666667])
    """
    if factors.few:
        return direct.backward(_inputs(factors, value), weighting, rows, upstream)
    (items, queries, padded_width), dtype = factors.left.shape, value.dtype
    keys, width, size = value.shape[1], value.shape[2], factors.right.shape[3]
    time = items * queries * keys * (padded_width + width / 2) * 1.5e-4
    ranges = weighting.ranges
    boxes, parts, bias_parts = _boxes(items, queries, time, ranges if upstream.bias else None)
    tiles = np.empty((items, factors.right.shape[1], (width + 3) // 4 * 4, size), dtype)
    sums = (
        np.zeros((items, queries, padded_width), dtype),
        np.zeros((parts, *factors.right.shape), dtype),
        np.zeros((parts, *tiles.shape), dtype),
        np.zeros((parts, items, padded_width)),
    )
    d_bias = np.zeros((bias_parts, *(ranges.bias.shape if upstream.bias else (0, 0, 0))), dtype)
    d_shift = np.zeros((items, queries), dtype)
    none = np.zeros((0, 0), dtype)
    factor_arrays = factors.left, factors.right, factors.weight, factors.count
    kernel_arguments = weighting.code, *factor_arrays, tiles, *weighting.arguments(dtype)
    state = rows.top, rows.total, rows.out, upstream.out, none if upstream.lse is None else upstream.lse, keys
    code, lay_out = _backward.at(dtype), _lay_out.at(dtype)

    def lay_out_chunk(chunk: int) -> None:
        lay_out(*thread_pool.share(chunk, items, items), value, tiles)

    def work(chunk: int) -> None:
        scratch = [
            np.zeros(shape, dtype)
            for shape in ((padded_width, size), (BLOCK, size), (4, padded_width), (4, size), (size,), (5,))
        ]
        key_parts, grads = np.empty((4, 2), np.int64), np.zeros((BLOCK, width), dtype)
        code(*boxes[chunk], *kernel_arguments, *state, *sums, d_bias, d_shift, *scratch, key_parts, grads)

    thread_pool.run(lay_out_chunk, items, tiles.size * 1e-3)
    thread_pool.run(work, len(boxes), time)
    return _gradients(factors, vector, ranges, value.shape, sums, d_bias.sum(0) if upstream.bias else None, d_shift)


def _gradients(
    factors: Factors,
    vector: Array,
    ranges: KeyRanges,
    shape: tuple[int, ...],
    sums: tuple[Array, ...],
    d_bias: Array | None,
    d_shift: Array,
) -> AdditiveGradients:
    (items, queries, _), (_, keys, width), hidden = factors.left.shape, shape, vector.shape[1]
    dtype = vector.dtype
    d_query, d_key, d_value = (np.empty((items, *s), dtype) for s in ((queries, hidden), (keys, hidden), (keys, width)))
    vector_sums, ones = np.empty((items, hidden)), np.ones(width, dtype)
    code = _collect.at(dtype)

    def work(chunk: int) -> None:
        n0, n1 = thread_pool.share(chunk, items, items)
        gradients = d_query, d_key, d_value, vector_sums
        code(n0, n1, factors.feature, vector, ranges.owner, *sums, *gradients, np.arange(width), ones)

    thread_pool.run(work, items, (d_query.size + d_key.size + d_value.size) * 1e-3)
    d_vector = summed(vector_sums, ranges.owner[:, 0], len(vector))
    return AdditiveGradients(d_query, d_key, d_value, d_vector.astype(dtype), d_bias, d_shift)


def _inputs(factors: Factors, value: Array) -> tuple[Array, Array, Array, Array]:
    """Return query, key, vector and value, for few queries."""
    return factors.left, factors.right[:, 0], factors.weight, value


def _boxes(
    items: int, queries: int, time: float, bias: KeyRanges | None
) -> tuple[list[tuple[int, int, int, int, int]], int, int]:
    """Split the rows into boxes (n0, n1, q0, q1, part) that may run in parallel.

    Items share only the bias, so a box is normally one item. With too few items, or if they share a bias whose gradient
    is requested, queries are split too, and each part accumulates its own gradients of keys and values.
    """
    threads = 1 if time < thread_pool.ALONE_BELOW else thread_pool.thread_count()
    shared = bias is not None and len(np.unique(bias.owner[:, 3])) < items
    cuts = min(threads if shared else -(-threads // max(items, 1)), _MOST_PARTS, max(1, queries // 32))
    row_cuts = [round(queries * cut / cuts / 4) * 4 for cut in range(cuts)] + [queries]
    row_ranges = [(q0, q1, part) for part, (q0, q1) in enumerate(pairwise(row_cuts))]
    if shared:
        boxes = [(0, items, *cut) for cut in row_ranges]
    else:
        boxes = [(n, n + 1, *cut) for n in range(items) for cut in row_ranges]
    one_row = bias is not None and bias.bias.size > 0 and bias.bias.shape[1] == 1
    return boxes, cuts, cuts if one_row else 1
