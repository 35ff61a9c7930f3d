"""Scores of additive attention, four rows at a time: Σ v tanh(a + b) from the factors that `factors_kernel` computed.

Four features are summed with one division, Σ v(EF − 1)/(EF + 1), and four rows share each load of the keys; sums stay
in registers from the first feature to the last. Every score is computed by the same operations at any position of its
row and key, so the result does not depend on how rows are grouped.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, overload, types
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper
from qkv.compiled.tanh import tanh_in_double
from qkv.compiled.target import WIDE

ROUND = 16
"""Keys per register; in float64 they fill two."""
# Exact in both float types; a Python float would promote float32 to float64.
CAP, WIDE_CAP = np.float32(2**28), np.float32(2**60)
C1, C2, C3 = np.float32(-0.33333332796631665), np.float32(0.13333225775482527), np.float32(-0.05393346914596769)
C4, C5 = np.float32(0.02147068302533676), np.float32(-0.006942941750416007)
_FLAGS = ("contract", "nsz")
_ESTIMATED = (*_FLAGS, "arcp", "ninf")
"""Flags of a division whose operands are finite: LLVM may use an estimated reciprocal and one Newton step, accurate
within one or two units of the last place, in a quarter of the time."""


@helper
def small_tanh(x):
    """Compute tanh for |x| < ½ by an odd polynomial, within 2^-27 of its value."""
    y = x * x
    return x + x * (y * (C1 + y * (C2 + y * (C3 + y * (C4 + y * C5)))))


def _factored(left, q, last_row, right, weight, calm, stop, low, high, s):
    """s ← Σ v(EF − 1)/(EF + 1) over the features 0 to `stop` in fours, for four rows and the keys low to high."""
    cap = CAP if s.itemsize == 4 else WIDE_CAP
    for j in range(4):
        e, sums = left[min(q + j, last_row)], s[j, low:high]
        sums[:] = 0
        for i in range(0, stop, 4):
            y = [e[i + n] * right[i + n, low:high] for n in range(4)]
            if i >= calm:
                y = [np.minimum(x, cap) for x in y]
            d, w = [1 + x for x in y], [weight[i + n] * (y[n] - 1) for n in range(4)]
            pair, other = d[0] * d[1], d[2] * d[3]
            upper = (w[0] * d[1] + w[1] * d[0]) * other + (w[2] * d[3] + w[3] * d[2]) * pair
            sums += upper / (pair * other)


@overload(_factored, inline="always")
def _factored_compiled(left, q, last_row, right, weight, calm, stop, low, high, s):
    def sums(left, q, last_row, right, weight, calm, stop, low, high, s):
        _four_rows(left, q, last_row, right, weight, calm, stop, low, high, s)

    return sums


@intrinsic
def _four_rows(_, left, q, last_row, right, weight, calm, stop, low, high, s):
    """Compute `_factored` in registers."""

    def make(context, builder, signature, arguments):
        arrays = {i: context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 3, 4, 9)}
        element = context.get_value_type(signature.args[4].dtype)
        q, last_row, calm, stop, low, high = (arguments[i] for i in (1, 2, 5, 6, 7, 8))
        of_left, of_right, of_s = (_width(builder, arrays[i]) for i in (0, 3, 9))
        rows = []
        for j in range(4):
            row = builder.add(q, registers.WORD(j))
            row = builder.select(builder.icmp_signed("<", row, last_row), row, last_row)
            rows.append(builder.gep(arrays[0].data, [builder.mul(row, of_left)]))
        operands = _Operands(rows, arrays[3].data, of_right, arrays[4].data, calm, stop, element)

        def step(k, _):
            for j, total in enumerate(_sums(builder, operands, k)):
                at = builder.add(builder.mul(of_s, registers.WORD(j)), k)
                registers.store(builder, total, builder.gep(arrays[9].data, [at]))
            return []

        registers.loop(builder, low, high, ROUND, [], step)
        return context.get_dummy_value()

    return types.void(left, q, last_row, right, weight, calm, stop, low, high, s), make


def _width(builder, array):
    return builder.extract_value(array.shape, 1)


class _Operands:
    """Pointers to the factors of four rows and of a tile of keys, and to their weights."""

    def __init__(self, rows, right, of_right, weight, calm, stop, element):
        self.rows, self.right, self.of_right, self.weight = rows, right, of_right, weight
        self.calm, self.stop = calm, stop
        self.register = ir.VectorType(element, ROUND)

    def constant(self, element):
        return ir.Constant(self.register, [float(np.float32(element))] * ROUND)


def _sums(builder, operands, k):
    """Compute the scores of four rows and one register of keys, starting at key k."""
    zeros = [operands.constant(0.0)] * 4

    def add_four(capped):
        return lambda i, sums: _add_four(builder, operands, i, k, sums, capped)

    sums = registers.loop(builder, registers.WORD(0), operands.calm, 4, zeros, add_four(False))
    return registers.loop(builder, operands.calm, operands.stop, 4, sums, add_four(True))


def _add_four(builder, operands, i, k, sums, capped):
    """Add the features i to i + 3."""
    indices = [builder.add(i, registers.WORD(n)) for n in range(4)]
    scalars = [builder.load(builder.gep(operands.weight, [at])) for at in indices]
    weights = [registers.broadcast(builder, element, operands.register) for element in scalars]
    starts = [builder.gep(operands.right, [builder.add(builder.mul(n, operands.of_right), k)]) for n in indices]
    keys = [registers.load(builder, start, operands.register) for start in starts]
    results = []
    for row, total in zip(operands.rows, sums, strict=True):
        fractions = [
            _fraction(builder, operands, builder.load(builder.gep(row, [n])), v, f, capped)
            for n, v, f in zip(indices, weights, keys, strict=True)
        ]
        upper, lower = _sum(builder, _sum(builder, *fractions[:2]), _sum(builder, *fractions[2:]))
        estimated = WIDE and isinstance(operands.register.element, ir.FloatType)
        quotient = builder.fdiv(upper, lower, flags=_ESTIMATED if estimated else _FLAGS)
        results.append(builder.fadd(quotient, total, flags=_FLAGS))
    return results


def _fraction(builder, operands, e, v, f, capped):
    """Compute v(EF − 1) and EF + 1; if `capped`, EF is limited so that the product of four is finite."""
    y = builder.fmul(registers.broadcast(builder, e, operands.register), f, flags=_FLAGS)
    if capped:
        cap = operands.constant(CAP if isinstance(operands.register.element, ir.FloatType) else WIDE_CAP)
        y = builder.select(builder.fcmp_ordered("<", y, cap), y, cap)
    # An addition, for which some processors have units of their own; then the multiply-add may overwrite y.
    lower = builder.fadd(y, operands.constant(1.0), flags=("nsz",))
    return builder.fsub(builder.fmul(v, y, flags=_FLAGS), v, flags=_FLAGS), lower


def _sum(builder, first, second):
    """Compute a/b + c/d as one fraction, (ad + cb)/(bd)."""
    (a, b), (c, d) = first, second
    upper = builder.fadd(builder.fmul(a, d, flags=_FLAGS), builder.fmul(c, b, flags=_FLAGS), flags=_FLAGS)
    return upper, builder.fmul(b, d, flags=_FLAGS)


@helper
def scores(left, q, last_row, right, weight, count, start, stop, s):
    """Compute the scores of four rows for part of a tile of keys, rounded outward to whole registers.

    Args:
        left: factors of the queries, (rows, R).
        q, last_row: the first of the four rows, and the last existing row, which is scored again in place of missing
            rows.
        right: factors of the keys, (R, keys per tile).
        weight, count: the weight of each feature, and the number of features per way, as in `factors`.
        start, stop: the range of the tile.
        s: written, (4, keys per tile).
    """
    wide_registers()
    low, high = start // ROUND * ROUND, min((stop + ROUND - 1) // ROUND * ROUND, right.shape[1])
    calm, small, direct = count[0], count[0] + count[1], count[0] + count[1] + count[2]
    _factored(left, q, last_row, right, weight, calm, small, low, high, s)
    for j in range(4):
        e, sums = left[min(q + j, last_row)], s[j, low:high]
        for i in range(small, direct, 4):
            e0, e1, e2, e3 = e[i], e[i + 1], e[i + 2], e[i + 3]
            w0, w1, w2, w3 = weight[i], weight[i + 1], weight[i + 2], weight[i + 3]
            f0, f1, f2, f3 = right[i, low:high], right[i + 1, low:high], right[i + 2, low:high], right[i + 3, low:high]
            for k in range(sums.size):
                pair = w0 * small_tanh(e0 + f0[k]) + w1 * small_tanh(e1 + f1[k])
                sums[k] += pair + (w2 * small_tanh(e2 + f2[k]) + w3 * small_tanh(e3 + f3[k]))
        for i in range(direct, direct + count[3]):
            a, v, b = np.float64(e[i]), np.float64(weight[i]), right[i, low:high]
            for k in range(sums.size):
                sums[k] += v * tanh_in_double(a + b[k])
