"""Additive attention where queries are few: shares the rows of `qkv.kernels.tanh_direct` among threads."""

import numpy as np

from qkv.kernels import pool
from qkv.kernels.sight import Array, Drop, Sight, arguments, summed
from qkv.kernels.tanh_direct import backward as _backward
from qkv.kernels.tanh_direct import forward as _forward

_TOGETHER = 32
"""Keys whose tanhs stay in the first cache between the pass for scores and that for gradients."""

Inputs = tuple[Array, Array, Array, Array]
"""query (N, Q, A), key (N, K, A), vector (C, A), value (N, K, V), C-contiguous."""


def forward(
    inputs: Inputs, sight: Sight, rule: int, shift: Array | None, drop: Drop | None
) -> tuple[Array, Array, Array]:
    """Compute output, largest score and sum of each row.

    Args:
        inputs: query, key, vector and value.
        sight: what each row may see, and the bias.
        rule: the number of the rule.
        shift: (N, Q), added to the scores of a sigmoid.
        drop: dropout on the weights.

    Returns:
        As the fields of `qkv.kernels.tanh_sum.Rows`.

    Example:
        >>> from qkv.kernels.sight import see
        >>> a, b, v = np.zeros((1, 1, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> value = np.arange(3.0).reshape(1, 3, 1)
        >>> forward((a, b, v, value), see(a.dtype, 1, 1, 3), 0, None, None)[0]
        array([[[1.]]])
    """
    query, key, _, value = inputs
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    out = np.empty((items, queries, value.shape[2]), dtype)
    top, total = np.empty((items, queries), dtype), np.empty((items, queries), dtype)
    code, given, rows = _forward.at(dtype), arguments(sight, shift, drop, dtype), items * queries
    time = rows * keys * (width * 5e-4 + value.shape[2] * 5e-5)
    chunks = pool.chunks(time, rows)

    def work(chunk: int) -> None:
        start, stop = pool.share(chunk, chunks, rows)
        lines = np.empty((1, width), dtype)
        code(start, stop, rule, *inputs, *given, out, top, total, lines, np.empty(keys + 64, dtype))

    pool.run(work, chunks, time)
    return out, top, total


def backward(
    inputs: Inputs,
    sight: Sight,
    rule: int,
    shift: Array | None,
    drop: Drop | None,
    rows: tuple[Array, ...],
    wanted: tuple[Array, Array | None, bool],
) -> tuple[Array, Array, Array, Array, Array | None, Array]:
    """Compute the gradients.

    Args:
        inputs, sight, rule, shift, drop: as given to `forward`.
        rows: what `forward` gave.
        wanted: gradients of output and lse, and whether the gradient of the bias is wanted.

    Returns:
        As the fields of `qkv.kernels.tanh_sum.Gradients`.

    Example:
        >>> from qkv.kernels.sight import see
        >>> a, b, v = np.zeros((1, 1, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> inputs, sight = (a, b, v, np.arange(3.0).reshape(1, 3, 1)), see(a.dtype, 1, 1, 3)
        >>> rows = forward(inputs, sight, 0, None, None)
        >>> backward(inputs, sight, 0, None, None, rows, (np.ones((1, 1, 1)), None, False))[2].ravel()
        array([0.33333333, 0.33333333, 0.33333333])
    """
    query, key, vector, value = inputs
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    (out, top, total), (grad, grad_lse, bias_gradient) = rows, wanted
    grad_lse = np.zeros((0, 0), dtype) if grad_lse is None else grad_lse
    d_query, d_key, d_value = (np.zeros(x.shape, dtype) for x in (query, key, value))
    along, d_shift = np.zeros((items, width)), np.zeros((items, queries), dtype)
    d_bias = np.zeros(sight.bias.shape if bias_gradient else (0, 0, 0), dtype)
    code, given = _backward.at(dtype), arguments(sight, shift, drop, dtype)
    # Items that share a bias would write to its gradient at once.
    alone = bias_gradient and len(np.unique(sight.owner[:, 3])) < items
    time = items * queries * keys * (width * 1.2e-3 + value.shape[2] * 1e-4)
    chunks = 1 if alone else pool.chunks(time, items)

    def work(chunk: int) -> None:
        n0, n1 = pool.share(chunk, chunks, items)
        grads = d_query, d_key, d_value, along, d_bias, d_shift
        scratch = np.empty((_TOGETHER, width), dtype), np.empty(_TOGETHER, dtype)
        code(n0, n1, rule, *inputs, *given, top, total, out, grad, grad_lse, *grads, *scratch)

    pool.run(work, chunks, time)
    d_vector = summed(along, sight.owner[:, 0], len(vector))
    return d_query, d_key, d_value, d_vector.astype(dtype), d_bias if bias_gradient else None, d_shift
