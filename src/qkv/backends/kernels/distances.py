"""Kernels of a distance on tiles of matrix products: what a backend calls between two products."""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from qkv.backends.kernels import pool
from qkv.backends.kernels.distance_rows import slopes, values
from qkv.backends.kernels.sight import Array

Doubles = NDArray[np.float64]
_SHAPES = {"bell": 0, "box": 1, "bump": 2}


@final
@dataclass(frozen=True)
class Tile:
    """Products of queries and keys, and what each query may see of the keys.

    Attributes:
        products: q·k, (R, C), C-contiguous; about a common center, so that they are exact enough.
        queries, keys: squared norms, (R,) and (C,).
        first, last: int32 (R,): the columns that each row may see.
        mask: bool (1 or R, C), of size zero where there is none.
        scale: 1/h².
    """

    products: Doubles
    queries: Doubles
    keys: Doubles
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    mask: NDArray[np.bool_]
    scale: float


def kernel_values(tile: Tile, shape: Literal["bell", "box", "bump"], power: float, out: Array) -> Doubles:
    """Compute the values of a kernel, 0 where a key is hidden.

    Args:
        tile: the products.
        shape: e^{−x/2}, 1 for x ≤ 1, or max(0, 1 − x^(power/2)), of x = ‖q−k‖²/h².
        power: of a bump.
        out: takes the values, (R, C).

    Returns:
        The sum of each row, (R,).

    Source: Nadaraya 1964; Watson 1964; Epanechnikov 1969.

    Example:
        >>> ends = np.zeros(1, np.int32), np.full(1, 2, np.int32)
        >>> tile = Tile(np.array([[0.0, 1.0]]), np.ones(1), np.ones(2), *ends, np.zeros((0, 0), np.bool_), 1.0)
        >>> out = np.empty((1, 2), np.float32)
        >>> kernel_values(tile, "bell", 2.0, out), out
        (array([1.36787945]), array([[0.36787945, 1.        ]], dtype=float32))
    """
    total, code = np.empty(out.shape[0]), values.at(out.dtype)
    time = out.size * 1e-3
    chunks = pool.chunks(time, out.shape[0])

    def work(chunk: int) -> None:
        rows = pool.share(chunk, chunks, out.shape[0])
        sight = tile.first, tile.last, tile.mask
        code(*rows, _SHAPES[shape], power, tile.scale, tile.products, tile.queries, tile.keys, *sight, out, total)

    pool.run(work, chunks, time)
    return total


def kernel_slopes(
    tile: Tile, shape: Literal["bell", "box", "bump"], power: float, share: Doubles, delta: Doubles, grads: Array
) -> None:
    """Turn gradients of the weights s/Σs into gradients of x = ‖q−k‖²/h², in place.

    Args:
        tile, shape, power: as given to `kernel_values`.
        share: 1/Σs of each row, 0 where the sum is 0, (R,).
        delta: Σ w·g of each row, (R,).
        grads: gradients of the weights, (R, C); become those of x, 0 where a key is hidden.

    Example:
        >>> ends = np.zeros(1, np.int32), np.full(1, 2, np.int32)
        >>> tile = Tile(np.array([[0.0, 1.0]]), np.ones(1), np.ones(2), *ends, np.zeros((0, 0), np.bool_), 0.25)
        >>> grads = np.ones((1, 2))
        >>> kernel_slopes(tile, "bump", 2.0, np.ones(1), np.zeros(1), grads)
        >>> grads
        array([[-1., -1.]])
    """
    code = slopes.at(grads.dtype)
    time = grads.size * 1e-3
    chunks = pool.chunks(time, grads.shape[0])

    def work(chunk: int) -> None:
        rows = pool.share(chunk, chunks, grads.shape[0])
        sight = tile.first, tile.last, tile.mask
        given = tile.products, tile.queries, tile.keys
        code(*rows, _SHAPES[shape], power, tile.scale, *given, *sight, share, delta, grads)

    pool.run(work, chunks, time)
