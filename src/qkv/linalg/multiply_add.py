"""Products of two matrices added to a third: four rows of it at a time, or one, whose sums stay in registers.

Each number is one sum over the terms, by the same operations for four rows as for one, so that no bit depends on how
rows are put together: in chains of 64, term after term, or, `in_fours`, four terms added up before they join the chain,
which halves the error of a short one and takes half as much time again.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

from functools import partial

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from qkv.compiled import registers
from qkv.compiled.kernels import WIDE

_BYTES = 64 if WIDE else 32
"""Of one register."""
_ACROSS = 4 if WIDE else 2
"""Registers of columns that a row has, where there are so many columns left."""
_FLAGS = ("contract",)
TERM_BY_TERM, IN_FOURS = False, True
CHAIN = 64
"""Terms that are added up before they join the number: the error of one long chain grows with its length."""


def add_four(in_fours, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    """c += a·b for four rows of c.

    Args:
        in_fours: TERM_BY_TERM or IN_FOURS.
        c, a, b: arrays without gaps, of one float type.
        to, of_c: row i of c begins with its number `to + i·of_c`.
        x, of_a, by: its term t is multiplied by the number `x + i·of_a + t·by` of a.
        y, of_b: what it multiplies begins with the number `y + t·of_b` of b.
        terms, width: how many terms, and how many columns.
    """
    _added(4, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)


def add_one(in_fours, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    """The same for one row."""
    _added(1, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)


def _added(rows, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    c, a, b = c.reshape(-1), a.reshape(-1), b.reshape(-1)
    for i in range(rows):
        row = c[to + i * of_c : to + i * of_c + width]
        row += sum(a[x + i * of_a + t * by] * b[y + t * of_b : y + t * of_b + width] for t in range(terms))


def _by(rows, in_fours):
    """The operation for so many rows."""

    @intrinsic
    def add(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
        def make(context, builder, signature, given):
            data = [context.make_array(signature.args[i])(context, builder, given[i]).data for i in (0, 3, 7)]
            c, a, b = (builder.gep(start, [given[i]]) for start, i in zip(data, (1, 4, 8), strict=True))
            of_c, of_a, by, of_b, terms, width = (given[i] for i in (2, 5, 6, 9, 10, 11))
            to = [builder.gep(c, [builder.mul(of_c, registers.WORD(i))]) for i in range(rows)]
            by_rows = [builder.gep(a, [builder.mul(of_a, registers.WORD(i))]) for i in range(rows)]
            _all_columns(builder, to, registers.Sides(by_rows, by, b, of_b), terms, width, in_fours)
            return context.get_dummy_value()

        return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width), make

    return add


def _chosen(plain, grouped):
    """What Numba makes of a function: `in_fours` is a constant, so that one of the two remains."""

    def typed(in_fours, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
        def add(in_fours, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
            if in_fours:
                grouped(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)
            else:
                plain(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width)

        return add

    return typed


overload(add_four, inline="always")(_chosen(_by(4, False), _by(4, True)))
overload(add_one, inline="always")(_chosen(_by(1, False), _by(1, True)))


def _all_columns(builder, to, sides, terms, width, in_fours):
    """Go through the columns: by some registers, by one, by fours, number by number."""
    number = sides.right.type.pointee
    lanes = _BYTES // (8 if isinstance(number, ir.DoubleType) else 4)
    done = registers.WORD(0)
    # Four terms of two registers of columns, and what four rows add up, fill the registers there are.
    for across, wide in ((2 if in_fours else _ACROSS, lanes), (1, lanes), (1, 4), (1, 1)):
        register = ir.VectorType(number, wide)
        left = builder.sub(width, done)
        stop = builder.add(done, builder.and_(left, registers.WORD(-across * wide)))

        def turn(column, _, across=across, register=register):
            own = sides._replace(right=builder.gep(sides.right, [column]))
            _add_columns(builder, to, own, terms, column, across, register, in_fours)
            return []

        registers.loop(builder, done, stop, across * wide, [], turn)
        done = stop


def _add_columns(builder, to, sides, terms, column, across, register, in_fours):
    """Add some registers of columns of each row, some terms at a time."""
    places = [
        builder.gep(row, [builder.add(column, registers.WORD(k * register.count))]) for row in to for k in range(across)
    ]

    def turn(first, _):
        later = builder.add(first, registers.WORD(CHAIN))
        last = builder.select(builder.icmp_unsigned("<", later, terms), later, terms)
        totals, done = [ir.Constant(register, [0.0] * register.count)] * len(places), first
        if in_fours:
            done = builder.add(first, builder.and_(builder.sub(last, first), registers.WORD(-4)))
            totals = registers.loop(builder, first, done, 4, totals, partial(_add_group, builder, sides))
        totals = registers.add_terms(builder, totals, sides, done, last, 1)
        for place, total in zip(places, totals, strict=True):
            registers.store(builder, builder.fadd(registers.load(builder, place, register), total, flags=_FLAGS), place)
        return []

    registers.loop(builder, registers.WORD(0), terms, CHAIN, [], turn)


def _add_group(builder, sides, term, sums):
    """Add four terms, (a + b) + (c + d), to each sum."""
    register, across = sums[0].type, len(sums) // len(sides.rows)
    terms = [builder.add(term, registers.WORD(t)) for t in range(4)]
    begins = [builder.gep(sides.right, [builder.mul(t, sides.of_term)]) for t in terms]
    places = [[builder.gep(begin, [registers.WORD(k * register.count)]) for begin in begins] for k in range(across)]
    parts = [[registers.load(builder, place, register) for place in column] for column in places]
    found = []
    for i, row in enumerate(sides.rows):
        numbers = [builder.load(builder.gep(row, [builder.mul(t, sides.by)])) for t in terms]
        spread = [registers.spread(builder, number, register) for number in numbers]
        for k, part in enumerate(parts):
            four = [builder.fmul(x, y, flags=_FLAGS) for x, y in zip(spread, part, strict=True)]
            pairs = [builder.fadd(four[t], four[t + 1], flags=_FLAGS) for t in (0, 2)]
            share = builder.fadd(*pairs, flags=_FLAGS)
            found.append(builder.fadd(share, sums[across * i + k], flags=_FLAGS))
    return found
