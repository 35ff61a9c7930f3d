"""Kernel regression over squared distances, tile by tile in the L1 and L2 caches: for near points, on the CPU.

‖q−k‖² = ‖q‖² + ‖k‖² − 2q·k. The products of eight queries with some hundred keys are computed in registers
(`qkv.linalg.small_matmul`), turned into weights in place, and multiplied by the values at once: no matrix is written to
memory. Weights are at most 1, so no row maximum has to be subtracted, and a row is divided by its sum at the end.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from qkv.compiled import registers
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import Kernel, helper
from qkv.compiled.register_math import REGISTER, data, every, exp, fma
from qkv.compiled.registers import ROUND
from qkv.linalg.padded_rows import clear, load, store, whole
from qkv.linalg.small_matmul import BLOCK, LANES, N0, N1, by_rows, columns, pairs, turn

BELL, BOX, PARABOLA = 0, 1, 2
ZERO, ONE = np.float32(0), np.float32(1)
_BITS = ir.IntType(ROUND)


def _bell(builder, x):
    """Return e^(−x/2), the Gaussian kernel."""
    return exp(builder, builder.fmul(x, every(-0.5)))


def _box(builder, x):
    """Return 1 for x ≤ 1, else 0: the boxcar kernel."""
    return builder.select(builder.fcmp_ordered("<=", x, every(1.0)), every(1.0), every(0.0))


def _positive(builder, x):
    return builder.select(builder.fcmp_ordered(">", x, every(0.0)), x, every(0.0))


def _parabola(builder, x):
    """Return 1 − x for x ≤ 1, else 0: the Epanechnikov kernel."""
    return _positive(builder, builder.fsub(every(1.0), x))


def _bend(shape):
    """Return an intrinsic that replaces a row's products by kernel values and returns their sum."""

    @intrinsic
    def bend(_, s, at, stop, norms, start, own, scale):
        def make(context, builder, signature, given):
            s, norms = (data(context, builder, signature, given, place) for place in (0, 3))
            stop, own, scale = given[2], *(registers.spread(builder, x, REGISTER) for x in given[5:])

            def turn(k, carried):
                place = builder.gep(s, [k])
                both = builder.fadd(own, registers.load(builder, builder.gep(norms, [k]), REGISTER))
                square = _positive(builder, fma(builder, registers.load(builder, place, REGISTER), every(-2.0), both))
                weight = shape(builder, builder.fmul(square, scale))
                registers.store(builder, weight, place)
                return [builder.fadd(carried[0], weight)]

            (total,) = registers.loop(builder, ir.Constant(registers.WORD, 0), stop, ROUND, [every(0.0)], turn)
            return registers.together(builder, total, builder.fadd)

        return types.float32(s, at, stop, norms, start, own, scale), make

    return bend


_bells, _boxes, _parabolas = (_bend(shape) for shape in (_bell, _box, _parabola))


@helper
def _weights(kind, s, at, lanes, norms, own, scale):
    """s ← the weights of a row; return their sum."""
    if kind == BELL:
        return _bells(s, at, lanes, norms, N0, own, scale)
    if kind == BOX:
        return _boxes(s, at, lanes, norms, N0, own, scale)
    return _parabolas(s, at, lanes, norms, N0, own, scale)


@intrinsic
def _keep(_, s, at, stop, seen, to):
    """Write for each register which of its numbers are not 0, as 16 bits."""

    def make(context, builder, signature, given):
        s, seen = (data(context, builder, signature, given, place) for place in (0, 3))

        def turn(k, _):
            x = registers.load(builder, builder.gep(s, [k]), REGISTER)
            word = builder.bitcast(builder.fcmp_unordered("!=", x, every(0.0)), _BITS)
            builder.store(word, builder.gep(seen, [builder.udiv(k, registers.WORD(ROUND))]))
            return []

        registers.loop(builder, registers.WORD(0), given[2], ROUND, [], turn)
        return context.get_dummy_value()

    return types.void(s, at, stop, seen, to), make


@intrinsic
def _ones(_, seen, to, s, at, stop):
    """Restore a row of zeros and ones from the bits that `_keep` wrote."""

    def make(context, builder, signature, given):
        seen, s = (data(context, builder, signature, given, place) for place in (0, 2))

        def turn(k, _):
            word = builder.load(builder.gep(seen, [builder.udiv(k, registers.WORD(ROUND))]))
            lanes = builder.bitcast(word, ir.VectorType(ir.IntType(1), ROUND))
            registers.store(builder, builder.select(lanes, every(1.0), every(0.0)), builder.gep(s, [k]))
            return []

        registers.loop(builder, registers.WORD(0), given[4], ROUND, [], turn)
        return context.get_dummy_value()

    return types.void(seen, to, s, at, stop), make


@helper
def _far(norms, to, start, count, lanes):
    """Copy the norms of a tile's keys; the padding of the last register gets an infinite norm, so its weight is 0."""
    for k in range(count):
        to[k] = norms[start + k]
    for k in range(count, lanes):
        to[k] = np.inf


