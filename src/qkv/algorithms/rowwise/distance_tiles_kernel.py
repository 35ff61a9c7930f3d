"""Kernel regression over squared distances between near points, tile by tile in the L1 and L2 caches.

‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k. The products of eight queries with some hundred keys are computed in registers
(`qkv.linalg.small_matmul`), replaced by weights in place, and multiplied by the values at once: no matrix is written to
memory. Weights are at most 1, so no row maximum has to be subtracted, and a row is divided by its sum at the end.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import Kernel, helper
from qkv.compiled.register_math import REGISTER, constant, exp, fma, row_pointer
from qkv.compiled.registers import ROUND
from qkv.linalg.padded_rows import clear, load, round_up, store
from qkv.linalg.small_matmul import (
    BLOCK,
    LANES,
    N0,
    N1,
    multiply_panels,
    multiply_rows,
    multiply_visible,
    transpose_to_panels,
)

GAUSSIAN, BOXCAR, EPANECHNIKOV = 0, 1, 2
ZERO, ONE = np.float32(0), np.float32(1)
_BITS = ir.IntType(ROUND)


def _gaussian(builder, x):
    """Return e^(−x/2), the Gaussian kernel."""
    return exp(builder, builder.fmul(x, constant(-0.5)))


def _boxcar(builder, x):
    """Return 1 for x ≤ 1, else 0: the boxcar kernel."""
    return builder.select(builder.fcmp_ordered("<=", x, constant(1.0)), constant(1.0), constant(0.0))


def _positive(builder, x):
    return builder.select(builder.fcmp_ordered(">", x, constant(0.0)), x, constant(0.0))


def _epanechnikov(builder, x):
    """Return 1 − x for x ≤ 1, else 0: the Epanechnikov kernel."""
    return _positive(builder, builder.fsub(constant(1.0), x))


def _row_weights(shape):
    """Return an intrinsic that replaces a row's products by kernel values and returns their sum."""

    @intrinsic
    def row_weights(_, s, at, stop, norms, start, query_norm, scale):
        def make(context, builder, signature, arguments):
            s, norms = (row_pointer(context, builder, signature, arguments, index) for index in (0, 3))
            stop, query_norm, scale = arguments[2], *(registers.broadcast(builder, x, REGISTER) for x in arguments[5:])

            def step(k, carried):
                pointer = builder.gep(s, [k])
                both = builder.fadd(query_norm, registers.load(builder, builder.gep(norms, [k]), REGISTER))
                square = _positive(
                    builder, fma(builder, registers.load(builder, pointer, REGISTER), constant(-2.0), both)
                )
                weight = shape(builder, builder.fmul(square, scale))
                registers.store(builder, weight, pointer)
                return [builder.fadd(carried[0], weight)]

            (total,) = registers.loop(builder, ir.Constant(registers.WORD, 0), stop, ROUND, [constant(0.0)], step)
            return registers.reduce(builder, total, builder.fadd)

        return types.float32(s, at, stop, norms, start, query_norm, scale), make

    return row_weights


_gaussians, _boxcars, _epanechnikovs = (_row_weights(shape) for shape in (_gaussian, _boxcar, _epanechnikov))


@helper
def _weights(kind, s, at, padded_keys, norms, query_norm, scale):
    """s ← the weights of a row; return their sum."""
    if kind == GAUSSIAN:
        return _gaussians(s, at, padded_keys, norms, N0, query_norm, scale)
    if kind == BOXCAR:
        return _boxcars(s, at, padded_keys, norms, N0, query_norm, scale)
    return _epanechnikovs(s, at, padded_keys, norms, N0, query_norm, scale)


@intrinsic
def _store_nonzero(_, s, at, stop, nonzero, to):
    """Store which numbers of a row are not 0, as words of 16 bits."""

    def make(context, builder, signature, arguments):
        s, nonzero = (row_pointer(context, builder, signature, arguments, index) for index in (0, 3))

        def step(k, _):
            x = registers.load(builder, builder.gep(s, [k]), REGISTER)
            word = builder.bitcast(builder.fcmp_unordered("!=", x, constant(0.0)), _BITS)
            builder.store(word, builder.gep(nonzero, [builder.udiv(k, registers.WORD(ROUND))]))
            return []

        registers.loop(builder, registers.WORD(0), arguments[2], ROUND, [], step)
        return context.get_dummy_value()

    return types.void(s, at, stop, nonzero, to), make


