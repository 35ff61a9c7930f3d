"""Additive attention with few queries, such as a decoder's step: forward and backward, without factors.

With one query, or a few, exponentials of every key would cost more than they save. Here tanh(a + b) is computed
directly for each pair (`qkv.compiled.tanh`), and keys are read in their original layout.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.additive.hidden_keys_kernel import hide
from qkv.algorithms.additive.row_weights_kernel import (
    IDENTITY,
    SIGMOID,
    SOFTMAX,
    divide_by_sum,
    exponentials,
    logistic,
    total_of,
)
from qkv.compiled.dropout import drop_weights, is_dropped, row_bits
from qkv.compiled.hints import prefetch, wide_registers
from qkv.compiled.kernels import helper, inlined, kernel
from qkv.compiled.row_loops import dot, largest
from qkv.compiled.tanh import features, score

# Exact in both float types; a Python float would promote float32 to float64.
ONE, ZERO = np.float32(1), np.float32(0)


@helper
def _add_values(out, s, value):
    """out += Σ s_k value_k, eight keys at a time."""
    wide_registers()
    width = out.size
    unrolled = s.size - s.size % 8
    for k in range(0, unrolled, 8):
        p0, p1, p2, p3 = s[k], s[k + 1], s[k + 2], s[k + 3]
        p4, p5, p6, p7 = s[k + 4], s[k + 5], s[k + 6], s[k + 7]
        v0, v1, v2, v3 = value[k], value[k + 1], value[k + 2], value[k + 3]
        v4, v5, v6, v7 = value[k + 4], value[k + 5], value[k + 6], value[k + 7]
        for c in range(width):
            first = (p0 * v0[c] + p1 * v1[c]) + (p2 * v2[c] + p3 * v3[c])
            out[c] += first + ((p4 * v4[c] + p5 * v5[c]) + (p6 * v6[c] + p7 * v7[c]))
    for k in range(unrolled, s.size):
        p, v = s[k], value[k]
        for c in range(width):
            out[c] += p * v[c]


@helper
def _bounds(ranges, n, q, keys):
    first, last, _, _, owner = ranges
    return max(np.int64(first[owner[n, 1], q]), 0), min(np.int64(last[owner[n, 1], q]), keys)


@inlined
def _row_scores(n, q, start, query, key, vector, value, ranges, hidden, lines, s):
    """Compute the scores of one row, starting at key `start`, with the bias added and hidden keys overwritten.

    `lines` keeps the tanh values: a line per key, or one line reused by all keys, or none.
    """
    _, _, _, bias, owner = ranges
    v = vector[owner[n, 0]]
    for k in range(s.size):
        prefetch(value[n, start + k])
        if lines.shape[0]:
            line = lines[min(k, lines.shape[0] - 1)]
            features(query[n, q], key[n, start + k], line)
            s[k] = dot(line, v)
        else:
            s[k] = score(query[n, q], key[n, start + k], v)
    if bias.size:
        first = start + max(owner[n, 4] - q, 0)
        added = bias[owner[n, 3], q if bias.shape[1] > 1 else 0, first : first + s.size]
        for k in range(s.size):
            s[k] += added[k]
    hide(s, ranges, n, q, start, hidden)


@kernel(
    "void(i8, i8, i8, F[:,:,::1], F[:,:,::1], F[:,::1], F[:,:,::1], i4[:,::1], i4[:,::1], b1[:,:,::1], F[:,:,::1],"
    " i8[:,::1], F[:,::1], u8[::1], F, F[:,:,::1], F[:,::1], F[:,::1], F[:,::1], F[::1])",
    scratch=2,
)
def forward(
    start, stop, rule, query, key, vector, value, first, last, mask, bias, owner, shift, drop, scale, out, top, total,
    lines, scratch,
):  # fmt: skip
    """Compute the rows start to stop, counted over (N, Q).

    Args:
        start, stop: the range of rows.
        query, key, vector: (N, Q, A), (N, K, A), (C, A).
        rule, value, first, last, mask, bias, owner, shift, drop, scale, out, top, total: as in
            `forward_kernel.forward`.
        lines, scratch: per-thread scratch: (0 or 1, A), and K + 64 numbers.
    """
    ranges, queries, keys = (first, last, mask, bias, owner), query.shape[1], value.shape[1]
    columns = scratch[keys : keys + 64]
    hidden = 0.0 if rule == IDENTITY else -np.inf
    for row in range(start, stop):
        n, q = row // queries, row % queries
        out[n, q] = 0
        top[n, q] = -np.inf
        total[n, q] = 0
        begin, end = _bounds(ranges, n, q, keys)
        if begin >= end:
            continue
        s = scratch[: end - begin]
        _row_scores(n, q, begin, query, key, vector, value, ranges, hidden, lines, s)
        if rule == SOFTMAX:
            top[n, q] = largest(s, top[n, q], columns)
            exponentials(s, top[n, q] if top[n, q] > -np.inf else ZERO * total[n, q])
            total[n, q] = total_of(s)
        elif rule == SIGMOID:
            logistic(s, shift[n, q])
        if drop.size:
            drop_weights(s, row_bits(drop[0], np.uint64(row)), begin, drop[1], scale)
        _add_values(out[n, q], s, value[n, begin:end])
        if rule == SOFTMAX:
            divide_by_sum(out[n, q], total[n, q])


@helper
def _score_derivatives(t, v):
    """t ← the derivative of the score with respect to a + b, from t = tanh(a + b)."""
    wide_registers()
    for c in range(t.size):
        t[c] = (ONE - t[c] * t[c]) * v[c]


@helper
def _add_products(to, g, lines):
    """to += Σ g_k lines_k in float64, four at a time."""
    wide_registers()
    unrolled = g.size - g.size % 4
    for k in range(0, unrolled, 4):
        g0, g1, g2, g3 = np.float64(g[k]), np.float64(g[k + 1]), np.float64(g[k + 2]), np.float64(g[k + 3])
        t0, t1, t2, t3 = lines[k], lines[k + 1], lines[k + 2], lines[k + 3]
        for c in range(to.size):
            to[c] += (g0 * t0[c] + g1 * t1[c]) + (g2 * t2[c] + g3 * t3[c])
    for k in range(unrolled, g.size):
        factor, t = np.float64(g[k]), lines[k]
        for c in range(to.size):
            to[c] += factor * t[c]


@helper
def _write_or_add(first, factor, x, to):
    """Write to = by·x for the first row, and accumulate to += by·x for the others."""
    wide_registers()
    if first:
        for c in range(x.size):
            to[c] = factor * x[c]
    else:
        for c in range(x.size):
            to[c] += factor * x[c]


@helper
def _score_gradient(rule, p, g, delta):
    """Return the gradient of a score from its weight p and the weight's gradient g."""
    if rule == SOFTMAX:
        return p * (g - delta)
    return g * (p * (ONE - p)) if rule == SIGMOID else g


