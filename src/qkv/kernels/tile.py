"""A tile of a product of matrices whose sums stay in registers while their terms pass by, as LLVM's instructions.

Numba's loops write their sums back to memory after each term: eight times as slow. A term is a number of each row of
the left side, spread over a register, by some registers of the right side's row.
"""

# mypy: ignore-errors
# llvmlite's values are the types here.

from typing import NamedTuple

from llvmlite import binding, ir

WORD, INDEX = ir.IntType(64), ir.IntType(32)
WIDE = binding.get_host_cpu_features().get("avx512f", False)
"""Whether registers hold 16 numbers, and there are 32 of them; else 8, and 16."""


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
    before, each, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_unsigned("<", start, stop), each, after)
    builder.position_at_end(each)
    term, totals = builder.phi(WORD), [builder.phi(total.type) for total in sums]
    if ahead is not None:
        ahead(builder, term)
    added = list(totals)
    for k in range(unrolled):
        added = _add_term(builder, added, sides, builder.add(term, WORD(k)))
    then = builder.add(term, WORD(unrolled))
    builder.cbranch(builder.icmp_unsigned("<", then, stop), each, after)
    last = builder.block
    for phi, first, later in zip((term, *totals), (start, *sums), (then, *added), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, last)
    builder.position_at_end(after)
    found = [builder.phi(total.type) for total in sums]
    for phi, first, later in zip(found, sums, added, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(later, last)
    return found


def _add_term(builder, sums, sides, term):
    register, across = sums[0].type, len(sums) // len(sides.rows)
    none = ir.Constant(register, ir.Undefined)
    everywhere = ir.Constant(ir.VectorType(INDEX, register.count), [0] * register.count)
    begin, at = builder.gep(sides.right, [builder.mul(term, sides.of_term)]), builder.mul(term, sides.by)
    places = [builder.gep(begin, [WORD(k * register.count)]) for k in range(across)]
    parts = [builder.load(builder.bitcast(place, register.as_pointer()), align=4) for place in places]
    found = []
    for i, row in enumerate(sides.rows):
        number = builder.insert_element(none, builder.load(builder.gep(row, [at])), INDEX(0))
        spread = builder.shuffle_vector(number, none, everywhere)
        for k, part in enumerate(parts):
            share = builder.fmul(spread, part, flags=("contract",))
            found.append(builder.fadd(share, sums[across * i + k], flags=("contract",)))
    return found
