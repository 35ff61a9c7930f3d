"""Copy rows of tensors into tables padded with zeros to whole registers, and back; float32 or bfloat16."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.codegen import overload, types
from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper, reduction
from qkv.linalg.small_matmul import LANES, N0, N1

# Exact in float32; a Python float would promote float32 to float64.
ZERO = np.float32(0)


def _to_float32(x):
    """Return a float32 from a float32, or from the 16 bits of a bfloat16; without Numba float32 only."""
    return x


@overload(_to_float32, inline="always")
def _overload_to_float32(x):
    if isinstance(x, types.Float):
        return lambda x: x
    return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)


def _write(to, at, x):
    """Write a float32, rounded to nearest even if the array holds bfloat16."""
    to[at] = x


@overload(_write, inline="always")
def _overload_write(to, at, x):
    if isinstance(to.dtype, types.Float):

        def write(to, at, x):
            to[at] = x

    else:

        def write(to, at, x):
            bits = np.float32(x).view(np.uint32)
            even = np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1))
            rounded = np.uint32(np.uint32(bits + even) >> np.uint32(16))
            to[at] = np.uint16(0x7FC0) if np.isnan(x) else np.uint16(rounded)

    return write


@helper
def clear(x, start, stop):
    """Set x[start:stop] to zero."""
    wide_registers()
    for i in range(start, stop):
        x[i] = ZERO


@helper
def load(x, start, of_row, by, first, last, width, to, padded_width, rows):
    """Copy the rows from first to last into a table (rows, padded_width), and fill the rest of it with zeros.

    Row r begins in x at `start + r * of_row`, and has `width` elements with a stride of `by`.
    """
    wide_registers()
    clear(to, N0, first * padded_width)
    for r in range(first, last):
        at, begin = r * padded_width, start + r * of_row
        if by == N1:
            for c in range(width):
                to[at + c] = _to_float32(x[begin + c])
        else:
            for c in range(width):
                to[at + c] = _to_float32(x[begin + c * by])
        for c in range(width, padded_width):
            to[at + c] = ZERO
    clear(to, last * padded_width, rows * padded_width)


@helper
def _store_row(x, row, width, to, begin):
    wide_registers()
    for c in range(width):
        _write(to, begin + c, x[row + c])


@helper
def _scatter_row(x, row, width, to, begin, by):
    for c in range(width):
        _write(to, begin + c * by, x[row + c])


@helper
def store(x, at, rows, width, padded_width, to, start, of_row, by):
    """Copy the first `width` columns of a table (rows, padded_width), which begins at `at`, to rows of `to`.

    Row r goes to `start + r * of_row`, with a stride of `by`.
    """
    for r in range(rows):
        row, begin = at + r * padded_width, start + r * of_row
        if by == N1:
            _store_row(x, row, width, to, begin)
        else:
            _scatter_row(x, row, width, to, begin, by)


@reduction
def dot_in_float64(x, y, at, width):
    """Return the dot product of the rows of x and y that begin at `at`, summed in float64."""
    wide_registers()
    total = 0.0
    for c in range(width):
        total += np.float64(x[at + c]) * np.float64(y[at + c])
    return total


@helper
def round_up(size):
    """Round a size up to a multiple of a register's lanes."""
    return (size + LANES - N1) // LANES * LANES
