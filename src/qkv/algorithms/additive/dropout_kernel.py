"""Dropout of additive attention: a hash of (seed, row, key) decides, so that the backward pass can repeat it."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.kernels import helper

LOW32 = 0xFFFFFFFF
# Exact in both float types; a Python float would promote float32 to float64.
_ZERO = np.float32(0)


@helper
def mix(x):
    """Mix 32 bits held in uint64: MurmurHash3's fmix32, as `qkv.engine.dropout.mix`."""
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x85EBCA6B)) & np.uint64(LOW32)
    x = ((x ^ (x >> np.uint64(13))) * np.uint64(0xC2B2AE35)) & np.uint64(LOW32)
    return x ^ (x >> np.uint64(16))


@helper
def row_bits(seed, row):
    """Return the hash of seed and row, which `mix` joins with that of a key."""
    low = np.uint64(LOW32)
    high_row = mix((mix((row >> np.uint64(32)) & low) + np.uint64(1)) & low)
    both = mix(seed & low) + mix((seed >> np.uint64(32)) & low)
    return mix((both + mix(row & low) + high_row) & low)


@helper
def drop_weights(s, bits, start, threshold, scale):
    """Apply dropout: the hash of (seed, row, key) decides which weights become 0; the others are scaled."""
    low = np.uint64(LOW32)
    for k in range(s.size):
        key = mix((np.uint64(start + k) + np.uint64(0x9E3779B9)) & low)
        s[k] = s[k] * scale if mix((bits + key) & low) >= threshold else _ZERO
