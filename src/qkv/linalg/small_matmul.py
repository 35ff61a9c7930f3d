"""Products of the tables of one item: small ones, of which one operand stays in the first cache.

Eight rows by two registers of columns are added up at once. Each block of rows has the first and the last key that any
of its rows sees, and takes no others.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from qkv.compiled import registers
from qkv.compiled.kernels import WIDE, helper
from qkv.compiled.registers import ROUND

ROWS = 8
"""Rows of a tile: with two registers of columns, enough sums for each to be ready again when its next term comes."""
_ACROSS = 2 if WIDE else 1
"""Registers of columns that a row of a tile has, where there are so many columns left."""
_UNROLLED = 4
_REGISTER = ir.VectorType(ir.FloatType(), ROUND)
# Unsigned: a place that may count from the end would have to be looked at each time.
LANES, PAIR, BLOCK, N0, N1 = np.uint64(ROUND), np.uint64(_ACROSS * ROUND), np.uint64(ROWS), np.uint64(0), np.uint64(1)


def _tile_of(across):
    """A tile of eight rows and some registers of columns."""

    @intrinsic
    def multiply(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms):
        def make(context, builder, signature, given):
            data = [context.make_array(signature.args[i])(context, builder, given[i]).data for i in (0, 3, 7)]
            c, a, b = (builder.gep(start, [given[i]]) for start, i in zip(data, (1, 4, 8), strict=True))
            of_c, of_a, by, of_b, terms = (given[i] for i in (2, 5, 6, 9, 10))
            rows = [builder.gep(a, [builder.mul(of_a, registers.WORD(i))]) for i in range(ROWS)]
            sides = registers.Sides(rows, by, b, of_b)
            sums = [ir.Constant(_REGISTER, [0.0] * ROUND)] * (across * ROWS)
            whole = builder.and_(terms, registers.WORD(-_UNROLLED))
            sums = registers.add_terms(builder, sums, sides, registers.WORD(0), whole, _UNROLLED)
            sums = registers.add_terms(builder, sums, sides, whole, terms, 1)
            for place, total in enumerate(sums):
                i, k = divmod(place, across)
                at = builder.gep(c, [builder.add(builder.mul(of_c, registers.WORD(i)), registers.WORD(k * ROUND))])
                registers.store(builder, total, at)
            return context.get_dummy_value()

        return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms), make

    return multiply


_one, _both = _tile_of(1), _tile_of(_ACROSS)


@intrinsic
def _turn_square(_, x, at, of_row, to, place, of_column):
    """Write 16 × 16 numbers by columns: in four steps each row takes every other part of the row beside it."""

    def make(context, builder, signature, given):
        x, to = (context.make_array(signature.args[i])(context, builder, given[i]).data for i in (0, 3))

        def row(data, start, stride, i):
            return builder.gep(data, [builder.add(given[start], builder.mul(given[stride], registers.WORD(i)))])

        rows = [registers.load(builder, row(x, 1, 2, i), _REGISTER) for i in range(ROUND)]
        for apart in (8, 4, 2, 1):
            for i in (i for i in range(ROUND) if not i & apart):
                pair = rows[i], rows[i + apart]
                # Numbers of the other row count from 16 on.
                low = [k + ROUND - apart if k & apart else k for k in range(ROUND)]
                high = [k + ROUND if k & apart else k + apart for k in range(ROUND)]
                rows[i], rows[i + apart] = (
                    builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(registers.INDEX, ROUND), order))
                    for order in (low, high)
                )
        for i, turned in enumerate(rows):
            registers.store(builder, turned, row(to, 4, 5, i))
        return context.get_dummy_value()

    return types.void(x, at, of_row, to, place, of_column), make


@helper
def turn(x, rows, deep, to):
    """(rows, deep), both multiples of 16, to panels of a tile's columns: (deep, 32) each, of what is left (deep, 16).

    A panel is read from its beginning to its end, where columns of a whole table would share a few sets of the cache.
    """
    for r in range(N0, rows, LANES):
        panel = r // PAIR * PAIR
        wide = min(PAIR, rows - panel)
        for c in range(N0, deep, LANES):
            _turn_square(x, r * deep + c, deep, to, panel * deep + c * wide + r - panel, wide)


@helper
def columns(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    """c ← a·b for eight rows of c and some columns, a multiple of 16.

    Row i of c begins at `to + i·of_c`; its term t lies in a at `x + i·of_a + t·by`, and row t of b at `y + t·of_b`.
    """
    j = N0
    while j + PAIR <= width:
        _both(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms)
        j += PAIR
    if j < width:
        _one(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms)


@helper
def by_rows(c, to, width, a, x, of_a, b, edges, block):
    """c ← a·b for a block of rows, which has terms for the keys that it sees alone; c and a from `to` and `x` on."""
    low, high = edges[block, 0], max(edges[block, 0], edges[block, 1])
    columns(c, to, width, a, x + low, of_a, N1, b, low * width, width, high - low, width)


@helper
def pairs(c, to, lanes, a, deep, turned, edges, block):
    """c ← a·(b turned) for a block of rows, which gets columns for the panels of keys of which it sees any."""
    for panel in range(edges[block, 0] // PAIR * PAIR, edges[block, 1], PAIR):
        wide = min(PAIR, lanes - panel)
        columns(c, to + panel, lanes, a, block * BLOCK * deep, deep, N1, turned, panel * deep, wide, deep, wide)


@helper
def by_keys(c, width, keys, a, lanes, b, edges, rows):
    """c ← aᵀ·b: a block of keys adds up the blocks of rows that see any of them."""
    blocks = rows // BLOCK
    for k in range(N0, keys, BLOCK):
        start, stop = blocks, N0
        for block in range(blocks):
            if edges[block, 0] < k + BLOCK and edges[block, 1] > k:
                start, stop = min(start, block), block + N1
        i, count = start * BLOCK, (stop - start) * BLOCK if stop > start else N0
        columns(c, k * width, width, a, i * lanes + k, N1, lanes, b, i * width, width, count, width)
