"""Products of few rows with weights packed into panels of columns, whose sums stay in registers.

A step of a decoder multiplies a few dozen rows with each of its weights, which are read from the L2 and L3 caches or
from memory; the goal is that a core never waits for them. So the panels, two registers of columns wide, are stored term
by term in the order in which they are read, and the next panel is prefetched while one is multiplied.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from numpy.typing import NDArray

from qkv.compiled import registers, target
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.hints import prefetch_at, wide_registers
from qkv.compiled.kernels import Kernel, helper, reduction
from qkv.compiled.registers import WORD

ROUND = 16 if target.WIDE else 8
"""Floats per register."""
WIDE = 2 * ROUND
"""Columns of a panel."""
ROWS = 8 if ROUND == 16 else 6
"""Rows multiplied at once: as many as the registers hold, which also hides the latency of an addition."""
_UNROLLED = 4
LINE = 16
"""Floats per cache line, which a prefetch loads."""
# Unsigned, because Numba checks each signed index for being negative.
N0, N1, COLUMNS, BLOCK = np.uint64(0), np.uint64(1), np.uint64(WIDE), np.uint64(ROWS)
FETCHED, SLICES = np.uint64(LINE // _UNROLLED), np.uint64(_UNROLLED * WIDE // LINE)
"""Floats prefetched per term, and the blocks of rows after which all of the next panel is prefetched."""
PART = np.uint64(256)
"""Terms summed before they are added to the total, which halves the rounding error of a sum of 1,024 terms."""
# Exact in float32; a Python float would promote float32 to float64.
ZERO, ONE = np.float32(0), np.float32(1)

Floats = NDArray[np.float32]
_REGISTER = ir.VectorType(ir.FloatType(), ROUND)


@intrinsic
def _tile(_, sums, x, row, of_row, rows, numbers, panel, terms, ahead, more):
    """sums ← x·panel for a block of rows, (ROWS, WIDE), added to the previous sums if `more`.

    Row i begins in x at `row + i·of_row`; in an incomplete block the last row is repeated. Term t of the panel is in
    `numbers` at `panel + t·WIDE`; what begins at `ahead` is prefetched.
    """

    def make(context, builder, signature, arguments):
        to, x, numbers = (context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 1, 5))
        start, of_row, rows, panel, terms, ahead, more = (arguments[i] for i in (2, 3, 4, 6, 7, 8, 9))
        first, panel, ahead = builder.gep(x, [start]), builder.gep(numbers, [panel]), builder.gep(numbers, [ahead])
        starts = [first]
        for i in range(1, ROWS):
            exists = builder.icmp_unsigned("<", WORD(i), rows)
            starts.append(builder.select(exists, builder.gep(first, [builder.mul(of_row, WORD(i))]), starts[-1]))
        zero = ir.Constant(_REGISTER, [0.0] * ROUND)
        sums = [zero] * (2 * ROWS)
        unrolled_terms = builder.and_(terms, WORD(-_UNROLLED))

        def prefetch_ahead(builder, term):
            prefetch_at(builder, builder.gep(ahead, [builder.mul(term, WORD(LINE // _UNROLLED))]))

        operands = registers.TileOperands(starts, WORD(1), panel, WORD(WIDE))
        sums = registers.add_terms(builder, sums, operands, WORD(0), unrolled_terms, _UNROLLED, prefetch_ahead)
        sums = registers.add_terms(builder, sums, operands, unrolled_terms, terms, 1)
        for index, total in enumerate(sums):
            at = builder.gep(to, [WORD(index * ROUND)])
            before = builder.select(more, registers.load(builder, at, _REGISTER), zero)
            registers.store(builder, builder.fadd(total, before), at)
        return context.get_dummy_value()

    return types.void(sums, x, row, of_row, rows, numbers, panel, terms, ahead, more), make


@helper
def _finish(sums, rows, width, biases, bias, relu, added, out, to, of_row):
    """Write the results of some rows: sums, plus bias, and a relu or an added array."""
    wide_registers()
    for r in range(rows):
        s, at = r * COLUMNS, to + r * of_row
        if added.size:
            for c in range(width):
                out[at + c] = (sums[s + c] + biases[bias + c]) + added[at + c]
        elif relu:
            for c in range(width):
                y = sums[s + c] + biases[bias + c]
                out[at + c] = ZERO if y < ZERO else y
        else:
            for c in range(width):
                out[at + c] = sums[s + c] + biases[bias + c]


def _product(start, stop, rows, terms, columns, x, numbers, weight, biases, bias, relu, added, out, sums):
    """Compute x·Wᵀ + b, and a relu or an addition after it, for the panels start to stop.

    Args:
        start, stop: the range of panels.
        rows, terms, columns: R, M and N.
        x: (R, M), flat.
        numbers, weight: W by panels, (N/WIDE, M, WIDE) padded with zeros, begins in `numbers` at index `weight`.
        biases, bias: b, (N,), begins in `biases` at index `bias`.
        relu: whether to apply a relu.
        added: (R, N), flat, added to the result; of size zero for none. Not together with `relu`.
        out: (R, N), flat, written.
        sums: scratch of this thread, (ROWS·WIDE,).
    """
    size, blocks = terms * COLUMNS, (rows + BLOCK - N1) // BLOCK
    for p in range(start, stop):
        column, panel = p * COLUMNS, weight + p * size
        for block in range(blocks):
            row = block * BLOCK
            row_count = min(BLOCK, rows - row)
            ahead = panel + size + block % SLICES * (size // SLICES)
            for term in range(N0, terms, PART):
                at, prefetch, count = row * terms + term, ahead + term * FETCHED, min(PART, terms - term)
                _tile(sums, x, at, terms, row_count, numbers, panel + term * COLUMNS, count, prefetch, term > N0)
            width = min(COLUMNS, columns - column)
            _finish(sums, row_count, width, biases, bias + column, relu, added, out, row * columns + column, columns)


product = helper(_product)
"""For calls from other compiled functions."""
product_alone = Kernel(
    _product,
    "void(u8, u8, u8, u8, u8, F[::1], F[::1], u8, F[::1], u8, b1, F[::1], F[::1], F[::1])",
    scratch=1,
    single=True,
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
def _scaled(x, at, width, mean, inverse_deviation, numbers, gain, out):
    wide_registers()
    for c in range(width):
        out[at + c] = (x[at + c] - mean) * inverse_deviation * numbers[gain + c] + numbers[gain + width + c]


@helper
def norm(start, stop, width, x, numbers, gain, out):
    """Compute the layer norm of the rows start to stop.

    Args:
        start, stop: the range of rows.
        width: M.
        x: (R, M), flat.
        numbers: the packed parameters.
        gain: the index of the gain (M,) in them; the bias (M,) and the number added to the variance follow.
        out: (R, M), flat; may be x.
    """
    for r in range(start, stop):
        mean = _mean(x, r * width, width)
        inverse_deviation = ONE / np.sqrt(_variance(x, r * width, width, mean) + numbers[gain + width + width])
        _scaled(x, r * width, width, mean, inverse_deviation, numbers, gain, out)
