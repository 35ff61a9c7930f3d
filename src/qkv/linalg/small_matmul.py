"""Products of small matrices, of which one operand stays in the L1 cache.

A tile of the result, eight rows by two registers of columns, is summed in registers. Each block of eight rows has the
range of keys that any of its rows sees, and skips all others.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper
from qkv.compiled.register_math import fma, tanh
from qkv.compiled.registers import ROUND
from qkv.compiled.target import WIDE

ROWS = 8
"""Rows of a tile: with two registers of columns, enough independent sums to hide the latency of an addition."""
_TILE_REGISTERS = 2 if WIDE else 1
"""Registers of columns in a tile, except at the last columns."""
_REGISTER = ir.VectorType(ir.FloatType(), ROUND)
# Unsigned, because Numba checks each signed index for being negative.
LANES, PAIR, BLOCK, N0, N1 = (
    np.uint64(ROUND),
    np.uint64(_TILE_REGISTERS * ROUND),
    np.uint64(ROWS),
    np.uint64(0),
    np.uint64(1),
)


class _Terms(NamedTuple):
    """What the terms of a sum are, as instructions that add one term to a register.

    Attributes:
        add: `(builder, number, part, third, total) -> total`, with a number of the left matrix, broadcast; a register
            of the right matrix's row; and of the third matrix the register that lies where the sum goes, and the number
            of the term, broadcast.
        rows: how many rows are summed at a time.
        unrolled: how many terms an iteration adds.
    """

    add: Callable[..., Any]
    rows: int
    unrolled: int


def _product(builder, number, part, _, total):
    return fma(builder, number, part, total)


def _squared_difference(builder, number, part, _, total):
    difference = builder.fsub(number, part)
    return fma(builder, difference, difference, total)


def _weighted_difference(builder, number, part, third, total):
    return fma(builder, number, builder.fsub(third[0], part), total)


def _weighted_tanh(builder, number, part, third, total):
    return fma(builder, third[1], tanh(builder, builder.fadd(number, part)), total)


_HALF = ROWS if WIDE else ROWS // 2
"""A difference needs registers of its own: on processors that have sixteen, sums of four rows leave room for it."""
_PRODUCT, _DISTANCE = _Terms(_product, ROWS, 4), _Terms(_squared_difference, _HALF, 4)
_DIFFERENCE, _TANH = _Terms(_weighted_difference, _HALF, 4), _Terms(_weighted_tanh, _HALF, 1)


def _tile_function(register_count, kind):
    """Return an intrinsic that computes a tile of eight rows and some registers of columns."""

    @intrinsic
    def multiply(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, d, z, of_d):
        def make(context, builder, signature, arguments):
            data = [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 3, 7, 11)]
            c, a, b, d = (builder.gep(start, [arguments[i]]) for start, i in zip(data, (1, 4, 8, 12), strict=True))
            of_c, of_a, by, of_b, terms, of_d = (arguments[i] for i in (2, 5, 6, 9, 10, 13))

            def broadcast_at(pointer, index):
                return registers.broadcast(builder, builder.load(builder.gep(pointer, [index])), _REGISTER)

            def row(matrix, stride, i, k):
                return builder.gep(matrix, [builder.add(builder.mul(stride, registers.WORD(i)), registers.WORD(k))])

            unrolled = builder.and_(terms, registers.WORD(-kind.unrolled))
            for start in range(0, ROWS, kind.rows):
                rows = range(start, start + kind.rows)
                places = [(i, k * ROUND) for i in rows for k in range(register_count)]
                lefts = [row(a, of_a, i, 0) for i in rows]
                # LLVM drops what a kind does not use.
                own = [registers.load(builder, row(d, of_d, *place), _REGISTER) for place in places]

                def body(term, totals, count, lefts=lefts, own=own):
                    for at in (builder.add(term, registers.WORD(t)) for t in range(count)):
                        right, left = builder.gep(b, [builder.mul(at, of_b)]), builder.mul(at, by)
                        parts = [
                            registers.load(builder, builder.gep(right, [registers.WORD(k * ROUND)]), _REGISTER)
                            for k in range(register_count)
                        ]
                        numbers, weight = [broadcast_at(pointer, left) for pointer in lefts], broadcast_at(d, at)
                        pairs = [(number, part) for number in numbers for part in parts]
                        totals = [
                            kind.add(builder, *pair, (third, weight), total)
                            for pair, third, total in zip(pairs, own, totals, strict=True)
                        ]
                    return totals

                sums = [ir.Constant(_REGISTER, [0.0] * ROUND)] * len(places)
                sums = registers.loop(
                    builder, registers.WORD(0), unrolled, kind.unrolled, sums, lambda t, x: body(t, x, kind.unrolled)
                )
                sums = registers.loop(builder, unrolled, terms, 1, sums, lambda t, x: body(t, x, 1))
                for place, total in zip(places, sums, strict=True):
                    registers.store(builder, total, row(c, of_c, *place))
            return context.get_dummy_value()

        return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, d, z, of_d), make

    return multiply


_product_register, _product_tile = (_tile_function(count, _PRODUCT) for count in (1, _TILE_REGISTERS))
_distance_register, _distance_tile = (_tile_function(count, _DISTANCE) for count in (1, _TILE_REGISTERS))
_difference_register, _tanh_register = _tile_function(1, _DIFFERENCE), _tile_function(1, _TANH)


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
        _product_tile(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms, a, x, of_a)
        j += PAIR
    if j < width:
        _product_register(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms, a, x, of_a)


@helper
def weighted_differences(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, d, z, width):
    """c ← Σ a·(d − b) for eight rows of c, as `multiply_rows`; row i of d begins at `z + i·of_c`."""
    for j in range(N0, width, LANES):
        _difference_register(c, to + j, of_c, a, x, of_a, by, b, y + j, of_b, terms, d, z + j, of_c)


@helper
def multiply_visible(c, to, width, a, x, of_a, b, ranges, block):
    """c ← a·b for a block of rows, with terms only for the keys that it sees; c begins at `to`, a at `x`."""
    low, high = ranges[block, 0], max(ranges[block, 0], ranges[block, 1])
    multiply_rows(c, to, width, a, x + low, of_a, N1, b, low * width, width, high - low, width)


def _to_panels(register, tile=None):
    """Return a function that computes c from a block of rows of a, and from b by panels, by a function of tiles.

    Only panels with visible keys are computed. `third` is the third matrix of the terms.
    """
    wide = register if tile is None else tile
    step = LANES if tile is None else PAIR

    @helper
    def run(c, to, padded_keys, a, width, panels, ranges, block, third):
        for panel in range(ranges[block, 0] // PAIR * PAIR, ranges[block, 1], PAIR):
            panel_width, x = min(PAIR, padded_keys - panel), block * BLOCK * width
            for j in range(N0, panel_width, step):
                at, y = to + panel + j, panel * width + j
                if panel_width - j < step:
                    register(c, at, padded_keys, a, x, width, N1, panels, y, panel_width, width, third, N0, width)
                else:
                    wide(c, at, padded_keys, a, x, width, N1, panels, y, panel_width, width, third, N0, width)

    return run


multiply_panels = _to_panels(_product_register, _product_tile)
"""c ← a·bᵀ."""
distances_to_panels = _to_panels(_distance_register, _distance_tile)
"""c ← ‖a − b‖², by subtraction."""
tanh_to_panels = _to_panels(_tanh_register)
"""c ← Σ v tanh(a + b), where v is the third matrix, a row."""


@helper
def sums_to_panels(c, to, padded_keys, a, width, panels, row, ranges, block):
    """c ← a + b, where a is the first column of a block of rows, and b a row of the panels."""
    wide_registers()
    for panel in range(ranges[block, 0] // PAIR * PAIR, ranges[block, 1], PAIR):
        panel_width = min(PAIR, padded_keys - panel)
        y = panel * width + row * panel_width
        for i in range(BLOCK):
            number, at = a[(block * BLOCK + i) * width], to + i * padded_keys + panel
            for j in range(panel_width):
                c[at + j] = number + panels[y + j]


@helper
def multiply_transposed(c, width, keys, a, padded_keys, b, ranges, rows, d, differences):
    """c ← aᵀ·b, where each block of keys sums over the blocks of rows that see any of them.

    With `differences`, c ← Σ a·(d − b) in place of the products, where d is (K, width), as c.
    """
    blocks = rows // BLOCK
    for k in range(N0, keys, BLOCK):
        start, stop = blocks, N0
        for block in range(blocks):
            if ranges[block, 0] < k + BLOCK and ranges[block, 1] > k:
                start, stop = min(start, block), block + N1
        i, count = start * BLOCK, (stop - start) * BLOCK if stop > start else N0
        x, y = i * padded_keys + k, i * width
        if differences:
            weighted_differences(c, k * width, width, a, x, N1, padded_keys, b, y, width, count, d, k * width, width)
        else:
            multiply_rows(c, k * width, width, a, x, N1, padded_keys, b, y, width, count, width)
