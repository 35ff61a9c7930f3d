"""The best tokens of each row of scores: shares the rows of `qkv.decode.top_tokens_kernel` among threads."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.compiled import thread_pool
from qkv.decode.top_tokens_kernel import BLOCK, best_tokens

_EACH = 3e-4
"""Microseconds of one thread for a score."""


def best(
    scores: NDArray[np.float32], count: int, never: Sequence[int] = ()
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the best tokens of each row.

    Args:
        scores: before the softmax, (R, N), float32, C-contiguous.
        count: how many of each row.
        never: tokens that are not found.

    Returns:
        The tokens (R, C), the best first and of equal ones the lowest, and their log-probabilities (R, C), NaN where a
        row is no probabilities; C is the count, or all that may be found where they are fewer.

    Example:
        >>> tokens, gains = best(np.log(np.array([[0.1, 0.6, 0.3]], np.float32)), 2, [2])
        >>> tokens, np.exp(gains).round(3)
        (array([[1, 0]]), array([[0.6, 0.1]], dtype=float32))
    """
    rows, size = scores.shape
    barred = np.array([number for number in set(never) if number < size], np.uint64)
    found = np.empty((rows, min(count, size - barred.size)), np.uint64)
    gains = np.empty(found.shape, np.float32)
    given = (size, scores.reshape(-1), barred, found, gains)
    scratch = (((-(-size // BLOCK),), np.float32),)
    thread_pool.run_in_chunks(best_tokens, np.float32, rows, scores.size * _EACH, given, scratch)
    return found.view(np.int64), gains
