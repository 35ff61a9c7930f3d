"""Additive attention, backward: gradients of both projections, value, vector and bias from recomputed scores.

The derivation is in `qkv.algorithms.additive.factored`. Each tile of keys is processed for four rows at a time: their
weights p and score gradients g are recomputed, then one loop over the features recomputes t = tanh(a + b) from its
factors: Σ_k g(1 − t²) is the gradient of the query side, Σ_q g(1 − t²) that of the key side, Σ g·t that of the vector.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.additive.hidden_keys_kernel import add_bias_and_hide, hide, visible_range
from qkv.algorithms.additive.row_weights_kernel import IDENTITY, SIGMOID, SOFTMAX, exponentials, logistic
from qkv.algorithms.additive.scores_kernel import ROUND, scores, small_tanh
from qkv.compiled.dropout import keep_factors, row_bits
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import estimated, helper, inlined, kernel, reduction
from qkv.compiled.tanh import tanh_in_double
from qkv.linalg.multiply_add import add_four, add_four_in_fours, add_one, add_one_in_fours

BLOCK = 32
# Exact in both float types; a Python float would promote float32 to float64.
ONE, ZERO = np.float32(1), np.float32(0)


@helper
def _score_gradients(p, g, keep, dropped, rule, total, delta):
    """Convert g in place from weight gradients to score gradients, and p to the weights that multiplied the values."""
    if rule == SOFTMAX:
        inverse = ONE / total if total != 0 else ZERO * total
        for k in range(p.size):
            p[k] *= inverse
    if dropped:
        for k in range(p.size):
            g[k] *= keep[k]
    for k in range(p.size):
        if rule == SOFTMAX:
            g[k] = p[k] * (g[k] - delta)
        elif rule == SIGMOID:
            g[k] = g[k] * (p[k] * (ONE - p[k]))
    if dropped:
        for k in range(p.size):
            p[k] *= keep[k]


@estimated
def _tanh_of(y):
    """Compute tanh(x) from y = e^2x, which is finite."""
    return (y - ONE) / (ONE + y)


@reduction
def _factored_feature(left, i, right, grads, start, stop, into, sums):
    """Accumulate the gradient sums of one factored feature for four rows."""
    wide_registers()
    e0, e1, e2, e3 = left[0, i], left[1, i], left[2, i], left[3, i]
    f, to = right[i, start:stop], into[i, start:stop]
    g0, g1, g2, g3 = grads[0, start:stop], grads[1, start:stop], grads[2, start:stop], grads[3, start:stop]
    s0 = s1 = s2 = s3 = vector_sum = ZERO * e0
    for k in range(f.size):
        t0, t1, t2, t3 = _tanh_of(e0 * f[k]), _tanh_of(e1 * f[k]), _tanh_of(e2 * f[k]), _tanh_of(e3 * f[k])
        u0, u1, u2, u3 = g0[k] * t0, g1[k] * t1, g2[k] * t2, g3[k] * t3
        x0, x1, x2, x3 = g0[k] - u0 * t0, g1[k] - u1 * t1, g2[k] - u2 * t2, g3[k] - u3 * t3
        to[k] += (x0 + x1) + (x2 + x3)
        vector_sum += (u0 + u1) + (u2 + u3)
        s0 += x0
        s1 += x1
        s2 += x2
        s3 += x3
    sums[0], sums[1], sums[2], sums[3], sums[4] = s0, s1, s2, s3, vector_sum


@reduction
def _other_feature(left, i, right, grads, start, stop, into, sums, small):
    """Accumulate the gradient sums of one small or direct feature for four rows; the direct tanh is in float64."""
    f, to = right[i, start:stop], into[i, start:stop]
    sums[4] = 0
    for j in range(4):
        g, a = grads[j, start:stop], left[j, i]
        row_sum = vector_sum = ZERO * a
        for k in range(f.size):
            t = small_tanh(a + f[k]) if small else into.dtype.type(tanh_in_double(np.float64(a) + np.float64(f[k])))
            u = g[k] * t
            x = g[k] - u * t
            to[k] += x
            vector_sum += u
            row_sum += x
        sums[j] = row_sum
        sums[4] += vector_sum


@inlined
def _features(left, right, part, into, sums, row_sums, vector_sums):
    """Accumulate all features for four rows: `row_sums` over the keys of each row, `vector_sums` over all pairs."""
    grads, count, start, stop = part
    small, direct = count[0] + count[1], count[0] + count[1] + count[2]
    for i in range(direct + count[3]):
        if i < small:
            _factored_feature(left, i, right, grads, start, stop, into, sums)
        else:
            _other_feature(left, i, right, grads, start, stop, into, sums, i < direct)
        for j in range(row_sums.shape[0]):
            row_sums[j, i] += sums[j]
        vector_sums[i] += sums[4]


@helper
def _add(into, x):
    for i in range(into.shape[0]):
        to, row = into[i], x[i]
        for k in range(to.size):
            to[k] += row[k]


@helper
def _copy(x, to):
    for i in range(x.size):
        to[i] = x[i]


@inlined
def _row(box, q, part, rule, scale, ranges, state, weights, rows, j, wanted):
    """Convert one row's scores for its part of a tile to weights, and grad·value products to score gradients."""
    n, tile, start, stop = box[0], box[3], part[0], part[1]
    top, total, out, grad, grad_lse, shift, drop = state
    at = tile * weights.shape[1] + start
    p, g, keep = weights[j, start:stop], rows[1][j, start:stop], rows[2][: stop - start]
    add_bias_and_hide(ranges, n, q, at, 0.0 if rule == IDENTITY else -np.inf, p)
    if rule == SOFTMAX:
        exponentials(p, top[n, q] if top[n, q] > -np.inf else ZERO * total[n, q])
    elif rule == SIGMOID:
        logistic(p, shift[n, q])
    if drop.size:
        keep_factors(keep, row_bits(drop[0], np.uint64(n * out.shape[1] + q)), at, drop[1], scale)
    # Summed in the same order as the products of gradient and values, so that a row that sees only one key has
    # gradients of exactly zero.
    delta, width = rows[3][:1], out.shape[2]
    delta[0] = 0
    first = (n * out.shape[1] + q) * width
    add_one_in_fours(delta, 0, 0, grad, first, 0, 1, out, first, 1, width, 1)
    if grad_lse.size:
        delta[0] -= grad_lse[n, q]
    _score_gradients(p, g, keep, drop.size > 0, rule, total[n, q], delta[0])
    if rule == IDENTITY:
        hide(g, ranges, n, q, at, 0.0)
    _add_bias_gradients(g, n, q, at, rule, ranges, wanted)