@helper
def _add(o, at, c, count):
    wide_registers()
    for i in range(count):
        o[at + i] += c[i]


@helper
def _divide(o, at, width, total):
    wide_registers()
    share = ONE / total if total != 0 else ZERO
    for c in range(width):
        o[at + c] *= share


def _sums(
    start, stop, sizes, kind, divided, scale, query, of_query, key, of_key, value, out, totals,
    seen, q, k, t, v, s, c, o, norms, sums, edges,
):  # fmt: skip
    """Compute the groups of rows start to stop, counted over (items, groups).

    Args:
        start, stop: the range of groups.
        sizes: Q, K, F and V, then the largest number of rows of a group and of keys of a tile.
        kind: BELL, BOX or PARABOLA.
        divided: whether each row is divided by its sum; a row whose sum is 0 gives 0.
        scale: 1/h², factor of the squared distances.
        query, key, value: (items, rows, width), flat.
        of_query, of_key: squared norms, (items, rows), flat.
        out: (items, Q, V), flat.
        totals: the sums of the rows' weights, (items, Q), flat.
        seen: which weights are not 0, words of 16 bits, (items, Q, K / 16), flat; of size zero if not needed.
        q, k, t, v, s, c, o: scratch of this thread, (group, F), (tile, F), (F, tile), (tile, V), (8, tile), (8, V) and
            (group, V), flat, sizes other than 8 rounded up to multiples of 16.
        norms: scratch of this thread, norms of a tile's keys.
        sums: scratch of this thread, one number per row of a group.
        edges: scratch of this thread, two numbers per eight rows.
    """
    queries, keys, width, wide, group, along = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]
    groups, deep, broad = (queries + group - N1) // group, whole(width), whole(wide)
    words = whole(keys) // LANES
    for part in range(start, stop):
        item, first = part // groups, part % groups * group
        rows = min(group, queries - first)
        blocks, place = (rows + BLOCK - N1) // BLOCK, item * queries + first
        load(query, place * width, width, N0, rows, width, q, deep, blocks * BLOCK)
        clear(o, N0, blocks * BLOCK * broad)
        clear(sums, N0, rows)
        for begin in range(N0, keys, along):
            count = min(along, keys - begin)
            lanes, at = whole(count), item * keys + begin
            load(key, at * width, width, N0, count, width, k, deep, lanes)
            load(value, at * wide, wide, N0, count, wide, v, broad, lanes)
            turn(k, lanes, deep, t)
            _far(of_key, norms, at, count, lanes)
            for block in range(blocks):
                edges[block, 0], edges[block, 1] = N0, count
                pairs(s, N0, lanes, q, deep, t, edges, block)
                for r in range(min(BLOCK, rows - block * BLOCK)):
                    row = block * BLOCK + r
                    sums[row] += _weights(kind, s, r * lanes, lanes, norms, of_query[place + row], scale)
                    if seen.size:
                        _keep(s, r * lanes, lanes, seen, (place + row) * words + begin // LANES)
                by_rows(c, N0, broad, s, N0, lanes, v, edges, block)
                _add(o, block * BLOCK * broad, c, BLOCK * broad)
        for r in range(rows):
            totals[place + r] = sums[r]
            if divided:
                _divide(o, r * broad, wide, sums[r])
        store(o, rows, wide, broad, out, place * wide, wide)


def _turned(start, stop, sizes, seen, value, out, s, v, c, o):
    """Sum over rows with weights 0 and 1, for the groups of keys start to stop, counted over (items, groups).

    Args:
        start, stop: the range of groups.
        sizes: Q, K and V, then the largest number of keys of a group, a multiple of 16, and of rows of a tile.
        seen: which weights are 1, as written by `sums`.
        value: (items, Q, V), flat.
        out: Σ over the rows, (items, K, V), flat.
        s, v, c, o: scratch of this thread, (tile, group), (tile, V), (8, V) and (group, V), flat.
    """
    queries, keys, wide, group, along = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    groups, broad, words = (keys + group - N1) // group, whole(wide), whole(keys) // LANES
    for part in range(start, stop):
        item, first = part // groups, part % groups * group
        count = min(group, keys - first)
        lanes = whole(count)
        clear(o, N0, lanes * broad)
        for begin in range(N0, queries, along):
            rows = min(along, queries - begin)
            load(value, (item * queries + begin) * wide, wide, N0, rows, wide, v, broad, rows)
            for r in range(rows):
                _ones(seen, (item * queries + begin + r) * words + first // LANES, s, r * lanes, lanes)
            for k in range(N0, lanes, BLOCK):
                columns(c, N0, broad, s, k, N1, lanes, v, N0, broad, rows, broad)
                _add(o, k * broad, c, BLOCK * broad)
        store(o, count, wide, broad, out, (item * keys + first) * wide, wide)


turned = Kernel(
    _turned,
    "void(u8, u8, u8[::1], u2[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1])",
)
sums = Kernel(
    _sums,
    "void(u8, u8, u8[::1], i8, b1, F, F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u2[::1], "
    "F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], F[::1], u8[:,::1])",
)