@intrinsic
def _ones(_, nonzero, to, s, at, stop):
    """Restore a row of zeros and ones from the bits that `_store_nonzero` wrote."""

    def make(context, builder, signature, arguments):
        nonzero, s = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))

        def step(k, _):
            word = builder.load(builder.gep(nonzero, [builder.udiv(k, registers.WORD(ROUND))]))
            mask = builder.bitcast(word, ir.VectorType(ir.IntType(1), ROUND))
            registers.store(builder, builder.select(mask, constant(1.0), constant(0.0)), builder.gep(s, [k]))
            return []

        registers.loop(builder, registers.WORD(0), arguments[4], ROUND, [], step)
        return context.get_dummy_value()

    return types.void(nonzero, to, s, at, stop), make


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
    nonzero, q, k, t, v, s, c, o, norms, sums, ranges,
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
        nonzero: which weights are not 0, words of 16 bits, (items, Q, K / 16), flat; of size zero if not needed.
        q, k, t, v, s, c, o: scratch of this thread, (group, F), (tile, F), (F, tile), (tile, V), (8, tile), (8, V) and
            (group, V), flat, sizes other than 8 rounded up to multiples of 16.
        norms: scratch of this thread, norms of a tile's keys.
        sums: scratch of this thread, one number per row of a group.
        ranges: scratch of this thread, two numbers per eight rows.
    """
    queries, keys, width, value_width, group, tile = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]
    groups, padded_width, padded_value_width = (queries + group - N1) // group, round_up(width), round_up(value_width)
    words = round_up(keys) // LANES
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
                multiply_panels(s, N0, padded_keys, q, padded_width, t, ranges, block)
                for r in range(min(BLOCK, rows - block * BLOCK)):
                    row = block * BLOCK + r
                    sums[row] += _weights(
                        kind, s, r * padded_keys, padded_keys, norms, query_norms[first_row + row], scale
                    )
                    if nonzero.size:
                        _store_nonzero(
                            s, r * padded_keys, padded_keys, nonzero, (first_row + row) * words + tile_start // LANES
                        )
                multiply_visible(c, N0, padded_value_width, s, N0, padded_keys, v, ranges, block)
                _add(o, block * BLOCK * padded_value_width, c, BLOCK * padded_value_width)
        for r in range(rows):
            totals[first_row + r] = sums[r]
            if divided:
                _divide(o, r * padded_value_width, value_width, sums[r])
        store(o, N0, rows, value_width, padded_value_width, out, first_row * value_width, value_width, N1)


def _transposed_sums(start, stop, sizes, nonzero, value, out, s, v, c, o):
    """Sum over rows with weights 0 and 1, for the groups of keys start to stop, counted over (items, groups).

    Args:
        start, stop: the range of groups.
        sizes: Q, K and V, then the largest number of keys of a group, a multiple of 16, and of rows of a tile.
        nonzero: which weights are 1, as written by `sums`.
        value: (items, Q, V), flat.
        out: Σ over the rows, (items, K, V), flat.
        s, v, c, o: scratch of this thread, (tile, group), (tile, V), (8, V) and (group, V), flat.
    """
    queries, keys, value_width, group, tile = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    groups, padded_value_width, words = (keys + group - N1) // group, round_up(value_width), round_up(keys) // LANES
    for index in range(start, stop):
        item, first = index // groups, index % groups * group
        count = min(group, keys - first)
        padded_keys = round_up(count)
        clear(o, N0, padded_keys * padded_value_width)
        for tile_start in range(N0, queries, tile):
            rows = min(tile, queries - tile_start)
            at = (item * queries + tile_start) * value_width
            load(value, at, value_width, N1, N0, rows, value_width, v, padded_value_width, rows)
            for r in range(rows):
                _ones(
                    nonzero, (item * queries + tile_start + r) * words + first // LANES, s, r * padded_keys, padded_keys
                )
            for k in range(N0, padded_keys, BLOCK):
                multiply_rows(
                    c, N0, padded_value_width, s, k, N1, padded_keys, v, N0, padded_value_width, rows,
                    padded_value_width,
                )  # fmt: skip
                _add(o, k * padded_value_width, c, BLOCK * padded_value_width)
        store(o, N0, count, value_width, padded_value_width, out, (item * keys + first) * value_width, value_width, N1)


transposed_sums = Kernel(
    _transposed_sums,
    "void(u8, u8, u8[::1], u2[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1])",
    scratch=4,
    single=True,
)
sums = Kernel(
    _sums,
    "void(u8, u8, u8[::1], i8, b1, F, F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u2[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
    scratch=10,
    single=True,
)
