"""Sparsemax and entmax of whole rows in place, exact and without sorting, and their derivatives.

With x = (α−1)(s − max s) the weights are max(0, x − τ)^(1/(α−1)), and τ is the root of

    f(τ) = Σ max(0, x − τ)^(1/(α−1)) − 1,

which falls. For α ≤ 2 it is convex: Newton's method started left of the root climbs to it and never passes it. The root
lies in [−1, 0), so it starts at −1, and only entries above −1 can ever matter: they are gathered once (a few in a
hundred, as a rule), and each step takes sums over them. For α = 2, where f is made of straight pieces, the steps end on
the root after finitely many; for α = 1.5 they double the digits. For other α the steps are kept within an interval that
holds the root. Sums and τ are float64, and float32 weights are rounded once.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.algorithms.rowwise.row_loops_kernel import largest
from qkv.compiled.exp import LN2_HIGH, LN2_LOW, exp
from qkv.compiled.kernels import helper, inlined, kernel, reduction

STEPS = 100
LEAST = 1e-300
# Exact in both float types; a Python number would lift float32 to float64.
ZERO, ONE = np.float32(0), np.float32(1)


@helper
def _log(x):
    """Compute log x of a normal x > 0 in float64: n·log 2 + 2·atanh((m−1)/(m+1)) of x = 2^n·m, ½ < m² ≤ 2."""
    bits = np.float64(x).view(np.int64)
    n = (bits - 0x3FE6A09E667F3BCD) >> 52
    m = np.int64(bits - (n << 52)).view(np.float64)
    z = (m - 1.0) / (m + 1.0)
    y = z * z
    low = (1 / 3) + y * ((1 / 5) + y * ((1 / 7) + y * ((1 / 9) + y * (1 / 11))))
    high = (1 / 13) + y * ((1 / 15) + y * ((1 / 17) + y * ((1 / 19) + y * (1 / 21))))
    tail = y * (low + y * y * y * y * y * high)
    return np.float64(n) * LN2_HIGH + (2.0 * z + (2.0 * z * tail + np.float64(n) * LN2_LOW))


@helper
def _power(base, exponent):
    """max(0, base)^exponent, 0 where the base or the power is below the normal numbers."""
    y = exponent * _log(base if base > LEAST else 1.0)
    y = -708.0 if y < -708.0 else (708.0 if y > 708.0 else y)
    e = exp(y)
    return e if base > LEAST and y > -708.0 else 0.0


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


@reduction
def _step_of_any(near, tau, exponent):
    """Give Σ max(0, x − τ)^e and Σ max(0, x − τ)^(e−1)."""
    whole, slope = 0.0, 0.0
    for k in range(near.size):
        d = near[k] - tau
        p = _power(d, exponent)
        whole += p
        slope += p / d if d > LEAST else 0.0
    return whole, slope


@helper
def _climb(near, sparse):
    """Climb to the root of f from −1, for α = 2 and 1.5; stops where a step no longer climbs."""
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
def _close_in(near, exponent):
    """Find the root of f for any α: Newton's steps, and halves where one would leave the interval of the root."""
    low, high, tau = -1.0, 0.0, -1.0
    for _ in range(STEPS):
        whole, slope = _step_of_any(near, tau, exponent)
        if whole >= 1.0:
            low = tau
        else:
            high = tau
        following = tau + (whole - 1.0) / (exponent * slope) if slope > 0.0 else low
        if not low < following < high:
            following = 0.5 * (low + high)
        if following == tau or following <= low or following >= high:
            break
        tau = following
    return tau


@helper
def _easy(alpha):
    """Whether a power is a product."""
    return alpha == 2.0 or alpha == 1.5  # noqa: PLR1714 - Numba knows no sets


@helper
def _weigh(s, top, alpha, tau):
    slope = alpha - 1.0
    if _easy(alpha):
        for k in range(s.size):
            d = slope * (np.float64(s[k]) - top) - tau
            d = d if d > 0.0 else 0.0
            s[k] = d if alpha == 2.0 else d * d
    else:
        for k in range(s.size):
            s[k] = _power(slope * (np.float64(s[k]) - top) - tau, 1.0 / slope)


