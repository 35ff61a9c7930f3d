"""Loops over registers as LLVM instructions, and a tile of a matrix product whose sums stay in registers.

Numba's loops write sums back to memory after each term, which is eight times as slow, and process what does not fill
four registers number by number. Each term of a tile takes one number of each row of the left matrix, broadcast to a
register, and multiplies it with some registers of the right matrix's row.
"""

# mypy: ignore-errors
# llvmlite's values have no types.

from typing import NamedTuple

from llvmlite import ir

WORD, INDEX = ir.IntType(64), ir.IntType(32)


class Sides(NamedTuple):
    """Both matrices of a tile's product.

    Attributes:
        rows: a pointer to each row of the left matrix.
        by: the stride between the terms of such a row.
        right: a pointer to the first row of the right matrix, whose columns are contiguous.
        of_term: the stride between its rows.
    """

    rows: list[ir.Value]
    by: ir.Value
    right: ir.Value
    of_term: ir.Value


def add_terms(builder, sums, sides, start, stop, unrolled, ahead=None):
    """Write a loop that adds the terms start to stop to a tile's sums.

    Args:
        builder: llvmlite's builder, which writes instructions.
        sums: the registers, row by row.
        sides: both matrices.
        start, stop: the range of terms; its length is a multiple of `unrolled`.
        unrolled: how many terms each iteration adds.
        ahead: writes more instructions for each iteration; called with the builder and the first term's number.

    Returns:
        The new sums.
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
    """Write a loop, `for count in range(start, stop, step)`.

    Args:
        builder: llvmlite's builder, which writes instructions.
        start, stop, step: as in `range`.
        carried: values before the first iteration.
        turn: writes one iteration; called with the count and the values, returns the values after it.

    Returns:
        The values after the last iteration; `carried` if there is none.
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
    """Load a register from a pointer to its first number."""
    return builder.load(builder.bitcast(place, register.as_pointer()), align=4)


def store(builder, value, place):
    """Store a register at a pointer."""
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=4)


def spread(builder, number, register):
    """Broadcast a number to a register."""
    none = ir.Constant(register, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(INDEX, register.count), [0] * register.count)
    return builder.shuffle_vector(builder.insert_element(none, number, INDEX(0)), none, everywhere)


def together(builder, value, join):
    """Reduce a register to one number: `join` combines its halves, then the halves of the result, and so on."""
    apart = value.type.count // 2
    while apart:
        order = [(k + apart) % value.type.count for k in range(value.type.count)]
        other = builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(INDEX, value.type.count), order))
        value, apart = join(value, other), apart // 2
    return builder.extract_element(value, INDEX(0))


ROUND = 16
"""Numbers in one register; rows and columns of tables are padded to a multiple of it."""
