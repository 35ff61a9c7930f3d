"""Loops over registers as LLVM's instructions, and a tile of a product of matrices whose sums stay in them.

Numba's loops write sums back to memory after each term, eight times as slow, and take what does not fill four registers
number by number. A term of a tile is a number of each row of the left side, spread over a register, by some registers
of the right side's row.
"""

# mypy: ignore-errors
# llvmlite's values are the types here.

from typing import NamedTuple

from llvmlite import ir

WORD, INDEX = ir.IntType(64), ir.IntType(32)


class Sides(NamedTuple):
    """Both sides of a tile.

    Attributes:
        rows: the left side's rows, a pointer each.
        by: from one term of a row to the next.
        right: the right side's first row; the tile's columns lie together.
        of_term: from one of its rows to the next.
    """

    rows: list[ir.Value]
    by: ir.Value
    right: ir.Value
    of_term: ir.Value


def add_terms(builder, sums, sides, start, stop, unrolled, ahead=None):
    """Add the terms start to stop to a tile's sums, some of them at each turn.

    Args:
        builder: where instructions are written.
        sums: registers, the columns of a row beside each other.
        sides: what is multiplied.
        start, stop: of terms; their number is a multiple of `unrolled`.
        unrolled: how many terms at each turn.
        ahead: writes what is done besides at each turn; gets the builder and the term's number.

    Returns:
        The sums with the terms added.
    """

    def turn(term, totals):
        if ahead is not None:
            ahead(builder, term)
        for k in range(unrolled):
            totals = _add_term(builder, totals, sides, builder.add(term, WORD(k)))
        return totals

    return loop(builder, start, stop, unrolled, sums, turn)


def _add_term(builder, sums, sides, term):
    register, across = sums[0].type, len(sums) // len(sides.rows)
    begin, at = builder.gep(sides.right, [builder.mul(term, sides.of_term)]), builder.mul(term, sides.by)
    places = [builder.gep(begin, [WORD(k * register.count)]) for k in range(across)]
    parts = [load(builder, place, register) for place in places]
    found = []
    for i, row in enumerate(sides.rows):
        number = spread(builder, builder.load(builder.gep(row, [at])), register)
        for k, part in enumerate(parts):
            share = builder.fmul(number, part, flags=("contract",))
            found.append(builder.fadd(share, sums[across * i + k], flags=("contract",)))
    return found


def loop(builder, start, stop, step, carried, turn):
    """Write a loop.

    Args:
        builder: where instructions are written.
        start, stop: of the count, which may be equal.
        step: by which it grows.
        carried: values before the first turn.
        turn: writes a turn; gets the count and the values, returns the values after it.

    Returns:
        The values after the last turn.
    """
    before, each, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_unsigned("<", start, stop), each, after)
    builder.position_at_end(each)
    count, now = builder.phi(WORD), [builder.phi(value.type) for value in carried]
    then = turn(count, list(now))
    later = builder.add(count, WORD(step))
    builder.cbranch(builder.icmp_unsigned("<", later, stop), each, after)
    last = builder.block
    for phi, first, next_ in zip((count, *now), (start, *carried), (later, *then), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_, last)
    builder.position_at_end(after)
    found = [builder.phi(value.type) for value in carried]
    for phi, first, next_ in zip(found, carried, then, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_, last)
    return found


def load(builder, place, register):
    """A register of numbers from a pointer to the first."""
    return builder.load(builder.bitcast(place, register.as_pointer()), align=4)


def store(builder, value, place):
    """Write a register of numbers from a pointer on."""
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=4)


def spread(builder, number, register):
    """A register full of one number."""
    none = ir.Constant(register, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(INDEX, register.count), [0] * register.count)
    return builder.shuffle_vector(builder.insert_element(none, number, INDEX(0)), none, everywhere)


def together(builder, value, join):
    """One number of a register's numbers: halves are joined, then halves of these."""
    apart = value.type.count // 2
    while apart:
        order = [(k + apart) % value.type.count for k in range(value.type.count)]
        other = builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(INDEX, value.type.count), order))
        value, apart = join(value, other), apart // 2
    return builder.extract_element(value, INDEX(0))


ROUND = 16
"""Numbers of one register; rows and columns of tables fill whole ones."""