@kernel("void(i8, i8, f8[::1], F[:,:,::1], f8[:,::1], f8[::1], F[::1])")
def entmax(start, stop, alpha, scores, tau, near, columns):
    """Turn the rows start to stop, counted over (L, h), of scores into weights.

    Args:
        start, stop: the range of rows.
        alpha: (L); 2 is sparsemax.
        scores: in place, (L, h, K); −inf where a key is hidden, whose weight is then 0.
        tau: out, (L, h): τ of (α−1)·s itself, not shifted; +inf in a row that sees nothing, NaN in one that holds NaN.
        near, columns: scratch of this thread: K + 1 and 64.
    """
    for row in range(start, stop):
        n, q = row // scores.shape[1], row % scores.shape[1]
        s, slope = scores[n, q], alpha[n] - 1.0
        top = np.float64(largest(s, columns))
        if _unequal_to_itself(s) > 0 or top == np.inf:
            tau[n, q] = np.nan
            for k in range(s.size):
                s[k] = ZERO if s[k] == -np.inf else np.nan
        elif top == -np.inf:
            tau[n, q] = np.inf
            s[:] = 0
        else:
            found = near[: _gather(s, top, slope, near)]
            shifted = _climb(found, alpha[n] == 2.0) if _easy(alpha[n]) else _close_in(found, 1.0 / slope)
            _weigh(s, top, alpha[n], shifted)
            tau[n, q] = shifted + slope * top


@helper
def _slopes(w, alpha, q):
    """q = p^(2−α), so that dp/ds = diag(q) − qqᵀ/Σq."""
    if alpha == 2.0:
        for k in range(q.size):
            q[k] = ONE if w[k] > ZERO else w[k]
    elif alpha == 1.5:
        for k in range(q.size):
            q[k] = np.sqrt(w[k])
    else:
        for k in range(q.size):
            q[k] = _power(np.float64(w[k]), 2.0 - alpha) + (w[k] - w[k])


@reduction
def _sums(q, g):
    """Give Σq and Σqg."""
    total, pulled = 0.0, 0.0
    for k in range(q.size):
        total += np.float64(q[k])
        pulled += np.float64(q[k]) * np.float64(g[k])
    return total, pulled


@reduction
def _sums_of_alpha(w, g, slope):
    """Give the sums of dp/dα's own part, p/(α−1)² − p log p/(α−1), alone and with the gradient."""
    own, pulled = 0.0, 0.0
    for k in range(w.size):
        p = np.float64(w[k])
        part = p / (slope * slope) - p * _log(p if p > LEAST else 1.0) / slope
        own += part
        pulled += part * np.float64(g[k])
    return own, pulled


@helper
def _level(q, g, level):
    for k in range(g.size):
        g[k] = q[k] * (g[k] - level)


@inlined
def _pull_alpha(w, g, slope, total, pulled, tau, of_tau):
    """Give the gradient of α: Σ dp/dα = 0 gives the share c of q; dτ/dα = τ/(α−1) − (α−1)c."""
    own, own_pulled = _sums_of_alpha(w, g, slope)
    c = -own / total
    return own_pulled + c * pulled + (tau / slope - slope * c) * of_tau


@kernel("void(i8, i8, f8[::1], b1, F[:,:,::1], f8[:,::1], f8[:,::1], F[:,:,::1], f8[:,::1], F[::1], F[::1])")
def entmax_back(start, stop, alpha, learns, weights, tau, of_tau, grads, d_alpha, q, hold):
    """Turn gradients of the weights into those of the scores, for the rows start to stop, counted over (L, h).

    Args:
        start, stop, alpha, tau: as in `entmax`, which gave τ.
        learns: whether the gradient of α is wanted.
        weights: (L, h, K), what `entmax` gave.
        of_tau: (L, h), the gradient of τ; of size zero where there is none.
        grads: in place, (L, h, K).
        d_alpha: out, (L, h).
        q, hold: scratch of this thread: K and 1.

    Source: Peters, Niculae and Martins 2019, section 3; Correia, Niculae and Martins 2019, "Adaptively Sparse
        Transformers", proposition 1.
    """
    for row in range(start, stop):
        n, r = row // grads.shape[1], row % grads.shape[1]
        w, g, slope = weights[n, r], grads[n, r], alpha[n] - 1.0
        pulled_tau = of_tau[n, r] if of_tau.size else 0.0
        _slopes(w, alpha[n], q)
        total, pulled = _sums(q, g)
        d_alpha[n, r] = 0
        if tau[n, r] == np.inf:
            g[:] = 0
        else:
            if learns:
                d_alpha[n, r] = _pull_alpha(w, g, slope, total, pulled, tau[n, r], pulled_tau)
            hold[0] = (pulled - slope * pulled_tau) / total
            _level(q, g, hold[0])
