"""Copy rows of tensors into tables padded with zeros to whole registers, and back; float32 or bfloat16."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np
from numba.core import types
from numba.extending import overload

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper
from qkv.linalg.small_matmul import LANES, N0, N1

# Exact in float32; a Python number would lift float32 to float64.
ZERO = np.float32(0)


def _wide(x):
    """Return a float32 from a float32, or from the 16 bits of a bfloat16; without Numba float32 only."""
    return x


@overload(_wide, inline="always")
def _wide_of(x):
    if isinstance(x, types.Float):
        return lambda x: x
    return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)


def _put(to, at, x):
    """Write a float32, rounded to nearest even if the array holds bfloat16."""
    to[at] = x


@overload(_put, inline="always")
def _put_in(to, at, x):
    if isinstance(to.dtype, types.Float):

        def put(to, at, x):
            to[at] = x

    else:

        def put(to, at, x):
            bits = np.float32(x).view(np.uint32)
            even = np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1))
            rounded = np.uint32(np.uint32(bits + even) >> np.uint32(16))
            to[at] = np.uint16(0x7FC0) if np.isnan(x) else np.uint16(rounded)

    return put


@helper
def clear(x, start, stop):
    """Set x[start:stop] to zero."""
    wide_registers()
    for i in range(start, stop):
        x[i] = ZERO


@helper
def load(x, start, of_row, first, last, width, to, deep, rows):
    """Copy the rows from first to last into a table (rows, deep), and fill the rest of it with zeros.

    Row r begins in x at `start + r * of_row`, and has `width` elements.
    """
    wide_registers()
    clear(to, N0, first * deep)
    for r in range(first, last):
        at, begin = r * deep, start + r * of_row
        for c in range(width):
            to[at + c] = _wide(x[begin + c])
        for c in range(width, deep):
            to[at + c] = ZERO
    clear(to, last * deep, rows * deep)


@helper
def store(x, rows, width, deep, to, start, of_row):
    """Copy the first `width` columns of a table (rows, deep) to rows of `to`, row r at `start + r * of_row`."""
    wide_registers()
    for r in range(rows):
        at, begin = r * deep, start + r * of_row
        for c in range(width):
            _put(to, begin + c, x[at + c])


@helper
def whole(size):
    """Round a size up to whole registers."""
    return (size + LANES - N1) // LANES * LANES
