"""Statistics of softmax weights over tiles of products, called between two matrix products."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from qkv.compiled import thread_pool
from qkv.introspect.weight_statistics_kernel import tally

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@final
@dataclass(frozen=True)
class RowStatistics:
    """The rows of a tile and their accumulated statistics.

    Attributes:
        lse: (R,), float64.
        first, last: int32 (R,): the keys that each row may see.
        total: Σ w, (R,), updated in place.
        entropy: −Σ w·log w, (R,), updated in place.
        best, keys: logarithms of the n largest weights in descending order, and their keys, (R, n), updated in place.
    """

    lse: Doubles
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    total: Doubles
    entropy: Doubles
    best: Floats
    keys: NDArray[np.int64]


def add_tile(products: Floats, scale: float, column: int, rows: RowStatistics, received: Doubles) -> None:
    """Add a tile to the sums of its rows and keys.

    Args:
        products: q·k, (R, C), C-contiguous; overwritten.
        scale: multiplies them.
        column: the first key of the tile.
        rows: the rows of the tile.
        received: Σ w over rows, (C,), updated in place.

    Example:
        >>> rows = RowStatistics(
        ...     np.log(np.full(1, 2.0)), np.zeros(1, np.int32), np.full(1, 2, np.int32),
        ...     np.zeros(1), np.zeros(1), np.full((1, 1), -np.inf, np.float32), np.zeros((1, 1), np.int64))
        >>> received = np.zeros(2)
        >>> add_tile(np.zeros((1, 2), np.float32), 1.0, 0, rows, received)
        >>> received.round(4), rows.entropy.round(4), np.exp(rows.best).round(4), rows.keys
        (array([0.5, 0.5]), array([0.6931]), array([[0.5]], dtype=float32), array([[0]]))
    """
    code, height = tally.at(np.float32), products.shape[0]
    time = products.size * 1e-3
    chunks = thread_pool.chunks(time, height)
    parts = np.zeros((chunks, products.shape[1]))
    sums = rows.total, rows.entropy, rows.best, rows.keys

    def work(chunk: int) -> None:
        share = thread_pool.share(chunk, chunks, height)
        code(chunk, *share, column, scale, products, rows.lse, rows.first, rows.last, parts, *sums)

    thread_pool.run(work, chunks, time)
    received += parts.sum(0)
