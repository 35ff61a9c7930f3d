"""Sparsemax and entmax of whole rows in place, exact and without sorting, and their gradients.

With x = (α−1)(s − max s) the weights are max(0, x − τ)^(1/(α−1)), and τ is the root of

    f(τ) = Σ max(0, x − τ)^(1/(α−1)) − 1,

which decreases. For α ≤ 2 it is convex: Newton's method started left of the root approaches it from the left. The root
lies in [−1, 0), so the method starts at −1, and only entries above −1 can matter: they are gathered once (usually a few
percent), and each step sums over them. For α = 2, f is piecewise linear, and the steps reach the root after finitely
many; for α = 1.5 each step doubles the number of correct digits. For other α the steps are confined to an interval that
contains the root. Sums and τ are float64, and float32 weights are rounded once.
"""

# mypy: ignore-errors
# Numba's signatures are the types here.

import numpy as np

from qkv.compiled.exp import LN2_HIGH, LN2_LOW, exp
from qkv.compiled.kernels import helper, inlined, kernel, reduction
from qkv.compiled.row_loops import largest

STEPS = 100
LEAST = 1e-300
# Exact in both float types; a Python float would promote float32 to float64.
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
    """Return max(0, base)^exponent; 0 if the base or the power is not a normal number."""
    y = exponent * _log(base if base > LEAST else 1.0)
    y = -708.0 if y < -708.0 else (708.0 if y > 708.0 else y)
    e = exp(y)
    return e if base > LEAST and y > -708.0 else 0.0


@reduction
def _count_nan(s):
    """Count the entries that are NaN."""
    count = 0
    for k in range(s.size):
        count += s[k] != s[k]
    return count


@helper
def _gather(s, top, slope, near):
    """near ← the entries x = slope·(s − top) above −1; return how many there are."""
    count = 0
    for k in range(s.size):
        x = slope * (np.float64(s[k]) - top)
        near[count] = x
        count += x > -1.0
    return count


@reduction
def _sums_for_sparsemax(near, tau):
    """Return the number of entries above τ and their sum."""
    count, total = 0.0, 0.0
    for k in range(near.size):
        above = near[k] > tau
        count += 1.0 if above else 0.0
        total += near[k] if above else 0.0
    return count, total


@reduction
def _sums_for_entmax15(near, tau):
    """Return Σ max(0, x − τ) and Σ max(0, x − τ)²."""
    first_power, second_power = 0.0, 0.0
    for k in range(near.size):
        d = near[k] - tau
        d = d if d > 0.0 else 0.0
        first_power += d
        second_power += d * d
    return first_power, second_power


@reduction
def _sums_for_any_alpha(near, tau, exponent):
    """Return Σ max(0, x − τ)^e and Σ max(0, x − τ)^(e−1)."""
    total, slope = 0.0, 0.0
    for k in range(near.size):
        d = near[k] - tau
        p = _power(d, exponent)
        total += p
        slope += p / d if d > LEAST else 0.0
    return total, slope


@helper
def _newton(near, sparse):
    """Return the root of f for α = 2 and 1.5, by Newton's method from −1 until a step no longer increases τ."""
    tau = -1.0
    for _ in range(STEPS):
        if sparse:
            count, total = _sums_for_sparsemax(near, tau)
            next_tau = (total - 1.0) / count
        else:
            first_power, second_power = _sums_for_entmax15(near, tau)
            next_tau = tau + (second_power - 1.0) / (2.0 * first_power)
        if not next_tau > tau:
            break
        tau = next_tau
    return tau


@helper
def _bounded_newton(near, exponent):
    """Return the root of f for any α, by Newton's method, or bisection where a step would leave the root's interval."""
    low, high, tau = -1.0, 0.0, -1.0
    for _ in range(STEPS):
        total, slope = _sums_for_any_alpha(near, tau, exponent)
        if total >= 1.0:
            low = tau
        else:
            high = tau
        next_tau = tau + (total - 1.0) / (exponent * slope) if slope > 0.0 else low
        if not low < next_tau < high:
            next_tau = 0.5 * (low + high)
        if next_tau == tau or next_tau <= low or next_tau >= high:
            break
        tau = next_tau
    return tau


@helper
def _is_product(alpha):
    """Return whether the power 1/(α−1) is 1 or 2, a product."""
    return alpha == 2.0 or alpha == 1.5  # noqa: PLR1714 - Numba knows no sets


@helper
def _scores_to_weights(s, top, alpha, tau):
    slope = alpha - 1.0
    if _is_product(alpha):
        for k in range(s.size):
            d = slope * (np.float64(s[k]) - top) - tau
            d = d if d > 0.0 else 0.0
            s[k] = d if alpha == 2.0 else d * d
    else:
        for k in range(s.size):
            s[k] = _power(slope * (np.float64(s[k]) - top) - tau, 1.0 / slope)


