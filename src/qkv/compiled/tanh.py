"""tanh(a + b) computed directly, and its weighted sum over hidden features, for additive attention of few queries."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.codegen import overload, types
from qkv.compiled.exp import LOG2E, expm1_and_exp
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, reduction

# Exact in both float types; a Python number would promote float32 to float64.
ONE, TWO, ZERO = np.float32(1), np.float32(2), np.float32(0)
TWICE_LOG2E, LIMIT = np.float32(2 * LOG2E), np.float32(26)
SHIFT, EXPONENT = np.float32(1.5 * 2**23), np.int32(127 << 23)
# 2^f − 1 = T1 f + … + T6 f⁶, relative error 2.2e-8 for |f| ≤ ½: least squares, weighted until all errors were equal.
T1, T2, T3 = np.float32(0.69314718), np.float32(0.24022649), np.float32(0.05550357)
T4, T5, T6 = np.float32(0.0096182376), np.float32(0.0013390735), np.float32(0.00015403512)


@helper
def tanh_in_double(x):
    """Compute tanh in float64, within 2 units of the last place; NaN stays NaN."""
    y = 2.0 * abs(x)
    y = 40.0 if y > 40.0 else y
    e, _ = expm1_and_exp(y)
    t = e / (e + 2.0)
    return -t if x < 0 else t


@helper
def _short_tanh(x):
    """Compute tanh in float32 as (e^2x − 1)/(e^2x + 1), within 2.5 units of the last place; NaN stays NaN.

    e^2x = 2^n·2^f with n + f = 2x·log₂e; 2^f − 1 by a polynomial that keeps its relative accuracy near 0.
    """
    y = x * TWICE_LOG2E
    y = LIMIT if y > LIMIT else y
    y = -LIMIT if y < -LIMIT else y
    # The last bits of `shifted` are n, because a number that large has no fraction.
    shifted = y + SHIFT
    f = y - (shifted - SHIFT)
    p = f * (T1 + f * (T2 + f * (T3 + f * (T4 + f * (T5 + f * T6)))))
    scale = np.int32((np.float32(shifted).view(np.int32) << np.int32(23)) + EXPONENT).view(np.float32)
    e = scale * p + (scale - ONE)
    return e / (e + TWO)


def tanh_of(x):
    """Return tanh x in the type of x; in plain Python, as NumPy computes it."""
    return np.tanh(x)


@overload(tanh_of, inline="always")
def _tanh_of(x):
    if x == types.float32:
        return lambda x: _short_tanh(x)  # noqa: PLW0108 - Numba needs a Python function here
    return lambda x: tanh_in_double(x)  # noqa: PLW0108


@helper
def features(a, b, t):
    """t ← tanh(a + b) for each hidden feature."""
    wide_registers()
    if t.itemsize == 4:
        for c in range(t.size):
            t[c] = _short_tanh(np.float32(a[c] + b[c]))
    else:
        for c in range(t.size):
            t[c] = tanh_in_double(np.float64(a[c]) + np.float64(b[c]))


@reduction
def score(a, b, v):
    """Return Σ v tanh(a + b)."""
    wide_registers()
    total = ZERO * v[0]
    if v.itemsize == 4:
        for c in range(v.size):
            total += _short_tanh(np.float32(a[c] + b[c])) * v[c]
    else:
        for c in range(v.size):
            total += tanh_in_double(np.float64(a[c]) + np.float64(b[c])) * v[c]
    return total
