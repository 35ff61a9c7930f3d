"""Products of few rows with weights that are laid out for them: columns by panels, whose sums stay in registers.

A step of a decoder multiplies some tens of rows with each of its weights, which come from the outer caches: what counts
is that a core never waits for them. So a panel of two registers' columns lies together, term by term, in the order in
which it is read, and while one is multiplied the next is fetched.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from qkv.compiled import kernels, registers
from qkv.compiled.hints import prefetch_at, wide_registers
from qkv.compiled.kernels import Kernel, helper, reduction
from qkv.compiled.registers import WORD

ROUND = 16 if kernels.WIDE else 8
"""Numbers of one register."""
WIDE = 2 * ROUND
"""Columns of a panel."""
ROWS = 8 if ROUND == 16 else 6
"""Rows multiplied at once: as many as leave registers for a row of the panel, and hide how long a sum takes."""
_UNROLLED = 4
LINE = 16
"""Numbers that are fetched at once, for every few terms."""
# Unsigned: a place that may count from the end would have to be looked at each time.
N0, N1, COLUMNS, BLOCK = np.uint64(0), np.uint64(1), np.uint64(WIDE), np.uint64(ROWS)
FETCHED, SLICES = np.uint64(LINE // _UNROLLED), np.uint64(_UNROLLED * WIDE // LINE)
"""Numbers that are fetched for a term; blocks of rows after which all of the next panel is."""
PART = np.uint64(256)
"""Terms that are added up before their sum joins that of those before: a sum of 1,024 is rounded half as much so."""
# Exact in float32; a Python number would lift float32 to float64.
ZERO, ONE = np.float32(0), np.float32(1)

Floats = NDArray[np.float32]
_REGISTER = ir.VectorType(ir.FloatType(), ROUND)


@intrinsic
def _tile(_, sums, x, row, of_row, rows, numbers, panel, terms, ahead, more):
    """sums ← x·panel for a block of rows, (ROWS, WIDE), and what they were where there is more of them.

    Row i begins in x at `row + i·of_row`; of fewer rows than a block the last one is taken again. Term t of the panel
    lies in `numbers` at `panel + t·WIDE`; from `ahead` on is what will be read later.
    """

    def make(context, builder, signature, given):
        to, x, numbers = (context.make_array(signature.args[i])(context, builder, given[i]).data for i in (0, 1, 5))
        start, of_row, rows, panel, terms, ahead, more = (given[i] for i in (2, 3, 4, 6, 7, 8, 9))
        first, panel, ahead = builder.gep(x, [start]), builder.gep(numbers, [panel]), builder.gep(numbers, [ahead])
        lowest = [first]
        for i in range(1, ROWS):
            there = builder.icmp_unsigned("<", WORD(i), rows)
            lowest.append(builder.select(there, builder.gep(first, [builder.mul(of_row, WORD(i))]), lowest[-1]))
        zero = ir.Constant(_REGISTER, [0.0] * ROUND)
        sums = [zero] * (2 * ROWS)
        whole = builder.and_(terms, WORD(-_UNROLLED))

        def fetched(builder, term):
            prefetch_at(builder, builder.gep(ahead, [builder.mul(term, WORD(LINE // _UNROLLED))]))

        sides = registers.Sides(lowest, WORD(1), panel, WORD(WIDE))
        sums = registers.add_terms(builder, sums, sides, WORD(0), whole, _UNROLLED, fetched)
        sums = registers.add_terms(builder, sums, sides, whole, terms, 1)
        for place, total in enumerate(sums):
            at = builder.gep(to, [WORD(place * ROUND)])
            before = builder.select(more, registers.load(builder, at, _REGISTER), zero)
            registers.store(builder, builder.fadd(total, before), at)
        return context.get_dummy_value()

    return types.void(sums, x, row, of_row, rows, numbers, panel, terms, ahead, more), make


@helper
def _finish(sums, rows, wide, biases, bias, relu, added, out, to, of_row):
    """Write what the sums of some rows become."""
    wide_registers()
    for r in range(rows):
        s, at = r * COLUMNS, to + r * of_row
        if added.size:
            for c in range(wide):
                out[at + c] = (sums[s + c] + biases[bias + c]) + added[at + c]
        elif relu:
            for c in range(wide):
                y = sums[s + c] + biases[bias + c]
                out[at + c] = ZERO if y < ZERO else y
        else:
            for c in range(wide):
                out[at + c] = sums[s + c] + biases[bias + c]


def _product(start, stop, rows, terms, columns, x, numbers, weight, biases, bias, relu, added, out, sums):
    """x·Wᵀ + b and what follows it, for the panels start to stop.

    Args:
        start, stop: the range of panels.
        rows, terms, columns: R, M and N.
        x: (R, M), flat.
        numbers, weight: where W begins in them, by panels: (N/WIDE, M, WIDE), zeros behind its last column.
        biases, bias: where b begins in them, (N,).
        relu: whether what is below 0 becomes 0.
        added: (R, N), flat, added at last; of size zero for nothing. Not beside `relu`.
        out: (R, N), flat.
        sums: of this thread, (ROWS·WIDE,).
    """
    size, blocks = terms * COLUMNS, (rows + BLOCK - N1) // BLOCK
    for p in range(start, stop):
        column, panel = p * COLUMNS, weight + p * size
        for block in range(blocks):
            row = block * BLOCK
            left = min(BLOCK, rows - row)
            ahead = panel + size + block % SLICES * (size // SLICES)
            for term in range(N0, terms, PART):
                at, then, count = row * terms + term, ahead + term * FETCHED, min(PART, terms - term)
                _tile(sums, x, at, terms, left, numbers, panel + term * COLUMNS, count, then, term > N0)
            wide = min(COLUMNS, columns - column)
            _finish(sums, left, wide, biases, bias + column, relu, added, out, row * columns + column, columns)


product = helper(_product)
"""As a part of other compiled functions."""
product_alone = Kernel(
    _product,
    "void(u8, u8, u8, u8, u8, F[::1], F[::1], u8, F[::1], u8, b1, F[::1], F[::1], F[::1])",
)


@reduction
def _mean(x, at, width):
    wide_registers()
    total = ZERO
    for c in range(width):
        total += x[at + c]
    return total / np.float32(width)


@reduction
def _variance(x, at, width, mean):
    wide_registers()
    total = ZERO
    for c in range(width):
        total += (x[at + c] - mean) * (x[at + c] - mean)
    return total / np.float32(width)


@helper
def _scaled(x, at, width, mean, share, numbers, gain, out):
    wide_registers()
    for c in range(width):
        out[at + c] = (x[at + c] - mean) * share * numbers[gain + c] + numbers[gain + width + c]


@helper
def norm(start, stop, width, x, numbers, gain, out):
    """Layer norm of the rows start to stop.

    Args:
        start, stop: the range of rows.
        width: M.
        x: (R, M), flat.
        numbers: where parameters are.
        gain: where the gain is in them, (M,); the bias (M,) and what is added to the variance follow.
        out: (R, M), flat; may be x.
    """
    for r in range(start, stop):
        mean = _mean(x, r * width, width)
        share = ONE / np.sqrt(_variance(x, r * width, width, mean) + numbers[gain + width + width])
        _scaled(x, r * width, width, mean, share, numbers, gain, out)