@helper
def project_row(s, alpha, near, columns):
    """s ← the weights of a row of scores, −inf for masked keys; return τ of (α−1)·s, not shifted.

    It is +inf for a row without visible keys, NaN for a row with a NaN.
    """
    slope = alpha - 1.0
    top = np.float64(largest(s, -np.inf, columns))
    if _count_nan(s) > 0 or top == np.inf:
        for k in range(s.size):
            s[k] = ZERO if s[k] == -np.inf else np.nan
        return np.nan
    if top == -np.inf:
        s[:] = 0
        return np.inf
    gathered = near[: _gather(s, top, slope, near)]
    shifted = _newton(gathered, alpha == 2.0) if _is_product(alpha) else _bounded_newton(gathered, 1.0 / slope)
    _scores_to_weights(s, top, alpha, shifted)
    return shifted + slope * top


@kernel("void(i8, i8, f8[::1], F[:,:,::1], f8[:,::1], f8[::1], F[::1])", scratch=2)
def entmax(start, stop, alpha, scores, tau, near, columns):
    """Compute the weights of the rows start to stop, counted over (L, h), in place of their scores.

    Args:
        start, stop: the range of rows.
        alpha: (L); 2 is sparsemax.
        scores: (L, h, K), −inf for masked keys; overwritten with the weights.
        tau: (L, h), written, as `project_row` returns it.
        near, columns: scratch of this thread, K + 1 and 64 numbers.
    """
    for row in range(start, stop):
        n, q = row // scores.shape[1], row % scores.shape[1]
        tau[n, q] = project_row(scores[n, q], alpha[n], near, columns)


@helper
def _slopes(w, alpha, q):
    """q ← p^(2−α), so that dp/ds = diag(q) − qqᵀ/Σq."""
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
    """Return Σq and Σqg."""
    total, total_qg = 0.0, 0.0
    for k in range(q.size):
        total += np.float64(q[k])
        total_qg += np.float64(q[k]) * np.float64(g[k])
    return total, total_qg


@reduction
def _alpha_sums(w, g, slope):
    """Return Σd and Σdg of d = p/(α−1)² − p log p/(α−1), which is dp/dα at constant τ."""
    total_d, total_dg = 0.0, 0.0
    for k in range(w.size):
        p = np.float64(w[k])
        d = p / (slope * slope) - p * _log(p if p > LEAST else 1.0) / slope
        total_d += d
        total_dg += d * np.float64(g[k])
    return total_d, total_dg


@helper
def _multiply_difference(q, g, mean):
    for k in range(g.size):
        g[k] = q[k] * (g[k] - mean)


@inlined
def _alpha_gradient(w, g, slope, total, total_qg, tau, g_tau):
    """Return the gradient of α. dp/dα = d + cq with Σ dp/dα = 0, and dτ/dα = τ/(α−1) − (α−1)c."""
    total_d, total_dg = _alpha_sums(w, g, slope)
    c = -total_d / total
    return total_dg + c * total_qg + (tau / slope - slope * c) * g_tau


@helper
def project_row_back(w, g, alpha, needs_alpha, tau, g_tau, q, typed):
    """g ← the gradients of a row's scores, from those of its weights w; return the gradient of α."""
    slope, d_alpha = alpha - 1.0, 0.0
    if tau == np.inf:
        g[:] = 0
        return d_alpha
    _slopes(w, alpha, q)
    total, total_qg = _sums(q, g)
    if needs_alpha:
        d_alpha = _alpha_gradient(w, g, slope, total, total_qg, tau, g_tau)
    typed[0] = (total_qg - slope * g_tau) / total
    _multiply_difference(q, g, typed[0])
    return d_alpha


@kernel("void(i8, i8, f8[::1], b1, F[:,:,::1], f8[:,::1], f8[:,::1], F[:,:,::1], f8[:,::1], F[::1], F[::1])", scratch=2)
def entmax_back(start, stop, alpha, needs_alpha, weights, tau, g_tau, grads, d_alpha, q, typed):
    """Compute the gradients of the scores from those of the weights, in place, for the rows start to stop of (L, h).

    Args:
        start, stop, alpha: as in `entmax`.
        needs_alpha: whether to compute the gradient of α.
        weights, tau: as computed by `entmax`.
        g_tau: (L, h), the gradient of τ; of size zero for none.
        grads: (L, h, K), overwritten.
        d_alpha: (L, h), written.
        q, typed: scratch of this thread, K and 1 numbers.

    Source: Peters, Niculae and Martins 2019, section 3; Correia, Niculae and Martins 2019, "Adaptively Sparse
        Transformers", proposition 1.
    """
    for row in range(start, stop):
        n, r = row // grads.shape[1], row % grads.shape[1]
        g_row_tau = g_tau[n, r] if g_tau.size else 0.0
        d_alpha[n, r] = project_row_back(
            weights[n, r], grads[n, r], alpha[n], needs_alpha, tau[n, r], g_row_tau, q, typed
        )
