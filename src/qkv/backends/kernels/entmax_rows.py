"""Sparsemax and 1.5-entmax of whole rows in place, exact and without sorting.

With x = (α−1)(s − max s) the weights are max(0, x − τ)^(1/(α−1)), and τ is the root of

    f(τ) = Σ max(0, x − τ)^(1/(α−1)) − 1,

which is convex and falls: Newton's method started left of the root climbs to it and never passes it. The root lies in
[−1, 0), so it starts at −1, and only entries above −1 can ever matter: they are gathered once (a few in a hundred, as
a rule), and each step takes sums over them. For α = 2, where f is made of straight pieces, the steps end on the root
after finitely many; for α = 1.5 they double the digits. Sums and τ are float64, and float32 weights are rounded once.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.backends.kernels.compiled import helper, kernel, reduction

STEPS = 100
# Exact in both float types; a Python number would lift float32 to float64.
ZERO = np.float32(0)


@helper
def _largest(s, columns):
    """Give the largest score that is not NaN, taken in 64 columns so that it fills registers."""
    columns[:] = -np.inf
    whole = s.size - s.size % 64
    for start in range(0, whole, 64):
        part = s[start : start + 64]
        for k in range(64):
            columns[k] = part[k] if part[k] > columns[k] else columns[k]
    for k in range(whole, s.size):
        columns[0] = s[k] if s[k] > columns[0] else columns[0]
    top = columns[0]
    for k in range(64):
        top = columns[k] if columns[k] > top else top
    return top


@reduction
def _unequal_to_itself(s):
    """Count the entries that are NaN."""
    count = 0
    for k in range(s.size):
        count += s[k] != s[k]
    return count


@helper
def _gather(s, top, slope, near):
    """Gather the entries x = slope·(s − top) above −1, and say how many there are."""
    count = 0
    for k in range(s.size):
        x = slope * (np.float64(s[k]) - top)
        near[count] = x
        count += x > -1.0
    return count


@reduction
def _step_of_two(near, tau):
    """Give the number of entries above τ and their sum."""
    count, total = 0.0, 0.0
    for k in range(near.size):
        above = near[k] > tau
        count += 1.0 if above else 0.0
        total += near[k] if above else 0.0
    return count, total


@reduction
def _step_of_three_halves(near, tau):
    """Give Σ max(0, x − τ) and Σ max(0, x − τ)²."""
    once, twice = 0.0, 0.0
    for k in range(near.size):
        d = near[k] - tau
        d = d if d > 0.0 else 0.0
        once += d
        twice += d * d
    return once, twice


@helper
def _threshold(near, sparse):
    """Climb to the root of f from −1; stops where a step no longer climbs."""
    tau = -1.0
    for _ in range(STEPS):
        if sparse:
            count, total = _step_of_two(near, tau)
            following = (total - 1.0) / count
        else:
            once, twice = _step_of_three_halves(near, tau)
            following = tau + (twice - 1.0) / (2.0 * once)
        if not following > tau:
            break
        tau = following
    return tau


@helper
def _weigh(s, top, slope, tau, sparse):
    for k in range(s.size):
        d = slope * (np.float64(s[k]) - top) - tau
        d = d if d > 0.0 else 0.0
        s[k] = d if sparse else d * d


@kernel("void(i8, i8, b1, F[:,::1], f8[::1], f8[::1], F[::1])")
def entmax(start, stop, sparse, scores, tau, near, columns):
    """Turn rows of scores into weights.

    Args:
        start, stop: the range of rows.
        sparse: α = 2 (sparsemax); otherwise α = 1.5.
        scores: in place, (R, K); −inf where a key is hidden, whose weight is then 0.
        tau: out, (R): τ of (α−1)·s itself, not shifted; +inf in a row that sees nothing, NaN in one that holds NaN.
        near, columns: scratch of this thread: K + 1 and 64.
    """
    slope = 1.0 if sparse else 0.5
    for r in range(start, stop):
        s = scores[r]
        top = np.float64(_largest(s, columns))
        if _unequal_to_itself(s) > 0 or top == np.inf:
            tau[r] = np.nan
            for k in range(s.size):
                s[k] = ZERO if s[k] == -np.inf else np.nan
        elif top == -np.inf:
            tau[r] = np.inf
            s[:] = 0
        else:
            count = _gather(s, top, slope, near)
            shifted = _threshold(near[:count], sparse)
            _weigh(s, top, slope, shifted, sparse)
            tau[r] = shifted + slope * top
