"""Attention for few queries, and appending to the cache: runs the rows of `few_queries_kernel` on several threads."""

import numpy as np
from numpy.typing import NDArray

from qkv.algorithms.sdpa import few_queries_kernel
from qkv.compiled import thread_pool
from qkv.compiled.strided import StridedArray

Floats = NDArray[np.float32]

_MICROSECONDS = 5e-4
"""Microseconds of one thread per element of the query and key."""
_NO_MASK, _NO_LSE = np.empty(0, np.bool_), np.empty(0, np.float32)


def attend(
    shape: tuple[int, int, int, int, int, int],
    scale: float,
    query: StridedArray,
    key: StridedArray,
    value: StridedArray,
    mask: StridedArray | None,
    out: Floats,
    lse: Floats | None = None,
) -> None:
    """Compute softmax attention over dot products.

    Args:
        shape: B, H, Q, K, F and V.
        scale: factor of the dot products.
        query: float32, with strides over B, H and Q; the last dimension is contiguous.
        key, value: likewise, over B, H and K.
        mask: bool, True where a key is visible, with strides over B, Q and K; None if all are.
        out: (B, Q, H, V), flat, written.
        lse: (B, H, Q), flat, written; None if it is not needed.

    Example:
        >>> ones, out = StridedArray(np.ones(6, np.float32), (6, 6, 2)), np.empty(2, np.float32)
        >>> attend((1, 1, 1, 3, 2, 2), 1.0, StridedArray(np.ones(2, np.float32), (2, 2, 2)), ones, ones, None, out)
        >>> out.round(4)
        array([1., 1.], dtype=float32)
    """
    items, heads, queries, keys, width, _ = shape
    sizes = np.array(attend_sizes(shape, query.strides, key.strides, value.strides, mask), np.uint64)
    mask_array = _NO_MASK if mask is None else mask.numbers
    states = _NO_LSE if lse is None else lse
    padded_keys = -keys // few_queries_kernel.ROUND * -few_queries_kernel.ROUND
    arguments = (sizes, np.float32(scale), query.numbers, key.numbers, value.numbers, mask_array, out, states)
    time = items * heads * queries * width * keys * _MICROSECONDS
    scratch = ((padded_keys,), np.uint64), ((heads, padded_keys), np.float32)
    thread_pool.run_in_chunks(few_queries_kernel.forward, np.float32, items * queries, time, arguments, scratch)


def attend_sizes(
    shape: tuple[int, int, int, int, int, int],
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    mask: StridedArray | None,
) -> tuple[int, ...]:
    """Return the `sizes` of `few_queries_kernel.forward`; arguments as for `attend`, operands by their strides."""
    return (*shape[1:], *query, *key, *value, *((0, 0, 0) if mask is None else mask.strides))


def append(shape: tuple[int, int, int, int, int], fresh: StridedArray, key: StridedArray, value: StridedArray) -> None:
    """Append the new keys and values to the cached ones.

    Args:
        shape: B; N and K, the number of new positions and the number after appending; H·F and H·V.
        fresh: queries, keys and values of all heads concatenated, with strides over B and N.
        key, value: written; strides over B and K; all heads of a position are contiguous.

    Example:
        >>> keys, values = StridedArray(np.zeros(2, np.float32), (2, 1)), StridedArray(np.zeros(2, np.float32), (2, 1))
        >>> append((1, 1, 2, 1, 1), StridedArray(np.arange(3, dtype=np.float32), (3, 3)), keys, values)
        >>> keys.numbers, values.numbers
        (array([0., 1.], dtype=float32), array([0., 2.], dtype=float32))
    """
    sizes = np.array(append_sizes(shape, fresh.strides, key.strides, value.strides), np.uint64)
    few_queries_kernel.append.at(np.float32)(0, shape[0], sizes, fresh.numbers, key.numbers, value.numbers)


def append_sizes(
    shape: tuple[int, int, int, int, int], fresh: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the `sizes` of `few_queries_kernel.append`; arguments as for `append`, operands by their strides."""
    return (*shape[1:], *fresh, *key, *value)
