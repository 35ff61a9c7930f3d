"""Squared norms of rows, and rows extended by their norm and a one, whose dot products are squared distances."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import kernel, reduction

ZERO, ONE = np.float32(0), np.float32(1)


@reduction
def _scale_row(x, factor, out):
    """out ← factor·x; return ‖x‖²."""
    wide_registers()
    total = ZERO * ONE
    for c in range(x.size):
        out[c] = factor * x[c]
        total += x[c] * x[c]
    return total


@kernel("void(i8, i8, F[:,::1], F, i8, F[:,::1], F[::1])", scratch=0)
def extend(start, stop, x, factor, first, out, norms):
    """Extend the rows start to stop by two columns: their squared norm and a one.

    Args:
        start, stop: the range of rows.
        x: (N, F).
        factor: multiplies the rows.
        first: 0 if the norm stands before the one, 1 if it follows.
        out: (N, F + 2), written.
        norms: ‖x‖² (N,), written.
    """
    width = x.shape[1]
    for n in range(start, stop):
        norm = _scale_row(x[n], factor, out[n, :width])
        norms[n] = norm
        out[n, width + first], out[n, width + 1 - first] = norm, ONE


@reduction
def _norm(x):
    """Return ‖x‖²."""
    wide_registers()
    total = ZERO * ONE
    for c in range(x.size):
        total += x[c] * x[c]
    return total


@kernel("void(i8, i8, F[:,::1], F[::1])", scratch=0)
def square(start, stop, x, norms):
    """Write the squared norms of the rows start to stop.

    Args:
        start, stop: the range of rows.
        x: (N, F).
        norms: ‖x‖² (N,), written.
    """
    for n in range(start, stop):
        norms[n] = _norm(x[n])