@helper
def _add_bias_gradients(g, n, q, at, rule, ranges, wanted):
    """Add the score gradients to the requested gradients of the bias and of the sigmoid's shift."""
    _, _, d_bias, d_shift = wanted
    if d_bias.size:
        first = at + max(ranges[4][n, 4] - q, 0)
        to = d_bias[ranges[4][n, 3], q if d_bias.shape[1] > 1 else 0, first : first + g.size]
        for k in range(g.size):
            to[k] += g[k]
    if rule == SIGMOID:
        for k in range(g.size):
            d_shift[n, q] += g[k]


@inlined
def _process_tile(box, rule, scale, factors, ranges, state, values, keys, key_tile, weights, rows, wanted):
    """Process a block of rows with one tile of keys, four rows at a time; fills `key_tile` with gradients of the keys.

    Returns:
        The range of the tile that any of the rows sees.
    """
    n, begin, end, tile = box
    size, parts, low, high = values.shape[1], rows[4], values.shape[1], 0
    key_tile[:] = 0
    weights[:] = 0
    for four in range(begin, end, 4):
        start, stop = size, 0
        for j in range(4):
            parts[j] = 0
            if four + j < end:
                parts[j, 0], parts[j, 1] = visible_range(
                    ranges, n, four + j, tile * size, min(size, keys - tile * size)
                )
            if parts[j, 0] < parts[j, 1]:
                start, stop = min(start, parts[j, 0]), max(stop, parts[j, 1])
        if start < stop:
            start, stop = start // ROUND * ROUND, min((stop + ROUND - 1) // ROUND * ROUND, size)
            low, high = min(low, start), max(high, stop)
            four_weights = weights[four - begin : four - begin + 4]
            _gradients_of_four(
                four, start, stop, box, rule, scale, factors, ranges, state, values, four_weights, rows, wanted
            )
            row_sums = wanted[0][four : min(four + 4, end)]
            part = rows[1], factors[3][n], start, stop
            _features(rows[0], factors[1][n, tile], part, key_tile, rows[3], row_sums, wanted[1])
    return low, high


@inlined
def _gradients_of_four(four, start, stop, box, rule, scale, factors, ranges, state, values, weights, rows, wanted):
    """Compute weights and score gradients of four rows for part of a tile; zero for keys that a row does not see."""
    n, _, end, tile = box
    score_grads, parts, grads = rows[1], rows[4], rows[5]
    scores(factors[0][n], four, end - 1, factors[1][n, tile], factors[2][n], factors[3][n], start, stop, weights)
    score_grads[:, start:stop] = 0
    size, width = values.shape[1], grads.shape[1]
    first = (four - box[1]) * width
    add_four_in_fours(score_grads, start, size, grads, first, width, 1, values, start, size, width, stop - start)
    for j in range(4):
        # Scores and products were also computed for keys that this row does not see; clear them.
        before, after = max(start, parts[j, 0]), max(start, parts[j, 1])
        weights[j, start:before] = 0
        score_grads[j, start:before] = 0
        weights[j, after:stop] = 0
        score_grads[j, after:stop] = 0
        if parts[j, 0] < parts[j, 1]:
            _copy(factors[0][n, four + j], rows[0][j])
            _row(box, four + j, parts[j], rule, scale, ranges, state, weights, rows, j, wanted)


