"""Additive attention with few queries: runs `qkv.algorithms.additive.direct_kernel` on ranges of rows in threads."""

from typing import NamedTuple

import numpy as np

from qkv.algorithms.additive.direct_kernel import backward as _backward
from qkv.algorithms.additive.direct_kernel import forward as _forward
from qkv.compiled import thread_pool
from qkv.compiled.target import WIDE
from qkv.engine.key_ranges import Array, Weighting, summed
from qkv.linalg.memory_pool import MemoryPool

_KEYS_AT_ONCE = 32
"""Keys whose tanh values stay in the L1 cache between the pass for scores and the pass for gradients."""

_SMALL = 1 << 17
"""Bytes below which glibc reuses freed memory without new pages."""

_MEMORY = MemoryPool(1 << 26)
"""For gradients of keys and values: touching new pages would take two thirds of a decoder's training step."""

Inputs = tuple[Array, Array, Array, Array]
"""query (N, Q, A), key (N, K, A), vector (C, A), value (N, K, V), C-contiguous."""


class Rows(NamedTuple):
    """The output and row state of the forward pass.

    Attributes:
        out: (N, Q, V); 0 in a row that sees no key.
        top: (N, Q), the largest score of a softmax row, −inf if it sees no key.
        total: (N, Q), Σ exp(s − top) of a softmax row; lse = top + log(total).
    """

    out: Array
    top: Array
    total: Array


class Upstream(NamedTuple):
    """The upstream gradients of a backward pass, and which gradients it computes besides those of queries and vector.

    Attributes:
        out: the gradient of the output, (N, Q, V), C-contiguous.
        lse: the gradient of the lse (N, Q), for a softmax; None for zeros.
        bias: whether to compute the gradient of the bias.
        memory: whether to compute those of keys and values; unless queries are few they are always computed.
    """

    out: Array
    lse: Array | None = None
    bias: bool = False
    memory: bool = True


class AdditiveGradients(NamedTuple):
    """The gradients that the backward pass returns.

    Attributes:
        query: (N, Q, A).
        key: (N, K, A); None with few queries, if not requested.
        value: (N, K, V), likewise.
        vector: (C, A).
        bias: in the shape of the bias; None if not requested.
        shift: (N, Q), for a sigmoid.
    """

    query: Array
    key: Array | None
    value: Array | None
    vector: Array
    bias: Array | None
    shift: Array


def forward(inputs: Inputs, weighting: Weighting) -> Rows:
    """Compute the output, the largest score and the sum of exponentials of each row.

    Args:
        inputs: query, key, vector and value.
        weighting: how scores become weights.

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b, v = np.zeros((1, 1, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> value = np.arange(3.0).reshape(1, 3, 1)
        >>> forward((a, b, v, value), Weighting(key_ranges(a.dtype, 1, 1, 3))).out
        array([[[1.]]])
    """
    query, key, _, value = inputs
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    out = np.empty((items, queries, value.shape[2]), dtype)
    top, total = np.empty((items, queries), dtype), np.empty((items, queries), dtype)
    rows, time = items * queries, items * queries * keys * (width * 5e-4 + value.shape[2] * 5e-5)
    kernel_arguments = weighting.code, *inputs, *weighting.arguments(dtype), out, top, total
    # The backward pass recomputes scores from tanh values stored in a buffer, and divides by this pass's sum. If the
    # scores were summed in a different order there, the weights would not sum to 1. Without a buffer here the order is
    # the same only for float32 in 512-bit registers.
    direct = WIDE and dtype == np.float32
    scratch = ((0 if direct else 1, width), dtype), ((keys + 64,), dtype)
    thread_pool.run_in_chunks(_forward, dtype, rows, time, kernel_arguments, scratch)
    return Rows(out, top, total)


def backward(inputs: Inputs, weighting: Weighting, rows: Rows, upstream: Upstream) -> AdditiveGradients:
    """Compute the gradients.

    Args:
        inputs, weighting: as given to `forward`.
        rows: the result of `forward`.
        upstream: gradients of output and lse, and which gradients to compute.

    Example:
        >>> from qkv.engine.key_ranges import key_ranges
        >>> a, b, v = np.zeros((1, 1, 8)), np.ones((1, 3, 8)), np.ones((1, 8))
        >>> inputs, weighting = (a, b, v, np.arange(3.0).reshape(1, 3, 1)), Weighting(key_ranges(a.dtype, 1, 1, 3))
        >>> backward(inputs, weighting, forward(inputs, weighting), Upstream(np.ones((1, 1, 1)))).value.ravel()
        array([0.33333333, 0.33333333, 0.33333333])
    """
    query, key, vector, value = inputs
    (items, queries, width), keys, dtype = query.shape, key.shape[1], query.dtype
    ranges = weighting.ranges
    grad_lse = np.zeros((0, 0), dtype) if upstream.lse is None else upstream.lse
    d_query = _gradient(query)
    d_key, d_value = (_gradient(x) if upstream.memory else np.empty((0, 0, 0), dtype) for x in (key, value))
    vector_sums, d_shift = np.zeros((items, width)), np.zeros((items, queries), dtype)
    d_bias = np.zeros(ranges.bias.shape if upstream.bias else (0, 0, 0), dtype)
    grads = d_query, d_key, d_value, vector_sums, d_bias, d_shift
    state = rows.top, rows.total, rows.out, upstream.out, grad_lse
    kernel_arguments = weighting.code, *inputs, *weighting.arguments(dtype), *state, *grads
    time = items * queries * keys * (width * 1.2e-3 + value.shape[2] * 1e-4)
    # Items that share a bias would write to its gradient concurrently.
    must_be_serial = upstream.bias and len(np.unique(ranges.owner[:, 3])) < items
    scratch = ((_KEYS_AT_ONCE, width), dtype), ((_KEYS_AT_ONCE,), dtype)
    thread_pool.run_in_chunks(_backward, dtype, items, 0.0 if must_be_serial else time, kernel_arguments, scratch)
    d_vector = summed(vector_sums, ranges.owner[:, 0], len(vector)).astype(dtype)
    key_gradient, value_gradient = (d_key, d_value) if upstream.memory else (None, None)
    bias_gradient = d_bias if upstream.bias else None
    return AdditiveGradients(d_query, key_gradient, value_gradient, d_vector, bias_gradient, d_shift)


def _gradient(x: Array) -> Array:
    """Return an uninitialized array of the same shape and type."""
    if x.nbytes < _SMALL:
        return np.empty(x.shape, x.dtype)
    array: Array = _MEMORY.tensor(x.shape, x.dtype).numpy()
    return array
