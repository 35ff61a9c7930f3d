"""The best tokens of each row of scores: runs the rows of `qkv.decode.top_tokens_kernel` on several threads."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.compiled import thread_pool
from qkv.decode.top_tokens_kernel import BLOCK, best_tokens

_EACH = 3e-4
"""Microseconds of one thread per score."""


def best(
    scores: NDArray[np.float32], count: int, never: Sequence[int] = ()
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the best tokens of each row.

    Args:
        scores: before the softmax, (R, N), float32, C-contiguous.
        count: how many of each row.
        never: tokens to leave out.

    Returns:
        The tokens (R, C), the best first and of equal ones the lowest, and their log-probabilities (R, C), NaN in rows
        that hold NaN or only −inf. C is the count, or the number of tokens that are not left out if that is less.

    Example:
        >>> tokens, gains = best(np.log(np.array([[0.1, 0.6, 0.3]], np.float32)), 2, [2])
        >>> tokens, np.exp(gains).round(3)
        (array([[1, 0]]), array([[0.6, 0.1]], dtype=float32))
    """
    rows, size = scores.shape
    ruled_out = np.array([number for number in set(never) if number < size], np.uint64)
    tokens = np.empty((rows, min(count, size - ruled_out.size)), np.uint64)
    gains = np.empty(tokens.shape, np.float32)
    kernel_arguments = (size, scores.reshape(-1), ruled_out, tokens, gains)
    scratch = (((-(-size // BLOCK),), np.float32),)
    thread_pool.run_in_chunks(best_tokens, np.float32, rows, scores.size * _EACH, kernel_arguments, scratch)
    return tokens.view(np.int64), gains
