"""Pack rows of weights that are zero or one common number into bits, and unpack them.

With S = K // 8, bit b of byte j stands for key bS + j, so that packing and unpacking both use whole vector registers;
the last byte of a row has the remaining keys.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.kernels import helper, kernel, wide_registers

ONE, ZERO = np.float32(1), np.float32(0)


@helper
def _pack(w, own, bit):
    wide_registers()
    for j in range(own.size):
        own[j] |= np.uint8(bit if w[j] != 0 else 0)


@helper
def _unpack(own, bit, w):
    wide_registers()
    for j in range(own.size):
        w[j] = ONE if own[j] & bit else ZERO


@kernel("void(i8, i8, F[:,::1], u1[:,::1])")
def pack(start, stop, weights, bits):
    """Write one bit per weight of the rows start to stop: whether it is not zero.

    Args:
        start, stop: the range of rows.
        weights: (R, K).
        bits: out, (R, K // 8 + 1).
    """
    apart, whole = weights.shape[1] // 8, weights.shape[1] // 8 * 8
    for row in range(start, stop):
        own, w = bits[row, :apart], weights[row]
        own[:] = 0
        for b in range(8):
            _pack(w[b * apart : b * apart + apart], own, np.uint8(1 << b))
        rest = 0
        for k in range(whole, w.size):
            rest |= (1 if w[k] != 0 else 0) << (k - whole)
        bits[row, apart] = np.uint8(rest)


@kernel("void(i8, i8, u1[:,::1], F[:,::1])")
def unpack(start, stop, bits, weights):
    """Write 1 for each nonzero weight of the rows start to stop, and 0 for the others.

    Args:
        start, stop: the range of rows.
        bits: (R, K // 8 + 1).
        weights: out, (R, K).
    """
    apart, whole = weights.shape[1] // 8, weights.shape[1] // 8 * 8
    for row in range(start, stop):
        own, w = bits[row, :apart], weights[row]
        for b in range(8):
            _unpack(own, np.uint8(1 << b), w[b * apart : b * apart + apart])
        for k in range(whole, w.size):
            w[k] = ONE if bits[row, apart] >> np.uint8(k - whole) & 1 else ZERO
