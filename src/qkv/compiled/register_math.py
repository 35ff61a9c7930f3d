"""Exponentials and multiply-adds of whole registers, as LLVM instructions."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.codegen import ir
from qkv.compiled.registers import ROUND

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)


REGISTER, _INTS = ir.VectorType(_FLOAT, ROUND), ir.VectorType(_INT, ROUND)


_LEAST, _LOG2E, _SHIFT, _EXPONENT, _LIMIT = -87.0, 1.4426950408889634, 1.5 * 2**23, 127 << 23, 26.0


# 2^f = 1 + f (E1 + f (E2 + …)), relative error 2.2e-8 for |f| ≤ ½, as in `qkv.compiled.tanh`.
_POWERS = (0.69314718, 0.24022649, 0.05550357, 0.0096182376, 0.0013390735, 0.00015403512)


def constant(number):
    """Return a register full of a constant, rounded to float32 because LLVM accepts no other digits."""
    return ir.Constant(REGISTER, [float(np.float32(number))] * ROUND)


def _ints(number):
    return ir.Constant(_INTS, [number] * ROUND)


def fma(builder, a, b, c):
    """Return a·b + c."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def _power_of_two(builder, y):
    """Return 2^n, f and p of a register y = n + f, with |f| ≤ ½ and 2^f = 1 + f·p."""
    # The last bits of `shifted` are n, because a number that large has no fraction.
    shifted = builder.fadd(y, constant(_SHIFT))
    f = builder.fsub(y, builder.fsub(shifted, constant(_SHIFT)))
    p = constant(_POWERS[-1])
    for power in _POWERS[-2::-1]:
        p = fma(builder, p, f, constant(power))
    n = builder.shl(builder.bitcast(shifted, _INTS), _ints(23))
    return builder.bitcast(builder.add(n, _ints(_EXPONENT)), REGISTER), f, p


def exp(builder, x):
    """Return e^x for x ≤ 0, within 1.5 + |x|/16 units of the last place; exactly 0 below e^−87; NaN stays NaN.

    e^x = 2^n·2^f with n + f = x·log₂e, and a polynomial for 2^f.
    """
    low = builder.fcmp_ordered("<", x, constant(_LEAST))
    y = builder.fmul(builder.select(low, constant(_LEAST), x), constant(_LOG2E))
    power, f, p = _power_of_two(builder, y)
    e = builder.fmul(fma(builder, p, f, constant(1.0)), power)
    return builder.select(low, constant(0.0), e)


def tanh(builder, x):
    """Return tanh x as (e^2x − 1)/(e^2x + 1), within 2.5 units of the last place; NaN stays NaN.

    2^f − 1 keeps its relative accuracy near 0, as in `qkv.compiled.tanh`.
    """
    y = builder.fmul(x, constant(2 * _LOG2E))
    for limit, beyond in ((_LIMIT, ">"), (-_LIMIT, "<")):
        y = builder.select(builder.fcmp_ordered(beyond, y, constant(limit)), constant(limit), y)
    power, f, p = _power_of_two(builder, y)
    e = fma(builder, power, builder.fmul(p, f), builder.fsub(power, constant(1.0)))
    return builder.fdiv(e, builder.fadd(e, constant(2.0)))


def row_pointer(context, builder, signature, arguments, index):
    """Return a pointer to a row of the argument number `index`; the next argument is where the row begins in it."""
    array = context.make_array(signature.args[index])(context, builder, arguments[index])
    return builder.gep(array.data, [arguments[index + 1]])