@inlined
def _weights(n, q, start, rule, inputs, ranges, state, lines, s):
    """Recompute the weights of one row, starting at key `start`."""
    query, key, vector, value = inputs
    top, total, _, _, _, shift, _ = state
    _row_scores(n, q, start, query, key, vector, value, ranges, 0.0 if rule == IDENTITY else -np.inf, lines, s)
    if rule == SOFTMAX:
        exponentials(s, top[n, q] if top[n, q] > -np.inf else ZERO * total[n, q])
        inverse = ONE / total[n, q] if total[n, q] != 0 else ZERO * total[n, q]
        for k in range(s.size):
            s[k] *= inverse
    elif rule == SIGMOID:
        logistic(s, shift[n, q])


@helper
def _clear(d_query, d_key, d_value, ranges, n):
    """Zero the gradients that the first row does not write; those of keys and values only if requested."""
    d_query[:] = 0
    if d_value.shape[0] == 0:
        return
    begin = end = 0
    if d_query.shape[0]:
        begin, end = _bounds(ranges, n, 0, d_value.shape[1])
    end = max(begin, end)
    d_key[n, :begin] = 0
    d_key[n, end:] = 0
    d_value[n, :begin] = 0
    d_value[n, end:] = 0


@inlined
def _row(n, q, start, rule, scale, inputs, ranges, state, grads, lines, s):
    """Add one row's contributions, for its keys starting at `start`, to all gradients.

    The first row overwrites the gradients of keys and values; later rows add to them.
    """
    _, _, vector, value = inputs
    _, _, out, grad, grad_lse, _, drop = state
    d_query, d_key, d_value, d_vector, d_bias, d_shift = grads
    _, _, mask, _, owner = ranges
    needs_memory = d_value.shape[0] > 0
    _weights(n, q, start, rule, inputs, ranges, state, lines, s)
    # Summed in the same order as the products below, so that a row that sees one key has gradients of exactly zero.
    delta = dot(grad[n, q], out[n, q]) - (grad_lse[n, q] if grad_lse.size else ZERO)
    bits = row_bits(drop[0], np.uint64(n * out.shape[1] + q)) if drop.size else np.uint32(0)
    for k in range(s.size):
        at = start + k
        if mask.size and not mask[owner[n, 2], q if mask.shape[1] > 1 else 0, at]:
            s[k] = 0
            lines[k] = 0
            if needs_memory and q == 0:
                d_value[n, at] = 0
            continue
        factor = ONE * scale
        if drop.size and is_dropped(bits, at, drop[1]):
            factor = ZERO * scale
        p = s[k]
        s[k] = _score_gradient(rule, p, factor * dot(grad[n, q], value[n, at]), delta)
        if needs_memory:
            _write_or_add(q == 0, p * factor, grad[n, q], d_value[n, at])
        if d_bias.size:
            d_bias[owner[n, 3], q if d_bias.shape[1] > 1 else 0, at + max(owner[n, 4] - q, 0)] += s[k]
        if rule == SIGMOID:
            d_shift[n, q] += s[k]
    _add_products(d_vector[n], s, lines)
    for k in range(s.size):
        _score_derivatives(lines[k], vector[owner[n, 0]])
        if needs_memory:
            _write_or_add(q == 0, s[k], lines[k], d_key[n, start + k])
    _add_values(d_query[n, q], s, lines)


