"""Additive attention: convert values to tiles for the backward pass, and its sums back to gradients.

The backward pass reads and writes tiles of keys, each with one row per feature or value column. This module makes them
from values (N, K, V), and converts their sums to gradients in the order and layout of the inputs.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

from qkv.compiled.kernels import helper, kernel

# Keys copied together, so that whole cache lines are read or written; the keys per tile are a multiple of this.
BLOCK = 16


@kernel("void(i8, i8, F[:,:,::1], F[:,:,:,::1])")
def lay_out(n0, n1, value, tiles):
    """Copy values to tiles of keys.

    Args:
        n0, n1: the range of items.
        value: (N, K, V).
        tiles: written, (N, tiles, V or more, keys per tile); padding becomes 0.
    """
    size, keys = tiles.shape[3], value.shape[1]
    for n in range(n0, n1):
        tiles[n] = 0
        for begin in range(0, keys, BLOCK):
            tile, at, rows = tiles[n, begin // size], begin % size, value[n, begin : begin + BLOCK]
            for v in range(value.shape[2]):
                for j in range(rows.shape[0]):
                    tile[v, at + j] = rows[j, v]


@helper
def _tiles_to_rows(tiles, feature, factor, out):
    """Sum the parts of tiles into rows per key: column feature[i] is row i of the tile times its factor."""
    size, keys = tiles.shape[3], out.shape[0]
    for begin in range(0, keys, BLOCK):
        tile, at, rows = begin // size, begin % size, out[begin : begin + BLOCK]
        for i in range(feature.size):
            c = feature[i]
            if c >= 0:
                for j in range(rows.shape[0]):
                    rows[j, c] = tiles[0, tile, i, at + j] * factor[c]
                for part in range(1, tiles.shape[0]):
                    for j in range(rows.shape[0]):
                        rows[j, c] += tiles[part, tile, i, at + j] * factor[c]


@kernel(
    "void(i8, i8, i8[:,::1], F[:,::1], i8[:,::1], F[:,:,::1], F[:,:,:,:,::1], F[:,:,:,:,::1], f8[:,:,::1],"
    " F[:,:,::1], F[:,:,::1], F[:,:,::1], f8[:,::1], i8[::1], F[::1])"
)
def collect(
    n0, n1, feature, vector, owner, left, right, values, vector_sums, d_query, d_key, d_value, d_vector,
    columns, ones,
):  # fmt: skip
    """Convert the sums of the backward pass to gradients, for the items n0 to n1.

    Args:
        n0, n1: the range of items.
        feature, vector, owner: as in `factors`.
        left: sums for queries, (N, Q, R).
        right, values: sums for keys and values, (parts, N, tiles, rows, keys per tile).
        vector_sums: sums for the vector, (parts, N, R).
        d_query, d_key, d_value: written, (N, Q, A), (N, K, A), (N, K, V).
        d_vector: written, (N, A), float64.
        columns, ones: 0 to V − 1, and as many ones.
    """
    for n in range(n0, n1):
        v = vector[owner[n, 0]]
        _tiles_to_rows(right[:, n], feature[n], v, d_key[n])
        _tiles_to_rows(values[:, n], columns, ones, d_value[n])
        for q in range(d_query.shape[1]):
            sums, row = left[n, q], d_query[n, q]
            for i in range(feature.shape[1]):
                if feature[n, i] >= 0:
                    row[feature[n, i]] = sums[i] * v[feature[n, i]]
        for i in range(feature.shape[1]):
            c = feature[n, i]
            if c >= 0:
                d_vector[n, c] = 0
                for part in range(vector_sums.shape[0]):
                    d_vector[n, c] += vector_sums[part, n, i]
