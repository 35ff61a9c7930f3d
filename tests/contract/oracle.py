"""The equations once more, in NumPy and extended precision, sharing no code with qkv: the judge's judge."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.longdouble]
Parameters = dict[str, Array]


def _per_head(x: Array | float, own: int) -> Array:
    """A parameter (H, own...) or (own...), broadcastable to (..., Q, K)."""
    x = np.asarray(x, np.longdouble)
    return x.reshape(*x.shape[: x.ndim - own], 1, 1, *x.shape[x.ndim - own :])


def _pairs(query: Array, key: Array) -> tuple[Array, Array]:
    return query[..., :, None, :], key[..., None, :, :]


def dot(query: Array, key: Array) -> Array:
    q, k = _pairs(query, key)
    return (q * k).sum(-1)


def cosine(query: Array, key: Array) -> Array:
    q, k = _pairs(query, key)
    return (q * k).sum(-1) / np.sqrt((q * q).sum(-1) * (k * k).sum(-1))


def bilinear(query: Array, key: Array, p: Parameters) -> Array:
    weight = p["weight"] if p["weight"].ndim == 3 else p["weight"][None]
    q, k = _pairs(query, key)
    return (q[..., :, None] * weight[:, None, None] * k[..., None, :]).sum((-1, -2))


def _projected(x: Array, weight: Array | None) -> Array:
    if weight is None:
        return x
    return (x[..., None, :] * weight[..., None, :, :]).sum(-1)


def additive(query: Array, key: Array, p: Parameters) -> Array:
    q, k = _pairs(_projected(query, p.get("query_weight")), _projected(key, p.get("key_weight")))
    return (np.tanh(q + k) * _per_head(p["vector"], 1)).sum(-1)


def concat(query: Array, key: Array, p: Parameters, slope: float) -> Array:
    q, k = _pairs(query, key)
    x = (q * _per_head(p["query_vector"], 1)).sum(-1) + (k * _per_head(p["key_vector"], 1)).sum(-1)
    return np.where(x > 0, x, x * np.longdouble(slope))


def distance(query: Array, key: Array, bandwidth: Array | float) -> Array:
    """‖q−k‖/h."""
    q, k = _pairs(query, key)
    return np.sqrt(((q - k) ** 2).sum(-1)) / _per_head(bandwidth, 0)


def network(query: Array, key: Array, p: Parameters) -> Array:
    q, k = _pairs(query, key)
    return np.tanh(q * p["weight"] + k).sum(-1) / 2


def _lattice(p: Parameters) -> Array | float:
    return p.get("bandwidth", np.sqrt(np.longdouble(2.625)))


def _cut(p: Parameters, query: Array, key: Array, power: float) -> Array:
    return np.maximum(0, 1 - distance(query, key, _lattice(p)) ** power)


def _soft(s: Array) -> Array:
    return np.longdouble(1.5) * np.tanh(s / np.longdouble(1.5))


def _root(query: Array) -> Array:
    return np.sqrt(np.longdouble(query.shape[-1]))


SCORES = {
    "dot": lambda q, k, p: dot(q, k),
    "scaled_dot": lambda q, k, p: dot(q, k) / _root(q),
    "scaled_dot_narrow": lambda q, k, p: dot(q, k) / 2,
    "scaled_dot_per_head": lambda q, k, p: dot(q, k) * _per_head(p["scale"], 0),
    "scaled_dot_softcap": lambda q, k, p: _soft(dot(q, k) / _root(q)),
    "cosine": lambda q, k, p: 4 * cosine(q, k),
    "cosine_per_head": lambda q, k, p: cosine(q, k) * _per_head(p["scale"], 0),
    "bilinear": lambda q, k, p: bilinear(q, k, p) * np.float64(0.2),
    "bilinear_per_head": lambda q, k, p: bilinear(q, k, p) * _per_head(p["scale"], 0),
    "additive": additive,
    "additive_per_head": additive,
    "additive_projected": additive,
    "concat": lambda q, k, p: concat(q, k, p, 0.0),
    "concat_leaky_per_head": lambda q, k, p: concat(q, k, p, 0.2),
    "squared_distance": lambda q, k, p: -(distance(q, k, 2.0) ** 2) / 2,
    "squared_distance_per_head": lambda q, k, p: -(distance(q, k, p["bandwidth"]) ** 2) / 2,
    "squared_distance_near": lambda q, k, p: -(distance(q, k, 9.0) ** 2) / 2,
    "gaussian": lambda q, k, p: np.exp(-(distance(q, k, 2.0) ** 2) / 2),
    "gaussian_near": lambda q, k, p: np.exp(-(distance(q, k, 9.0) ** 2) / 2),
    "gaussian_per_head": lambda q, k, p: np.exp(-(distance(q, k, p["bandwidth"]) ** 2) / 2),
    "boxcar": lambda q, k, p: (distance(q, k, _lattice(p)) <= 1).astype(np.longdouble),
    "epanechnikov": lambda q, k, p: _cut(p, q, k, 2),
    "triangle": lambda q, k, p: _cut(p, q, k, 1),
    "epanechnikov_per_head": lambda q, k, p: _cut(p, q, k, 2),
    "uniform": lambda q, k, p: np.ones((*q.shape[:-1], k.shape[-2]), np.longdouble),
    "learned": network,
}


def _exponentials(s: Array, seen: NDArray[np.bool_], more: Array | None = None) -> Array:
    s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True)
    top = np.where(np.isinf(top), 0, top)
    e = np.exp(s - top)
    below = e.sum(-1, keepdims=True) + (0 if more is None else np.exp(_per_head(more, 0) - top))
    return e / np.where(below == 0, 1, below)


def _shares(s: Array, seen: NDArray[np.bool_]) -> Array:
    s = np.where(seen, s, 0)
    total = s.sum(-1, keepdims=True)
    return s / np.where(total == 0, 1, total)


def _first_best(s: Array, seen: NDArray[np.bool_]) -> Array:
    s = np.where(seen, s, -np.inf)
    return (np.arange(s.shape[-1]) == s.argmax(-1)[..., None]) & seen


def sparse(s: Array, seen: NDArray[np.bool_], alpha: Array | float) -> Array:
    """max(0, (α−1)s − τ)^(1/(α−1)) with τ by bisection to the last bit, for any α."""
    a = _per_head(alpha, 0) - 1
    x = np.where(seen, s * a, -np.inf)
    top = x.max(-1, keepdims=True)
    empty = np.isinf(top)
    x = np.where(empty, 0, x - np.where(empty, 0, top))
    low, high = np.full_like(top, -1), np.zeros_like(top)
    for _ in range(80):
        middle = (low + high) / 2
        enough = (np.maximum(0, x - middle) ** (1 / a)).sum(-1, keepdims=True) >= 1
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.where(seen & ~empty, np.maximum(0, x - low) ** (1 / a), 0)


def _count(seen: NDArray[np.bool_]) -> Array:
    return np.maximum(1, seen.sum(-1, keepdims=True)).astype(np.longdouble)


def _logistic(s: Array, seen: NDArray[np.bool_], bias: Array) -> Array:
    return np.where(seen, 1 / (1 + np.exp(-(s + bias))), 0)


NORMALIZERS = {
    "softmax": lambda s, seen, p: _exponentials(s, seen),
    "softmax_sink": lambda s, seen, p: _exponentials(s, seen, p["sink"]),
    "sum": lambda s, seen, p: _shares(s, seen),
    "mean": lambda s, seen, p: np.where(seen, s, 0) / _count(seen),
    "identity": lambda s, seen, p: np.where(seen, s, 0),
    "hard": lambda s, seen, p: _first_best(s, seen),
    "sparsemax": lambda s, seen, p: sparse(s, seen, 2.0),
    "entmax": lambda s, seen, p: sparse(s, seen, 1.5),
    "entmax_1.3": lambda s, seen, p: sparse(s, seen, 1.3),
    "entmax_learned": lambda s, seen, p: sparse(s, seen, p["alpha"]),
    "sigmoid": lambda s, seen, p: _logistic(s, seen, -np.log(_count(seen))),
    "sigmoid_bias": lambda s, seen, p: _logistic(s, seen, _per_head(p["sigmoid_bias"], 0)),
}

MASKS = {
    "none": lambda b, i, j, q, k: True,
    "causal": lambda b, i, j, q, k: j <= i,
    "causal_offset": lambda b, i, j, q, k: j <= i + (-2, 5)[b],
    "causal_end": lambda b, i, j, q, k: j - k <= i - q,
    "lengths": lambda b, i, j, q, k: j < (k - 3, 5)[b],
    "lengths_both": lambda b, i, j, q, k: j < (0, k)[b] and i < (q, q - 4)[b],
    "span": lambda b, i, j, q, k: (3, 0)[b] <= j < (k - 2, 5)[b],
    "causal_and_span": lambda b, i, j, q, k: (4, 0)[b] <= j <= i + 2,
    "window": lambda b, i, j, q, k: i - 3 <= j <= i + 2,
    "window_beyond": lambda b, i, j, q, k: i + k - q // 2 - 2 <= j <= i + k - q // 2 + 1,
    "documents": lambda b, i, j, q, k: i // 11 == j // 11,
    "documents_scattered": lambda b, i, j, q, k: i % 3 == j % 4,
    "causal_and_lengths": lambda b, i, j, q, k: j <= i + 3 and j < (k - 3, 5)[b],
    "window_or_first": lambda b, i, j, q, k: i - 3 <= j <= i or j < 2,
    "not_window": lambda b, i, j, q, k: not i - 4 <= j <= i + 4,
}
"""True if query i of item b sees key j. (Masks that are tables are their own oracle.)"""


def table(mask: str, batch: int, queries: int, keys: int) -> NDArray[np.bool_]:
    """A mask as a table (B, 1, Q, K)."""
    sees = MASKS[mask]
    cells = [[[sees(b, i, j, queries, keys) for j in range(keys)] for i in range(queries)] for b in range(batch)]
    return np.array(cells, bool).reshape(batch, 1, queries, keys)


def attention(leaves: Parameters, score: str, normalizer: str, seen: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Output and weights."""
    own = {name: x for name, x in leaves.items() if name not in ("query", "key", "value")}
    s = SCORES[score](leaves["query"], leaves["key"], own)
    w = np.asarray(NORMALIZERS[normalizer](s, np.broadcast_to(seen, s.shape), own), np.longdouble)
    return w @ leaves["value"], w