@kernel(
    "void(i8, i8, i8, F[:,:,::1], F[:,:,::1], F[:,::1], F[:,:,::1], i4[:,::1], i4[:,::1], b1[:,:,::1], F[:,:,::1],"
    " i8[:,::1], F[:,::1], u8[::1], F, F[:,::1], F[:,::1], F[:,:,::1], F[:,:,::1], F[:,::1],"
    " F[:,:,::1], F[:,:,::1], F[:,:,::1], f8[:,::1], F[:,:,::1], F[:,::1], F[:,::1], F[::1])",
    scratch=2,
)
def backward(
    n0, n1, rule, query, key, vector, value, first, last, mask, bias, owner, shift, drop, scale, top, total, out, grad,
    grad_lse, d_query, d_key, d_value, d_vector, d_bias, d_shift, lines, scratch,
):  # fmt: skip
    """Compute the gradients of the items n0 to n1.

    Args:
        n0, n1: the range of items.
        rule, query, ..., out: inputs and results of `forward`.
        grad, grad_lse: gradients of out (N, Q, V) and of the lse (N, Q); the second has size zero if there is none.
        d_query, d_key, d_value: written, (N, Q, A), (N, K, A), (N, K, V); the last two have no items if not requested.
        d_vector: accumulated, (N, A), float64.
        d_bias: accumulated, in the shape of the bias; size zero if not requested.
        d_shift: accumulated, (N, Q), for a sigmoid.
        lines, scratch: per-thread scratch: (keys processed together, A), and one number for each such key.
    """
    inputs, ranges = (query, key, vector, value), (first, last, mask, bias, owner)
    state = (top, total, out, grad, grad_lse, shift, drop)
    grads = (d_query, d_key, d_value, d_vector, d_bias, d_shift)
    for n in range(n0, n1):
        _clear(d_query[n], d_key, d_value, ranges, n)
        for q in range(query.shape[1]):
            begin, end = _bounds(ranges, n, q, value.shape[1])
            for start in range(begin, end, scratch.size):
                s = scratch[: min(scratch.size, end - start)]
                _row(n, q, start, rule, scale, inputs, ranges, state, grads, lines, s)
