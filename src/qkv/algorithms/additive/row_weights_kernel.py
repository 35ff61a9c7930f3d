"""The normalizers of additive attention, on the scores of a row or of a part of one."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import expm1_and_exp
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, reduction

SOFTMAX, IDENTITY, SIGMOID = 0, 1, 2
# Exact in both float types; a Python float would promote float32 to float64.
_ZERO = np.float32(0)


@helper
def exponentials(s, base):
    """s ← exp(s − base); exactly 0 below exp(−708)."""
    wide_registers()
    for k in range(s.size):
        x = np.float64(s[k] - base)
        _, e = expm1_and_exp(-708.0 if x < -708.0 else x)
        s[k] = 0.0 if x < -708.0 else e


@helper
def logistic(s, shift):
    """s ← σ(s + shift)."""
    wide_registers()
    for k in range(s.size):
        x = -np.float64(s[k] + shift)
        x = 700.0 if x > 700.0 else x
        _, e = expm1_and_exp(-708.0 if x < -708.0 else x)
        s[k] = 0.0 if x == 700.0 else 1.0 / (1.0 + e)


@reduction
def total_of(s):
    """Return Σ s."""
    total = _ZERO * s[0]
    for k in range(s.size):
        total += s[k]
    return total


@helper
def divide_by_sum(out, total):
    """Divide by the sum of a softmax row; a row whose sum is 0 becomes 0."""
    if total == 0:
        out[:] = 0
    else:
        for c in range(out.size):
            out[c] /= total
