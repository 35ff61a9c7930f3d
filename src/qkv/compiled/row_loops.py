"""Loops along one row of scores or weights."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, reduction


@helper
def copy_row(x, y):
    """y ← x."""
    for k in range(x.size):
        y[k] = x[k]


@helper
def hide(s, seen, hidden):
    """s ← `hidden` where a key is masked."""
    for k in range(s.size):
        s[k] = s[k] if seen[k] else hidden


@reduction
def count_true(seen):
    """Return how many keys are seen."""
    count = 0
    for k in range(seen.size):
        count += seen[k]
    return count


@helper
def largest(s, lower, columns):
    """Return the largest score that is not NaN, at least `lower`; 64 running maxima, in `columns`, fill registers."""
    columns[:] = lower
    full = s.size - s.size % 64
    for start in range(0, full, 64):
        block = s[start : start + 64]
        for k in range(64):
            columns[k] = block[k] if block[k] > columns[k] else columns[k]
    for k in range(full, s.size):
        columns[0] = s[k] if s[k] > columns[0] else columns[0]
    top = columns[0]
    for k in range(64):
        top = columns[k] if columns[k] > top else top
    return top


@reduction
def dot(x, y):
    """Return Σ xy, summed in the type of x and y."""
    wide_registers()
    # Exact in both float types; a Python number would promote float32 to float64.
    total = np.float32(0)
    for k in range(x.size):
        total += x[k] * y[k]
    return total


@reduction
def sum_of(x):
    """Return Σ x, summed in float64."""
    wide_registers()
    total = 0.0
    for k in range(x.size):
        total += np.float64(x[k])
    return total
