"""Kernel regression over squared distances between near points, tile by tile in the L1 and L2 caches.

‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k. The products of eight queries with some hundred keys are computed in registers
(`qkv.linalg.small_matmul`), replaced by weights in place, and multiplied by the values at once: no matrix is written to
memory. Weights are at most 1, so no row maximum has to be subtracted, and a row is divided by its sum at the end.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.rowwise.row_registers_kernel import SUM, boxcar, gaussian, parabola, row_pass
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import Kernel, helper
from qkv.compiled.register_math import constant, fma
from qkv.linalg.padded_rows import clear, load, round_up, store
from qkv.linalg.small_matmul import (
    BLOCK,
    N0,
    N1,
    multiply_panels,
    multiply_visible,
    transpose_to_panels,
)

GAUSSIAN, BOXCAR, EPANECHNIKOV = 0, 1, 2
ZERO, ONE = np.float32(0), np.float32(1)


def _of_products(shape):
    """Return a step of a row that replaces products by kernel values, with the keys' norms and the query's."""

    def step(builder, x, norms, query_norm, scale):
        square = fma(builder, x, constant(-2.0), builder.fadd(query_norm, norms))
        square = builder.select(builder.fcmp_ordered(">", square, constant(0.0)), square, constant(0.0))
        return shape(builder, square, None, scale, None)

    return step


_gaussians, _boxcars, _parabolas = (row_pass(_of_products(shape), SUM) for shape in (gaussian, boxcar, parabola))


@helper
def _weights(kind, s, at, padded_keys, norms, query_norm, scale):
    """s ← the weights of a row; return their sum."""
    if kind == GAUSSIAN:
        return _gaussians(s, at, norms, N0, N0, padded_keys, padded_keys, ZERO, query_norm, scale)
    if kind == BOXCAR:
        return _boxcars(s, at, norms, N0, N0, padded_keys, padded_keys, ZERO, query_norm, scale)
    return _parabolas(s, at, norms, N0, N0, padded_keys, padded_keys, ZERO, query_norm, scale)


@helper
def _load_norms(norms, to, start, count, padded_keys):
    """Copy the norms of a tile's keys; the padding of the last register gets an infinite norm, so its weight is 0."""
    for k in range(count):
        to[k] = norms[start + k]
    for k in range(count, padded_keys):
        to[k] = np.inf


@helper
def _add(o, at, c, count):
    wide_registers()
    for i in range(count):
        o[at + i] += c[i]


@helper
def _divide(o, at, width, total):
    wide_registers()
    inverse = ONE / total if total != 0 else ZERO
    for c in range(width):
        o[at + c] *= inverse


def _sums(
    start, stop, sizes, kind, divided, scale, query, query_norms, key, key_norms, value, out, totals,
    q, k, t, v, s, c, o, norms, sums, ranges,
):  # fmt: skip
    """Compute the groups of rows start to stop, counted over (items, groups).

    Args:
        start, stop: the range of groups.
        sizes: Q, K, F and V, then the largest number of rows of a group and of keys of a tile.
        kind: GAUSSIAN, BOXCAR or EPANECHNIKOV.
        divided: whether each row is divided by its sum; a row whose sum is 0 gives 0.
        scale: 1/h², factor of the squared distances.
        query, key, value: (items, rows, width), flat.
        query_norms, key_norms: squared norms, (items, rows), flat.
        out: (items, Q, V), flat.
        totals: the sums of the rows' weights, (items, Q), flat.
        q, k, t, v, s, c, o: scratch of this thread, (group, F), (tile, F), (F, tile), (tile, V), (8, tile), (8, V) and
            (group, V), flat, sizes other than 8 rounded up to multiples of 16.
        norms: scratch of this thread, norms of a tile's keys.
        sums: scratch of this thread, one number per row of a group.
        ranges: scratch of this thread, two numbers per eight rows.
    """
    queries, keys, width, value_width, group, tile = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]
    groups, padded_width, padded_value_width = (queries + group - N1) // group, round_up(width), round_up(value_width)
    for index in range(start, stop):
        item, first = index // groups, index % groups * group
        rows = min(group, queries - first)
        blocks, first_row = (rows + BLOCK - N1) // BLOCK, item * queries + first
        load(query, first_row * width, width, N1, N0, rows, width, q, padded_width, blocks * BLOCK)
        clear(o, N0, blocks * BLOCK * padded_value_width)
        clear(sums, N0, rows)
        for tile_start in range(N0, keys, tile):
            count = min(tile, keys - tile_start)
            padded_keys, at = round_up(count), item * keys + tile_start
            load(key, at * width, width, N1, N0, count, width, k, padded_width, padded_keys)
            load(value, at * value_width, value_width, N1, N0, count, value_width, v, padded_value_width, padded_keys)
            transpose_to_panels(k, padded_keys, padded_width, t)
            _load_norms(key_norms, norms, at, count, padded_keys)
            for block in range(blocks):
                ranges[block, 0], ranges[block, 1] = N0, count
                multiply_panels(s, N0, padded_keys, q, padded_width, t, ranges, block, q)
                for r in range(min(BLOCK, rows - block * BLOCK)):
                    row = block * BLOCK + r
                    sums[row] += _weights(
                        kind, s, r * padded_keys, padded_keys, norms, query_norms[first_row + row], scale
                    )
                multiply_visible(c, N0, padded_value_width, s, N0, padded_keys, v, ranges, block)
                _add(o, block * BLOCK * padded_value_width, c, BLOCK * padded_value_width)
        for r in range(rows):
            totals[first_row + r] = sums[r]
            if divided:
                _divide(o, r * padded_value_width, value_width, sums[r])
        store(o, N0, rows, value_width, padded_value_width, out, first_row * value_width, value_width, N1)


sums = Kernel(
    _sums,
    "void(u8, u8, u8[::1], i8, b1, F, F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
    scratch=10,
    single=True,
)
