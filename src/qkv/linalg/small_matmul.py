"""Products of small matrices, of which one operand stays in the L1 cache.

A tile of the result, eight rows by two registers of columns, is summed in registers. Each block of eight rows has the
range of keys that any of its rows sees, and skips all others.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.kernels import helper
from qkv.compiled.registers import ROUND
from qkv.compiled.target import WIDE

ROWS = 8
"""Rows of a tile: with two registers of columns, enough independent sums to hide the latency of an addition."""
_TILE_REGISTERS = 2 if WIDE else 1
"""Registers of columns in a tile, except at the last columns."""
_UNROLLED = 4
_REGISTER = ir.VectorType(ir.FloatType(), ROUND)
# Unsigned, because Numba checks each signed index for being negative.
LANES, PAIR, BLOCK, N0, N1 = (
    np.uint64(ROUND),
    np.uint64(_TILE_REGISTERS * ROUND),
    np.uint64(ROWS),
    np.uint64(0),
    np.uint64(1),
)


def _tile_function(register_count):
    """Return an intrinsic that computes a tile of eight rows and some registers of columns."""

    @intrinsic
    def multiply(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms):
        def make(context, builder, signature, arguments):
            data = [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 3, 7)]
            c, a, b = (builder.gep(start, [arguments[i]]) for start, i in zip(data, (1, 4, 8), strict=True))
            of_c, of_a, by, of_b, terms = (arguments[i] for i in (2, 5, 6, 9, 10))
            rows = [builder.gep(a, [builder.mul(of_a, registers.WORD(i))]) for i in range(ROWS)]
            operands = registers.TileOperands(rows, by, b, of_b)
            sums = [ir.Constant(_REGISTER, [0.0] * ROUND)] * (register_count * ROWS)
            unrolled_terms = builder.and_(terms, registers.WORD(-_UNROLLED))
            sums = registers.add_terms(builder, sums, operands, registers.WORD(0), unrolled_terms, _UNROLLED)
            sums = registers.add_terms(builder, sums, operands, unrolled_terms, terms, 1)
            for index, total in enumerate(sums):
                i, k = divmod(index, register_count)
                at = builder.gep(c, [builder.add(builder.mul(of_c, registers.WORD(i)), registers.WORD(k * ROUND))])
                registers.store(builder, total, at)
            return context.get_dummy_value()

        return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms), make

    return multiply


_one_register, _full_tile = _tile_function(1), _tile_function(_TILE_REGISTERS)


@intrinsic
def _transpose_square(_, x, at, of_row, to, start, of_column):
    """Transpose 16 × 16 numbers in registers, in four steps that each exchange halves between two rows."""

    def make(context, builder, signature, arguments):
        x, to = (context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 3))

        def row(data, start, stride, i):
            return builder.gep(data, [builder.add(arguments[start], builder.mul(arguments[stride], registers.WORD(i)))])

        rows = [registers.load(builder, row(x, 1, 2, i), _REGISTER) for i in range(ROUND)]
        for distance in (8, 4, 2, 1):
            for i in (i for i in range(ROUND) if not i & distance):
                pair = rows[i], rows[i + distance]
                # In a shuffle, indices from 16 on select numbers of the second row.
                low = [k + ROUND - distance if k & distance else k for k in range(ROUND)]
                high = [k + ROUND if k & distance else k + distance for k in range(ROUND)]
                rows[i], rows[i + distance] = (
                    builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(registers.INDEX, ROUND), order))
                    for order in (low, high)
                )
        for i, column in enumerate(rows):
            registers.store(builder, column, row(to, 4, 5, i))
        return context.get_dummy_value()

    return types.void(x, at, of_row, to, start, of_column), make


@helper
def transpose_to_panels(x, rows, width, to):
    """Transpose a table (rows, columns), both multiples of 16, into panels (columns, 32); the last may be narrower.

    A panel is read in memory order; the columns of a whole table would compete for a few sets of the cache.
    """
    for r in range(N0, rows, LANES):
        panel = r // PAIR * PAIR
        panel_width = min(PAIR, rows - panel)
        for c in range(N0, width, LANES):
            _transpose_square(x, r * width + c, width, to, panel * width + c * panel_width + r - panel, panel_width)


@helper
def multiply_rows(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    """c ← a·b for eight rows of c and some columns, a multiple of 16.

    Row i of c begins at `to + i·of_c`; its term t is in a at `x + i·of_a + t·by`, and row t of b at `y + t·of_b`.
    """
    j = N0
    while j + PAIR <= width:
        _full_tile(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms)
        j += PAIR
    if j < width:
        _one_register(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms)


@helper
def multiply_visible(c, to, width, a, x, of_a, b, ranges, block):
    """c ← a·b for a block of rows, with terms only for the keys that it sees; c begins at `to`, a at `x`."""
    low, high = ranges[block, 0], max(ranges[block, 0], ranges[block, 1])
    multiply_rows(c, to, width, a, x + low, of_a, N1, b, low * width, width, high - low, width)


@helper
def multiply_panels(c, to, padded_keys, a, width, panels, ranges, block):
    """c ← a·bᵀ for a block of rows, of which b is given by panels; only panels with visible keys are computed."""
    for panel in range(ranges[block, 0] // PAIR * PAIR, ranges[block, 1], PAIR):
        panel_width = min(PAIR, padded_keys - panel)
        x, y = block * BLOCK * width, panel * width
        multiply_rows(c, to + panel, padded_keys, a, x, width, N1, panels, y, panel_width, width, panel_width)


@helper
def multiply_transposed(c, width, keys, a, padded_keys, b, ranges, rows):
    """c ← aᵀ·b, where each block of keys sums over the blocks of rows that see any of them."""
    blocks = rows // BLOCK
    for k in range(N0, keys, BLOCK):
        start, stop = blocks, N0
        for block in range(blocks):
            if ranges[block, 0] < k + BLOCK and ranges[block, 1] > k:
                start, stop = min(start, block), block + N1
        i, count = start * BLOCK, (stop - start) * BLOCK if stop > start else N0
        multiply_rows(c, k * width, width, a, i * padded_keys + k, N1, padded_keys, b, i * width, width, count, width)
