"""Dropout by a hash of (seed, row, key) in 32 bits, of which a register holds twice as many as of 64 bits."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.hints import wide_registers
from qkv.compiled.kernels import helper

LOW32 = 0xFFFFFFFF
# Exact in both float types; a Python float would promote float32 to float64.
ZERO = np.float32(0)


@helper
def mix(x):
    """Mix 32 bits by MurmurHash3's fmix32, as `qkv.engine.dropout.mix`; the casts undo Numba's promotion to 64 bits."""
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(x ^ (x >> np.uint32(16)))


@helper
def row_bits(seed, row):
    """Return the hash of seed and row, which `mix` joins with that of a key."""
    high_row = mix(np.uint32(mix(np.uint32(row >> np.uint64(32))) + np.uint32(1)))
    both = np.uint32(mix(np.uint32(seed & np.uint64(LOW32))) + mix(np.uint32(seed >> np.uint64(32))))
    return mix(np.uint32(both + np.uint32(mix(np.uint32(row & np.uint64(LOW32))) + high_row)))


@helper
def is_dropped(bits, key, threshold):
    """Return whether the weight of a key is dropped, from the hash of seed and row."""
    return mix(np.uint32(bits + mix(np.uint32(np.uint32(key) + np.uint32(0x9E3779B9))))) < threshold


@helper
def keep_factors(factors, bits, start, threshold, keep):
    """factors ← what dropout multiplies the weights of keys from `start` on by: 0 or 1/(1 − p)."""
    wide_registers()
    for k in range(factors.size):
        factors[k] = ZERO if is_dropped(bits, start + k, threshold) else keep


@helper
def drop_weights(w, bits, start, threshold, keep):
    """Drop weights of keys from `start` on, and multiply the others by 1/(1 − p)."""
    wide_registers()
    for k in range(w.size):
        w[k] = ZERO if is_dropped(bits, start + k, threshold) else w[k] * keep
