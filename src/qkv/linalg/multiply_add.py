"""Add the product of two matrices to a third, four rows or one row at a time, with sums in registers.

Each element is one sum over the terms, by the same operations for four rows as for one, so that no bit depends on how
rows are grouped: in chains of 64, term by term or, in fours, with four terms summed before they are added to the
chain, which halves the error of a short sum and takes 1.5 times as long.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

from functools import partial

from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.target import BUILDS, WIDE

_BYTES = 64 if WIDE else 32
"""Bytes per register."""
_REGISTERS = 4 if WIDE else 2
"""Registers of columns per row, except at the last columns."""
_FLAGS = ("contract",)
CHAIN = 64
"""Terms summed before they are added to the result: the error of a chain of additions grows with its length."""


def _add_python(rows, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
    c, a, b = c.reshape(-1), a.reshape(-1), b.reshape(-1)
    for i in range(rows):
        row = c[to + i * of_c : to + i * of_c + width]
        row += sum(a[x + i * of_a + t * by] * b[y + t * of_b : y + t * of_b + width] for t in range(terms))


def _add_rows(rows, in_fours):
    """Return a function that adds the product for a number of rows.

    Its arguments are:
        c, a, b: arrays without gaps, of one float type.
        to, of_c: row i of c begins at index `to + i·of_c`.
        x, of_a, by: the factor of its term t is at index `x + i·of_a + t·by` of a.
        y, of_b: row t of b begins at index `y + t·of_b`.
        terms, width: the number of terms, and of columns.
    """

    @intrinsic
    def add(_, c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width):
        def make(context, builder, signature, arguments):
            data = [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 3, 7)]
            c, a, b = (builder.gep(start, [arguments[i]]) for start, i in zip(data, (1, 4, 8), strict=True))
            of_c, of_a, by, of_b, terms, width = (arguments[i] for i in (2, 5, 6, 9, 10, 11))
            to = [builder.gep(c, [builder.mul(of_c, registers.WORD(i))]) for i in range(rows)]
            by_rows = [builder.gep(a, [builder.mul(of_a, registers.WORD(i))]) for i in range(rows)]
            _all_columns(builder, to, registers.TileOperands(by_rows, by, b, of_b), terms, width, in_fours)
            return context.get_dummy_value()

        return types.void(c, to, of_c, a, x, of_a, by, b, y, of_b, terms, width), make

    return add if BUILDS else partial(_add_python, rows)


add_four, add_one = _add_rows(4, False), _add_rows(1, False)
"""c += a·b, term by term, for four rows of c and for one."""
add_four_in_fours, add_one_in_fours = _add_rows(4, True), _add_rows(1, True)
"""The same, with four terms summed before they are added."""


def _all_columns(builder, to, operands, terms, width, in_fours):
    """Process the columns by several registers, then one register, then four columns, then one."""
    element = operands.right.type.pointee
    lanes = _BYTES // (8 if isinstance(element, ir.DoubleType) else 4)
    done = registers.WORD(0)
    # `in_fours`, two registers of columns for four terms and the sums of four rows fill all registers.
    for register_count, lane_count in ((2 if in_fours else _REGISTERS, lanes), (1, lanes), (1, 4), (1, 1)):
        register = ir.VectorType(element, lane_count)
        left = builder.sub(width, done)
        stop = builder.add(done, builder.and_(left, registers.WORD(-register_count * lane_count)))

        def step(column, _, register_count=register_count, register=register):
            from_column = operands._replace(right=builder.gep(operands.right, [column]))
            _add_columns(builder, to, from_column, terms, column, register_count, register, in_fours)
            return []

        registers.loop(builder, done, stop, register_count * lane_count, [], step)
        done = stop


def _add_columns(builder, to, operands, terms, column, register_count, register, in_fours):
    """Add the products for some registers of columns of each row, `CHAIN` terms at a time."""
    pointers = [
        builder.gep(row, [builder.add(column, registers.WORD(k * register.count))])
        for row in to
        for k in range(register_count)
    ]

    def step(first, _):
        later = builder.add(first, registers.WORD(CHAIN))
        last = builder.select(builder.icmp_unsigned("<", later, terms), later, terms)
        totals, done = [ir.Constant(register, [0.0] * register.count)] * len(pointers), first
        if in_fours:
            done = builder.add(first, builder.and_(builder.sub(last, first), registers.WORD(-4)))
            totals = registers.loop(builder, first, done, 4, totals, partial(_add_group, builder, operands))
        totals = registers.add_terms(builder, totals, operands, done, last, 1)
        for pointer, total in zip(pointers, totals, strict=True):
            registers.store(
                builder, builder.fadd(registers.load(builder, pointer, register), total, flags=_FLAGS), pointer
            )
        return []

    registers.loop(builder, registers.WORD(0), terms, CHAIN, [], step)


def _add_group(builder, operands, term, sums):
    """Add four terms, (a + b) + (c + d), to each sum."""
    register, register_count = sums[0].type, len(sums) // len(operands.rows)
    terms = [builder.add(term, registers.WORD(t)) for t in range(4)]
    starts = [builder.gep(operands.right, [builder.mul(t, operands.of_term)]) for t in terms]
    pointers = [
        [builder.gep(start, [registers.WORD(k * register.count)]) for start in starts] for k in range(register_count)
    ]
    parts = [[registers.load(builder, pointer, register) for pointer in column] for column in pointers]
    results = []
    for i, row in enumerate(operands.rows):
        factors = [builder.load(builder.gep(row, [builder.mul(t, operands.by)])) for t in terms]
        broadcast_factors = [registers.broadcast(builder, element, register) for element in factors]
        for k, part in enumerate(parts):
            four = [builder.fmul(x, y, flags=_FLAGS) for x, y in zip(broadcast_factors, part, strict=True)]
            pairs = [builder.fadd(four[t], four[t + 1], flags=_FLAGS) for t in (0, 2)]
            four_terms = builder.fadd(*pairs, flags=_FLAGS)
            results.append(builder.fadd(four_terms, sums[register_count * i + k], flags=_FLAGS))
    return results
