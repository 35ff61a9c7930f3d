"""Loops over registers as LLVM instructions, and a tile of a matrix product whose sums stay in registers.

Numba's loops write sums back to memory after each term, which is eight times as slow, and process what does not fill
four registers number by number. Each term of a tile takes one number of each row of the left matrix, broadcast to a
register, and multiplies it with some registers of the right matrix's row.
"""

# mypy: ignore-errors
# llvmlite's values have no types.

from typing import NamedTuple

from qkv.compiled.codegen import ir

WORD, INDEX = ir.IntType(64), ir.IntType(32)


class TileOperands(NamedTuple):
    """The operands of a tile's product, two matrices.

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


def add_terms(builder, sums, operands, start, stop, unrolled, ahead=None):
    """Write a loop that adds the terms start to stop to a tile's sums.

    Args:
        builder: llvmlite's builder, which writes instructions.
        sums: the registers, row by row.
        operands: both matrices.
        start, stop: the range of terms; its length is a multiple of `unrolled`.
        unrolled: how many terms each iteration adds.
        ahead: writes more instructions for each iteration; called with the builder and the first term's number.

    Returns:
        The new sums.
    """

    def body(term, totals):
        if ahead is not None:
            ahead(builder, term)
        for k in range(unrolled):
            totals = _add_term(builder, totals, operands, builder.add(term, WORD(k)))
        return totals

    return loop(builder, start, stop, unrolled, sums, body)


def _add_term(builder, sums, operands, term):
    register, register_count = sums[0].type, len(sums) // len(operands.rows)
    row_start, at = builder.gep(operands.right, [builder.mul(term, operands.of_term)]), builder.mul(term, operands.by)
    pointers = [builder.gep(row_start, [WORD(k * register.count)]) for k in range(register_count)]
    parts = [load(builder, pointer, register) for pointer in pointers]
    results = []
    for i, row in enumerate(operands.rows):
        number = broadcast(builder, builder.load(builder.gep(row, [at])), register)
        for k, part in enumerate(parts):
            product = builder.fmul(number, part, flags=("contract",))
            results.append(builder.fadd(product, sums[register_count * i + k], flags=("contract",)))
    return results


def loop(builder, start, stop, step, carried, body):
    """Write a loop, `for count in range(start, stop, step)`.

    Args:
        builder: llvmlite's builder, which writes instructions.
        start, stop, step: as in `range`.
        carried: values before the first iteration.
        body: writes one iteration; called with the count and the values, returns the values after it.

    Returns:
        The values after the last iteration; `carried` if there is none.
    """
    before, body_block, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_unsigned("<", start, stop), body_block, after)
    builder.position_at_end(body_block)
    count, current = builder.phi(WORD), [builder.phi(value.type) for value in carried]
    following = body(count, list(current))
    next_count = builder.add(count, WORD(step))
    builder.cbranch(builder.icmp_unsigned("<", next_count, stop), body_block, after)
    last = builder.block
    for phi, first, next_ in zip((count, *current), (start, *carried), (next_count, *following), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_, last)
    builder.position_at_end(after)
    results = [builder.phi(value.type) for value in carried]
    for phi, first, next_ in zip(results, carried, following, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_, last)
    return results


def load(builder, pointer, register):
    """Load a register from a pointer to its first number."""
    return builder.load(builder.bitcast(pointer, register.as_pointer()), align=4)


def store(builder, value, pointer):
    """Store a register at a pointer."""
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=4)


def broadcast(builder, number, register):
    """Broadcast a number to a register."""
    undefined = ir.Constant(register, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(INDEX, register.count), [0] * register.count)
    return builder.shuffle_vector(builder.insert_element(undefined, number, INDEX(0)), undefined, first_lane)


def reduce(builder, value, join):
    """Reduce a register to one number: `join` combines its halves, then the halves of the result, and so on."""
    distance = value.type.count // 2
    while distance:
        order = [(k + distance) % value.type.count for k in range(value.type.count)]
        other = builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(INDEX, value.type.count), order))
        value, distance = join(value, other), distance // 2
    return builder.extract_element(value, INDEX(0))


ROUND = 16
"""Numbers in one register; rows and columns of tables are padded to a multiple of it."""
