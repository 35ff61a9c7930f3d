"""Exponentials in float64 and float32, for kernels: NumPy's would be called number by number and fill no register."""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.kernels import helper, inlined

LOG2E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01  # the first 33 bits of ln 2, so that n · LN2_HIGH is exact for |n| < 2^20
LN2_LOW = 1.90821492927058770002e-10
# Exact in float32; a Python number would promote float32 to float64.
_ZERO, _LEAST = np.float32(0), np.float32(-87.0)
_LOG2E, _HIGH, _LOW = np.float32(LOG2E), np.float32(0.693359375), np.float32(-2.12194440e-4)
_D2, _D3, _D4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
_D5, _D6, _D7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)


@inlined
def _thirds(r, r2):
    """Return three parts of Taylor's series: e^r = 1 + r + r² (low + r⁴ (middle + r⁴ high)), for |r| ≤ ½ ln 2."""
    low = (0.5 + r * (1 / 6)) + r2 * ((1 / 24) + r * (1 / 120))
    middle = ((1 / 720) + r * (1 / 5040)) + r2 * ((1 / 40320) + r * (1 / 362880))
    high = ((1 / 3628800) + r * (1 / 39916800)) + r2 * ((1 / 479001600) + r * (1 / 6227020800))
    return low, middle, high


@helper
def exp(x):
    """Return e^x in float64, for |x| ≤ 708."""
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    r2 = r * r
    low, middle, high = _thirds(r, r2)
    r4 = r2 * r2
    scale = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
    return scale * (r + r2 * (low + r4 * (middle + r4 * high))) + scale


@helper
def exp_or_zero(x):
    """Return e^x for x ≤ 708, exactly 0 below e^−708; NaN stays NaN."""
    e = exp(-708.0 if x < -708.0 else x)
    return 0.0 if x < -708.0 else e


@helper
def exp_times_power(x, power):
    """Return e^x · 2^power for |x| < 2^18, in float64."""
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    r2 = r * r
    low, middle, high = _thirds(r, r2)
    r4 = r2 * r2
    scale = np.int64((np.int64(n + power) + 1023) << 52).view(np.float64)
    return scale * (r + r2 * (low + r4 * (middle + r4 * high))) + scale


@helper
def expm1_and_exp(x):
    """Return e^x − 1 and e^x in float64, for |x| ≤ 708; the first keeps its relative accuracy near 0."""
    n = np.rint(x * LOG2E)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    r2 = r * r
    low, middle, high = _thirds(r, r2)
    r4 = r2 * r2
    p = r + r2 * (low + r4 * (middle + r4 * high))
    scale = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
    return scale * p + (scale - 1.0), scale * p + scale


@helper
def exp_single(x):
    """Return e^x in float32 within one unit of the last place, for |x| ≤ 87.

    Source: Moshier 1989, Cephes, `expf`.
    """
    n = np.rint(x * _LOG2E)
    r = (x - n * _HIGH) - n * _LOW
    p = _D2 + r * (_D3 + r * (_D4 + r * (_D5 + r * (_D6 + r * _D7))))
    scale = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return (r * r * p + r) * scale + scale


@helper
def exp_single_or_zero(x):
    """Return e^x in float32 for x ≤ 87, exactly 0 below e^−87; NaN stays NaN."""
    e = exp_single(_LEAST if x < _LEAST else x)
    return _ZERO if x < _LEAST else e
