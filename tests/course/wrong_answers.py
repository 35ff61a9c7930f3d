"""Answers to the exercises of the course: right ones in several forms, and eight wrong ones of each, as learners write.

They were written before the checker, and do not use it.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# --- 1. kernel regression: (n,), (m,), (m,), h -> (n,)


def _squares(x: Tensor, keys: Tensor) -> Tensor:
    return (x[:, None] - keys[None]) ** 2


def _loop_regression(x: Tensor, keys: Tensor, values: Tensor, h: float) -> Tensor:
    out = []
    for q in x:
        k = [math.exp(-float((q - key) ** 2) / (2 * h**2)) for key in keys]
        out.append(sum(w * float(v) for w, v in zip(k, values, strict=True)) / sum(k))
    return torch.tensor(out)


def _nearest(x: Tensor, keys: Tensor, values: Tensor, h: float) -> Tensor:
    return values[_squares(x, keys).argmin(1)]


KERNEL_REGRESSION = {
    "right": [
        lambda x, k, v, h: torch.softmax(-_squares(x, k) / (2 * h * h), dim=1) @ v,
        _loop_regression,
        lambda x, k, v, h: (g := torch.exp(-0.5 * ((x[:, None] - k) / h) ** 2)) @ v / g.sum(1),
    ],
    "wrong": [
        lambda x, k, v, h: torch.exp(-_squares(x, k) / (2 * h * h)) @ v,
        lambda x, k, v, h: torch.softmax(-_squares(x, k) / (2 * h), dim=1) @ v,
        lambda x, k, v, h: torch.softmax(-_squares(x, k) / h**2, dim=1) @ v,
        lambda x, k, v, h: torch.softmax(_squares(x, k) / (2 * h * h), dim=1) @ v,
        lambda x, k, v, h: torch.softmax(-_squares(x, k) / (2 * h * h), dim=0) @ v,
        lambda x, k, v, h: torch.softmax(-(x[:, None] - k).abs() / (2 * h * h), dim=1) @ v,
        _nearest,
        lambda x, k, v, h: torch.exp(-_squares(x, k) / (2 * h * h)) @ v / len(k),
    ],
}

# --- 2. attention: (..., n, d), (..., m, d), (..., m, e) -> (..., n, e)


def _loop_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = torch.zeros(*q.shape[:-1], v.shape[-1])
    for i in range(q.shape[-2]):
        scores = torch.stack([(q[..., i, :] * k[..., j, :]).sum(-1) for j in range(k.shape[-2])], -1)
        weights = torch.exp(scores / math.sqrt(q.shape[-1]))
        weights = weights / weights.sum(-1, keepdim=True)
        out[..., i, :] = sum(weights[..., j, None] * v[..., j, :] for j in range(k.shape[-2]))
    return out


ATTENTION = {
    "right": [
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v,
        _loop_attention,
        F.scaled_dot_product_attention,
        lambda q, k, v: torch.einsum("...nm,...me->...ne", ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1), v),
    ],
    "wrong": [
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / q.size(-1), dim=-1) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-2)), dim=-1) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-2) @ v,
        lambda q, k, v: q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), dim=-1) / math.sqrt(q.size(-1)) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1),
        lambda q, k, v: torch.softmax(q @ k / math.sqrt(q.size(-1)), dim=-1) @ v,
    ],
}

# --- 3. additive scores: (n, d), (m, e), (a, d), (a, e), (a,) -> (n, m)

ADDITIVE_SCORES = {
    "right": [
        lambda q, k, wq, wk, v: torch.tanh((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ v,
        lambda q, k, wq, wk, v: torch.stack([torch.tanh(wq @ a + k @ wk.T) @ v for a in q]),
    ],
    "wrong": [
        lambda q, k, wq, wk, v: ((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ v,
        lambda q, k, wq, wk, v: torch.tanh(((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ v),
        lambda q, k, wq, wk, v: torch.tanh((q @ wq.T)[:, None] * (k @ wk.T)[None]) @ v,
        lambda q, k, wq, wk, v: (torch.tanh(q @ wq.T)[:, None] + torch.tanh(k @ wk.T)[None]) @ v,
        lambda q, k, wq, wk, v: torch.sigmoid((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ v,
        lambda q, k, wq, wk, v: torch.softmax(torch.tanh((q @ wq.T)[:, None] + (k @ wk.T)[None]) @ v, dim=-1),
        lambda q, k, wq, wk, v: torch.tanh((k @ wk.T)[:, None] + (q @ wq.T)[None]) @ v,
        lambda q, k, wq, wk, v: torch.tanh((q @ wq.T)[:, None] + (k @ wk.T)[None]).sum(-1),
    ],
}

# --- 4. one decoder step: (a,) projected state, (m, a) projected keys, (m, h) annotations, (a,) -> (h,)

CONTEXT = {
    "right": [
        lambda s, k, h, v: torch.softmax(torch.tanh(s + k) @ v, dim=0) @ h,
        lambda s, k, h, v: (torch.softmax(torch.tanh(s + k) @ v, 0)[:, None] * h).sum(0),
    ],
    "wrong": [
        lambda s, k, h, v: torch.tanh(s + k) @ v @ h,
        lambda s, k, h, v: torch.softmax(torch.tanh(s + k) @ v, dim=0) @ k,
        lambda s, k, h, v: h.mean(0),
        lambda s, k, h, v: h[(torch.tanh(s + k) @ v).argmax()],
        lambda s, k, h, v: torch.sigmoid(torch.tanh(s + k) @ v) @ h,
        lambda s, k, h, v: torch.softmax(k @ s, dim=0) @ h,
        lambda s, k, h, v: torch.softmax(torch.tanh(s + k) @ v, dim=0)[:, None] * h,
        lambda s, k, h, v: torch.softmax((s + k) @ v, dim=0) @ h,
    ],
}

# --- 5. masked attention: ..., mask (..., n, m), True: may attend


def _scaled(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / q.shape[-1] ** 0.5


def _hidden(q: Tensor, k: Tensor, m: Tensor, with_: float = -math.inf) -> Tensor:
    return _scaled(q, k).masked_fill(~m, with_)


def _by_exp(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    weights = torch.exp(_scaled(q, k)) * m
    return weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-20)


MASKED_ATTENTION = {
    "right": [
        lambda q, k, v, m: _hidden(q, k, m).softmax(-1).nan_to_num(0.0) @ v,
        _by_exp,
        lambda q, k, v, m: (_hidden(q, k, m, -1e9).softmax(-1) * m) @ v,
    ],
    "wrong": [
        lambda q, k, v, m: _hidden(q, k, m).softmax(-1) @ v,
        lambda q, k, v, m: _hidden(q, k, m, -1e9).softmax(-1) @ v,
        lambda q, k, v, m: _hidden(q, k, ~m).softmax(-1).nan_to_num(0.0) @ v,
        lambda q, k, v, m: _hidden(q, k, m, 0.0).softmax(-1) @ v,
        lambda q, k, v, m: (_scaled(q, k).softmax(-1) * m) @ v,
        lambda q, k, v, m: (_scaled(q, k) * m).softmax(-1) @ v,
        lambda q, k, v, m: (_scaled(q, k) + m).softmax(-1) @ v,
        lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -math.inf).softmax(-1).nan_to_num(0.0) @ v,
    ],
}

# --- 6. multi-head self-attention: x (n, w), four (w, w) that act as x @ W.T, heads -> (n, w)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _by_slices(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, h: int) -> Tensor:
    width = x.shape[-1] // h
    parts = [slice(i * width, (i + 1) * width) for i in range(h)]
    return torch.cat([_attend(x @ wq[p].T, x @ wk[p].T, x @ wv[p].T) for p in parts], -1) @ wo.T


def _heads(x: Tensor, h: int) -> Tensor:
    return x.view(x.shape[0], h, -1).transpose(0, 1)


def _all_heads(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, h: int) -> Tensor:
    return _attend(_heads(x @ wq.T, h), _heads(x @ wk.T, h), _heads(x @ wv.T, h))


def _reshaped(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, h: int) -> Tensor:
    q, k, v = ((x @ w.T).reshape(h, x.shape[0], -1) for w in (wq, wk, wv))
    return _attend(q, k, v).reshape(x.shape) @ wo.T


def _full_scale(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, h: int) -> Tensor:
    q, k, v = (_heads(x @ w.T, h) for w in (wq, wk, wv))
    return ((q @ k.mT / x.shape[-1] ** 0.5).softmax(-1) @ v).transpose(0, 1).reshape(x.shape) @ wo.T


def _no_transpose_back(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, h: int) -> Tensor:
    return _all_heads(x, wq, wk, wv, h).reshape(x.shape) @ wo.T


MULTI_HEAD = {
    "right": [
        _by_slices,
        lambda x, wq, wk, wv, wo, h: _all_heads(x, wq, wk, wv, h).transpose(0, 1).flatten(1) @ wo.T,
    ],
    "wrong": [
        _reshaped,
        _full_scale,
        _no_transpose_back,
        lambda x, wq, wk, wv, wo, h: _all_heads(x, wq, wk, wv, h).transpose(0, 1).flatten(1),
        lambda x, wq, wk, wv, wo, h: _attend(x @ wq.T, x @ wk.T, x @ wv.T) @ wo.T,
        lambda x, wq, wk, wv, wo, h: _all_heads(x, wq, wk, wv, h).transpose(0, 1).flatten(1) @ wo,
        lambda x, wq, wk, wv, wo, h: _all_heads(x, wq, wq, wv, h).transpose(0, 1).flatten(1) @ wo.T,
        lambda x, wq, wk, wv, wo, h: _all_heads(x, wq.T, wk.T, wv.T, h).transpose(0, 1).flatten(1) @ wo.T,
    ],
}

# --- 7. the causal mask of new tokens behind a cache: new, past -> (new, past + new), True: may attend

CAUSAL_MASK = {
    "right": [
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril(past),
        lambda new, past: torch.arange(past + new)[None] <= past + torch.arange(new)[:, None],
        lambda new, past: torch.cat([torch.ones(new, past), torch.ones(new, new).tril()], 1).bool(),
    ],
    "wrong": [
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril(),
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool).triu(past + 1),
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril(past - 1),
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool).tril(past + 1),
        lambda new, past: torch.ones(new, new, dtype=torch.bool).tril(),
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool),
        lambda new, past: torch.ones(new, past + new, dtype=torch.bool).triu(past),
        lambda new, past: torch.zeros(new, past + new).masked_fill(
            torch.ones(new, past + new).tril(past) == 0, -math.inf
        ),
    ],
}

# --- 8. sinusoidal positions: length, width -> (length, width)


def _angles(n: int, w: int, base: float = 10000.0) -> Tensor:
    return torch.arange(n)[:, None] / base ** (torch.arange(0, w, 2) / w)


def _interleaved(sines: Tensor, cosines: Tensor) -> Tensor:
    return torch.stack([sines, cosines], -1).flatten(1)


def _assigned(n: int, w: int) -> Tensor:
    table = torch.zeros(n, w)
    rate = torch.exp(torch.arange(0, w, 2) * (-math.log(10000.0) / w))
    table[:, 0::2] = torch.sin(torch.arange(n)[:, None] * rate)
    table[:, 1::2] = torch.cos(torch.arange(n)[:, None] * rate)
    return table


POSITIONS = {
    "right": [
        _assigned,
        lambda n, w: _interleaved(_angles(n, w).sin(), _angles(n, w).cos()),
        lambda n, w: torch.tensor(
            [
                [(math.sin if i % 2 == 0 else math.cos)(p / 10000 ** ((i - i % 2) / w)) for i in range(w)]
                for p in range(n)
            ]
        ),
    ],
    "wrong": [
        lambda n, w: torch.cat([_angles(n, w).sin(), _angles(n, w).cos()], 1),
        lambda n, w: _interleaved(_angles(n, w).cos(), _angles(n, w).sin()),
        lambda n, w: _interleaved(_angles(n, w, 1000.0).sin(), _angles(n, w, 1000.0).cos()),
        lambda n, w: _interleaved(
            (torch.arange(n)[:, None] / 10000 ** (torch.arange(w // 2) / w)).sin(),
            (torch.arange(n)[:, None] / 10000 ** (torch.arange(w // 2) / w)).cos(),
        ),
        lambda n, w: _interleaved(_angles(n + 1, w)[1:].sin(), _angles(n + 1, w)[1:].cos()),
        lambda n, w: _interleaved(_angles(n, w).sin(), _angles(n, w).sin()),
        lambda n, w: _assigned(n, w).T,
        lambda n, w: _interleaved(
            (torch.arange(n)[:, None] * 10000 ** (torch.arange(0, w, 2) / w)).sin(),
            (torch.arange(n)[:, None] * 10000 ** (torch.arange(0, w, 2) / w)).cos(),
        ),
    ],
}

# --- 9. copying: (n, w) scores of words, (n, s) scores of positions, (s,) ids -> (n, w) probabilities


def _loop_copy(words: Tensor, places: Tensor, ids: Tensor) -> Tensor:
    together = torch.softmax(torch.cat([words, places], -1), -1)
    out = together[:, : words.shape[1]].clone()
    for at, word in enumerate(ids.tolist()):
        out[:, word] += together[:, words.shape[1] + at]
    return out


def _assigned_copy(words: Tensor, places: Tensor, ids: Tensor) -> Tensor:
    together = torch.softmax(torch.cat([words, places], -1), -1)
    out = together[:, : words.shape[1]].clone()
    out[:, ids] += together[:, words.shape[1] :]  # a word that stands twice is counted once
    return out


def _spread(places: Tensor, ids: Tensor, size: int) -> Tensor:
    return places @ F.one_hot(ids, size).float()


COPYING = {
    "right": [
        _loop_copy,
        lambda words, places, ids: (
            (t := torch.cat([words, places], -1).softmax(-1))[:, : words.shape[1]]
            + _spread(t[:, words.shape[1] :], ids, words.shape[1])
        ),
        lambda words, places, ids: (
            (words.exp() + torch.zeros_like(words).index_add(1, ids, places.exp()))
            / (words.exp().sum(1, keepdim=True) + places.exp().sum(1, keepdim=True))
        ),
    ],
    "wrong": [
        _assigned_copy,
        lambda words, places, ids: words.softmax(-1) + _spread(places.softmax(-1), ids, words.shape[1]),
        lambda words, places, ids: 0.5 * words.softmax(-1) + 0.5 * _spread(places.softmax(-1), ids, words.shape[1]),
        lambda words, places, ids: words.softmax(-1),
        lambda words, places, ids: _spread(places.softmax(-1), ids, words.shape[1]),
        lambda words, places, ids: (words + _spread(places, ids, words.shape[1])).softmax(-1),
        lambda words, places, ids: torch.cat([words, places], -1).softmax(-1),
        lambda words, places, ids: torch.cat([words, places], -1).softmax(-1)[:, : words.shape[1]],
    ],
}

# --- 10. what each key does: (d,), (m, d), (m, e) -> (m,): ‖output − output without that key‖


def _loop_influence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def out(keep: list[int]) -> Tensor:
        return (q @ k[keep].T / q.shape[-1] ** 0.5).softmax(-1) @ v[keep]

    every = list(range(len(k)))
    return torch.stack([(out(every) - out([j for j in every if j != i])).norm() for i in every])


def _w(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.T / q.shape[-1] ** 0.5).softmax(-1)


INFLUENCE = {
    "right": [
        _loop_influence,
        lambda q, k, v: _w(q, k) / (1 - _w(q, k)) * (_w(q, k) @ v - v).norm(dim=-1),
    ],
    "wrong": [
        lambda q, k, v: _w(q, k),
        lambda q, k, v: _w(q, k) * v.norm(dim=-1),
        lambda q, k, v: (_w(q, k) / (1 - _w(q, k)) * (_w(q, k) @ v - v).norm(dim=-1)) ** 2,
        lambda q, k, v: _w(q, k) * (_w(q, k) @ v - v).norm(dim=-1),
        lambda q, k, v: (_w(q, k) / (1 - _w(q, k)))[:, None] * (_w(q, k) @ v - v),
        lambda q, k, v: (_w(q, k) @ v - v).norm(dim=-1),
        lambda q, k, v: _w(q, k) / (1 - _w(q, k)) * (_w(q, k) @ v - v).abs().sum(-1),
        lambda q, k, v: v.norm(dim=-1),
    ],
}

ANSWERS = {
    "kernel_regression": KERNEL_REGRESSION,
    "attention": ATTENTION,
    "additive_scores": ADDITIVE_SCORES,
    "context": CONTEXT,
    "masked_attention": MASKED_ATTENTION,
    "multi_head": MULTI_HEAD,
    "causal_mask": CAUSAL_MASK,
    "positions": POSITIONS,
    "copying": COPYING,
    "influence": INFLUENCE,
}
