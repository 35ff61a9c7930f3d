"""Products of two matrices added to a third: four rows of it at a time, or one, whose sums stay in registers.

Each number is one sum over the terms in their order, by the same operations for four rows as for one, so that no bit
depends on how rows are put together.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from qkv.kernels import tile
from qkv.kernels.compiled import WIDE

_BYTES = 64 if WIDE else 32
"""Of one register."""
_ACROSS = 4 if WIDE else 2
"""Registers of columns that a row has, where there are so many columns left."""


def add_four(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    """c += a·b for four rows of c.

    Args:
        c, a, b: arrays without gaps, of one float type.
        to, of_c: row i of c begins with its number `to + i·of_c`.
        x, of_a, by: its term t is multiplied by the number `x + i·of_a + t·by` of a.
        y, of_b: what it multiplies begins with the number `y + t·of_b` of b.
        terms, width: how many terms, and how many columns.
    """
    _added(4, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)


def add_one(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    """The same for one row."""
    _added(1, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)


def _added(rows, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    c, a, b = c.reshape(-1), a.reshape(-1), b.reshape(-1)
    for i in range(rows):
        row = c[to + i * of_c : to + i * of_c + width]
        row += sum(a[x + i * of_a + t * by] * b[y + t * of_b : y + t * of_b + width] for t in range(terms))


def _by(rows):
    """The operation for so many rows."""

    @intrinsic
    def add(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
        def make(context, builder, signature, given):
            data = [context.make_array(signature.args[i])(context, builder, given[i]).data for i in (0, 3, 7)]
            c, a, b = (builder.gep(start, [given[i]]) for start, i in zip(data, (1, 4, 8), strict=True))
            of_c, of_a, by, of_b, terms, width = (given[i] for i in (2, 5, 6, 9, 10, 11))
            to = [builder.gep(c, [builder.mul(of_c, tile.WORD(i))]) for i in range(rows)]
            by_rows = [builder.gep(a, [builder.mul(of_a, tile.WORD(i))]) for i in range(rows)]
            _all_columns(builder, to, tile.Sides(by_rows, by, b, of_b), terms, width)
            return context.get_dummy_value()

        return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width), make

    return add


_four, _one = _by(4), _by(1)


@overload(add_four, inline="always")
def _add_four(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    def add(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
        _four(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)

    return add


@overload(add_one, inline="always")
def _add_one(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    def add(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
        _one(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)

    return add


def _all_columns(builder, to, sides, terms, width):
    """Go through the columns: by some registers, by one, by fours, number by number."""
    number = sides.right.type.pointee
    lanes = _BYTES // (8 if isinstance(number, ir.DoubleType) else 4)
    done = tile.WORD(0)
    for across, wide in ((_ACROSS, lanes), (1, lanes), (1, 4), (1, 1)):
        register = ir.VectorType(number, wide)
        left = builder.sub(width, done)
        stop = builder.add(done, builder.and_(left, tile.WORD(-across * wide)))

        def turn(column, _, across=across, register=register):
            _add_columns(builder, to, sides, terms, column, across, register)
            return []

        tile.loop(builder, done, stop, across * wide, [], turn)
        done = stop


def _add_columns(builder, to, sides, terms, column, across, register):
    """Add some registers of columns of each row."""
    sides = sides._replace(right=builder.gep(sides.right, [column]))
    totals = [ir.Constant(register, [0.0] * register.count)] * (across * len(to))
    totals = tile.add_terms(builder, totals, sides, tile.WORD(0), terms, 1)
    for place, total in enumerate(totals):
        row, k = divmod(place, across)
        at = builder.gep(to[row], [builder.add(column, tile.WORD(k * register.count))])
        tile.store(builder, builder.fadd(tile.load(builder, at, register), total, flags=("contract",)), at)
