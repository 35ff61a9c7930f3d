"""Softmax of a row and its gradient, with explicit vector registers, since Numba vectorizes no loops over few keys.

The scores of a row are padded to whole registers; keys before `first` and from `last` on are masked.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled import registers
from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.kernels import helper
from qkv.compiled.register_math import (
    _INT,
    _INTS,
    REGISTER,
    constant,
    exp,
    fma,
    row_pointer,
)
from qkv.compiled.registers import ROUND
from qkv.linalg.small_matmul import LANES, N0, N1

ZERO, ONE = np.float32(0), np.float32(1)


def _seen(builder, k, first, last):
    """Return which lanes of the register that starts at k are in the key range from first to last."""
    narrow = [builder.trunc(x, _INT) for x in (k, first, last)]
    k, first, last = (registers.broadcast(builder, x, _INTS) for x in narrow)
    place = builder.sub(builder.add(k, ir.Constant(_INTS, list(range(ROUND)))), first)
    return builder.icmp_unsigned("<", place, builder.sub(last, first))


@intrinsic
def _largest(_, s, at, low, high, first, last, scale):
    """s ← scale·s where visible, else −∞; return the largest of these that is not NaN."""

    def make(context, builder, signature, arguments):
        s, (low, high, first, last, scale) = row_pointer(context, builder, signature, arguments, 0), arguments[2:]
        scale = registers.broadcast(builder, scale, REGISTER)

        def step(k, carried):
            # Scale before taking the maximum: the scale may be negative.
            pointer = builder.gep(s, [k])
            x = builder.fmul(registers.load(builder, pointer, REGISTER), scale)
            x = builder.select(_seen(builder, k, first, last), x, constant(-np.inf))
            registers.store(builder, x, pointer)
            return [builder.select(builder.fcmp_ordered(">", x, carried[0]), x, carried[0])]

        (top,) = registers.loop(builder, low, high, ROUND, [constant(-np.inf)], step)
        return registers.reduce(builder, top, lambda x, y: builder.select(builder.fcmp_ordered(">", x, y), x, y))

    return types.float32(s, at, low, high, first, last, scale), make


@intrinsic
def _exponentials(_, s, at, low, high, base):
    """s ← e^(s − base); return their sum."""

    def make(context, builder, signature, arguments):
        s, (low, high, base) = row_pointer(context, builder, signature, arguments, 0), arguments[2:]
        base = registers.broadcast(builder, base, REGISTER)

        def step(k, carried):
            pointer = builder.gep(s, [k])
            e = exp(builder, builder.fsub(registers.load(builder, pointer, REGISTER), base))
            registers.store(builder, e, pointer)
            return [builder.fadd(carried[0], e)]

        (total,) = registers.loop(builder, low, high, ROUND, [constant(0.0)], step)
        return registers.reduce(builder, total, builder.fadd)

    return types.float32(s, at, low, high, base), make


@intrinsic
def _multiply(_, s, at, low, high, by):
    """s ← by·s."""

    def make(context, builder, signature, arguments):
        s, (low, high, by) = row_pointer(context, builder, signature, arguments, 0), arguments[2:]
        by = registers.broadcast(builder, by, REGISTER)

        def step(k, _):
            pointer = builder.gep(s, [k])
            registers.store(builder, builder.fmul(registers.load(builder, pointer, REGISTER), by), pointer)
            return []

        registers.loop(builder, low, high, ROUND, [], step)
        return context.get_dummy_value()

    return types.void(s, at, low, high, by), make


@intrinsic
def _weighted_sum(_, w, at, d, to, low, high, first, last):
    """Return Σ wd over the visible keys; d ← 0 elsewhere."""

    def make(context, builder, signature, arguments):
        w, d = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))
        low, high, first, last = arguments[4:]

        def step(k, carried):
            pointer = builder.gep(d, [k])
            x = builder.select(
                _seen(builder, k, first, last), registers.load(builder, pointer, REGISTER), constant(0.0)
            )
            registers.store(builder, x, pointer)
            return [fma(builder, registers.load(builder, builder.gep(w, [k]), REGISTER), x, carried[0])]

        (total,) = registers.loop(builder, low, high, ROUND, [constant(0.0)], step)
        return registers.reduce(builder, total, builder.fadd)

    return types.float32(w, at, d, to, low, high, first, last), make


@intrinsic
def _score_gradients(_, w, at, d, to, low, high, first, last, mean, scale):
    """d ← scale·w(d − mean) where visible, else 0, even if the mean is not finite."""

    def make(context, builder, signature, arguments):
        w, d = (row_pointer(context, builder, signature, arguments, index) for index in (0, 2))
        low, high, first, last, mean, scale = arguments[4:]
        mean, scale = (registers.broadcast(builder, x, REGISTER) for x in (mean, scale))

        def step(k, _):
            pointer = builder.gep(d, [k])
            difference = builder.fsub(registers.load(builder, pointer, REGISTER), mean)
            weight = registers.load(builder, builder.gep(w, [k]), REGISTER)
            softmax_backward = builder.fmul(builder.fmul(weight, difference), scale)
            registers.store(
                builder, builder.select(_seen(builder, k, first, last), softmax_backward, constant(0.0)), pointer
            )
            return []

        registers.loop(builder, low, high, ROUND, [], step)
        return context.get_dummy_value()

    return types.void(w, at, d, to, low, high, first, last, mean, scale), make


@helper
def _clear(s, at, start, stop):
    for k in range(at + start, at + stop):
        s[k] = ZERO


@helper
def softmax(s, at, first, last, padded_keys, scale, sink):
    """s ← softmax(scale·s) over the visible keys and a sink, zeros elsewhere.

    Return the maximum, which was subtracted, and the sum before division.
    """
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    top = max(_largest(s, at, low, high, first, last, scale), sink)
    base = top if top > -np.inf else ZERO
    total = _exponentials(s, at, low, high, base)
    if sink != -np.inf:
        total += np.float32(np.exp(sink - base))
    _multiply(s, at, low, high, ONE / total if total != 0 else ZERO)
    _clear(s, at, N0, low)
    _clear(s, at, high, padded_keys)
    return top, total


@helper
def softmax_backward(w, d, at, first, last, padded_keys, scale):
    """d ← scale·w(d − Σwd), the gradient of a row's dot products; zeros for masked keys. Return Σwd."""
    low, high = first // LANES * LANES, (last + LANES - N1) // LANES * LANES
    mean = _weighted_sum(w, at, d, at, low, high, first, last)
    _score_gradients(w, at, d, at, low, high, first, last, mean, scale)
    _clear(d, at, N0, low)
    _clear(d, at, high, padded_keys)
    return mean