@helper
def _load_gradients(box, grad, ranges, size, tile_size, grads):
    """Copy the output gradients of a block of rows; zero those of rows that see no key of the tile."""
    n, begin, end, tile = box
    for i in range(grads.shape[0]):
        start, stop = 0, 0
        if begin + i < end:
            start, stop = visible_range(ranges, n, begin + i, tile * tile_size, size)
        if start < stop:
            _copy(grad[n, begin + i], grads[i])
        else:
            grads[i] = 0


@helper
def _add_value_gradients(to, grads, weights, low, high):
    """Add Σ grad_v p_k over a block's rows to the value gradients of a tile, whose rows are value columns."""
    (rows, width), size, columns = grads.shape, weights.shape[1], high - low
    for v in range(0, width - width % 4, 4):
        add_four(to, v * size + low, size, grads, v, 1, width, weights, low, size, rows, columns)
    for v in range(width - width % 4, width):
        add_one(to, v * size + low, size, grads, v, 1, width, weights, low, size, rows, columns)


@kernel(
    "void(i8, i8, i8, i8, i8, i8, F[:,:,::1], F[:,:,:,::1], F[:,::1], i8[:,::1], F[:,:,:,::1], i4[:,::1], i4[:,::1],"
    " b1[:,:,::1], F[:,:,::1], i8[:,::1], F[:,::1], u8[::1], F, F[:,::1], F[:,::1], F[:,:,::1], F[:,:,::1], F[:,::1],"
    " i8, F[:,:,::1], F[:,:,:,:,::1], F[:,:,:,:,::1], f8[:,:,::1], F[:,:,:,::1], F[:,::1],"
    " F[:,::1], F[:,::1], F[:,::1], F[:,::1], F[::1], F[::1], i8[:,::1], F[:,::1])",
)
def backward(
    n0, n1, q0, q1, part, rule, left, right, weight, count, values, first, last, mask, bias, owner, shift, drop, scale,
    top, total, out, grad, grad_lse, keys, left_sums, right_sums, value_sums, vector_sums, d_bias, d_shift,
    key_tile, weights, lefts, score_grads, keep_factors, sums, parts, grads,
):  # fmt: skip
    """Accumulate the gradient contributions of the rows q0 to q1 of the items n0 to n1.

    Args:
        n0, n1, q0, q1, part: the box of rows, and its index in the first axis of the sums.
        rule, left, ..., out: inputs and results of `factors` and `forward`.
        values: (N, tiles, V rounded up to fours, keys per tile), as written by `lay_out`.
        grad, grad_lse: gradients of out (N, Q, V) and of the lse (N, Q); the second has size zero if there is none.
        keys: K.
        left_sums, right_sums, value_sums, vector_sums: accumulated: sums over keys (N, Q, R), over queries (parts, N,
            tiles, rows, keys per tile), over both (parts, N, R).
        d_bias: accumulated, (parts or 1, *shape of the bias); size zero if not requested.
        d_shift: accumulated, (N, Q), for a sigmoid.
        key_tile, weights, lefts, score_grads, keep_factors, sums, parts, grads: per-thread scratch, zeroed: (R, keys
            per tile), (BLOCK, keys per tile), (4, R), (4, keys per tile), keys per tile, 5, (4, 2) and (BLOCK, V).
    """
    factors, ranges = (left, right, weight, count), (first, last, mask, bias, owner)
    state = (top, total, out, grad, grad_lse, shift, drop)
    rows = (lefts, score_grads, keep_factors, sums, parts, grads)
    for n in range(n0, n1):
        wanted = (left_sums[n], vector_sums[part, n], d_bias[min(part, d_bias.shape[0] - 1)], d_shift)
        for begin in range(q0, q1, BLOCK):
            for tile in range(right.shape[1]):
                box = (n, begin, min(q1, begin + BLOCK), tile)
                _load_gradients(
                    box, grad, ranges, min(right.shape[3], keys - tile * right.shape[3]), right.shape[3], grads
                )
                low, high = _process_tile(
                    box, rule, scale, factors, ranges, state, values[n, tile], keys, key_tile, weights, rows, wanted
                )
                if low < high:
                    _add(right_sums[part, n, tile], key_tile)
                    _add_value_gradients(value_sums[part, n, tile], grads, weights, low, high)
