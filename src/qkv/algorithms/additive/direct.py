"""Additive attention with few queries: runs `qkv.algorithms.additive.direct_kernel` on ranges of rows in threads."""

import numpy as np

from qkv.algorithms.additive.direct_kernel import backward as _backward
from qkv.algorithms.additive.direct_kernel import forward as _forward
from qkv.compiled import thread_pool
from qkv.compiled.target import WIDE
from qkv.engine.key_ranges import Array, Drop, KeyRanges, arguments, summed
from qkv.linalg.memory_pool import MemoryPool

_KEYS_AT_ONCE = 32
"""Keys whose tanh values stay in the L1 cache between the pass for scores and the pass for gradients."""

_SMALL = 1 << 17
"""Bytes below which glibc reuses freed memory without new pages."""

_MEMORY = MemoryPool(1 << 26)
"""For gradients of keys and values: touching new pages would take two thirds of a decoder's training step."""

Inputs = tuple[Array, Array, Array, Array]
"""query (N, Q, A), key (N, K, A), vector (C, A), value (N, K, V), C-contiguous."""


def forward(
    inputs: Inputs, ranges: KeyRanges, rule: int, shift: Array | None, drop: Drop | None
) -> tuple[Array, Array, Array]:
    """Compute the output, the largest score and the sum of exponentials of each row.

    Args:
        inputs: query, key, vector and value.
        ranges: the keys that each row may see, and the bias.
        rule: the code of the rule that maps scores to weights, as in `direct_kernel`.
        shift: (N, Q), added to the scores of a sigmoid.
        drop: dropout on the weights.

    Returns:
        The fields of `qkv.algorithms.additive.factored.Rows`.

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b, v = np.zeros((1, 1, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> value = np.arange(3.0).reshape(1, 3, 1)
        >>> forward((a, b, v, value), key_ranges(a.dtype, 1, 1, 3), 0, None, None)[0]
        array([[[1.]]])
    """
    query, key, _, value = inputs
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    out = np.empty((items, queries, value.shape[2]), dtype)
    top, total = np.empty((items, queries), dtype), np.empty((items, queries), dtype)
    rows, time = items * queries, items * queries * keys * (width * 5e-4 + value.shape[2] * 5e-5)
    kernel_arguments = rule, *inputs, *arguments(ranges, shift, drop, dtype), out, top, total
    # The backward pass recomputes scores from tanh values stored in a buffer, and divides by this pass's sum. If the
    # scores were summed in a different order there, the weights would not sum to 1. Without a buffer here the order is
    # the same only for float32 in 512-bit registers.
    direct = WIDE and dtype == np.float32
    scratch = ((0 if direct else 1, width), dtype), ((keys + 64,), dtype)
    thread_pool.run_in_chunks(_forward, dtype, rows, time, kernel_arguments, scratch)
    return out, top, total


def backward(
    inputs: Inputs,
    ranges: KeyRanges,
    rule: int,
    shift: Array | None,
    drop: Drop | None,
    rows: tuple[Array, ...],
    request: tuple[Array, Array | None, bool, bool],
) -> tuple[Array, Array | None, Array | None, Array, Array | None, Array]:
    """Compute the gradients.

    Args:
        inputs, ranges, rule, shift, drop: as given to `forward`.
        rows: the result of `forward`.
        request: gradients of output and lse, and whether to compute those of the bias, and of keys and values.

    Returns:
        The fields of `qkv.algorithms.additive.factored.AdditiveGradients`.

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b, v = np.zeros((1, 1, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> inputs, ranges = (a, b, v, np.arange(3.0).reshape(1, 3, 1)), key_ranges(a.dtype, 1, 1, 3)
        >>> rows = forward(inputs, ranges, 0, None, None)
        >>> backward(inputs, ranges, 0, None, None, rows, (np.ones((1, 1, 1)), None, False, True))[2].ravel()
        array([0.33333333, 0.33333333, 0.33333333])
    """
    query, key, vector, value = inputs
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    (out, top, total), (grad, grad_lse, bias_gradient, memory_gradient) = rows, request
    grad_lse = np.zeros((0, 0), dtype) if grad_lse is None else grad_lse
    d_query = _gradient(query)
    d_key, d_value = (_gradient(x) if memory_gradient else np.empty((0, 0, 0), dtype) for x in (key, value))
    vector_sums, d_shift = np.zeros((items, width)), np.zeros((items, queries), dtype)
    d_bias = np.zeros(ranges.bias.shape if bias_gradient else (0, 0, 0), dtype)
    grads = d_query, d_key, d_value, vector_sums, d_bias, d_shift
    kernel_arguments = rule, *inputs, *arguments(ranges, shift, drop, dtype), top, total, out, grad, grad_lse, *grads
    time = items * queries * keys * (width * 1.2e-3 + value.shape[2] * 1e-4)
    # Items that share a bias would write to its gradient concurrently.
    must_be_serial = bias_gradient and len(np.unique(ranges.owner[:, 3])) < items
    scratch = ((_KEYS_AT_ONCE, width), dtype), ((_KEYS_AT_ONCE,), dtype)
    thread_pool.run_in_chunks(_backward, dtype, items, 0.0 if must_be_serial else time, kernel_arguments, scratch)
    d_vector = summed(vector_sums, ranges.owner[:, 0], len(vector))
    memory_gradients = (d_key, d_value) if memory_gradient else (None, None)
    return d_query, *memory_gradients, d_vector.astype(dtype), d_bias if bias_gradient else None, d_shift


def _gradient(x: Array) -> Array:
    """Return an uninitialized array of the same shape and type."""
    if x.nbytes < _SMALL:
        return np.empty(x.shape, x.dtype)
    array: Array = _MEMORY.tensor(x.shape, x.dtype).numpy()
    return array
