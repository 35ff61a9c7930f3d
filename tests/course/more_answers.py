"""More answers, written from the exercises' text alone: eight wrong ones and some right ones for each."""

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import qkv

Answer = Callable[..., Tensor]
WRONG: defaultdict[str, list[Answer]] = defaultdict(list)
RIGHT: defaultdict[str, list[Answer]] = defaultdict(list)


def wrong(exercise):
    return lambda answer: WRONG[exercise].append(answer) or answer


def right(exercise):
    return lambda answer: RIGHT[exercise].append(answer) or answer


# kernel_regression
@wrong("kernel_regression")
def half_width(query, key, value, bandwidth):
    w = torch.exp(-((query[:, None] - key) ** 2) / (2 * bandwidth))
    return (w / w.sum(1, keepdim=True)) @ value


@wrong("kernel_regression")
def boxcar(query, key, value, bandwidth):
    w = ((query[:, None] - key).abs() <= bandwidth).float()
    return w @ value / w.sum(1).clamp(min=1)


@wrong("kernel_regression")
def divided_by_the_sum_of_all(query, key, value, bandwidth):
    w = torch.exp(-((query[:, None] - key) ** 2) / (2 * bandwidth**2))
    return (w / w.sum()) @ value


@wrong("kernel_regression")
def precedence(query, key, value, bandwidth):
    d = query[:, None] - key
    w = torch.exp(-(d**2) / 2 * bandwidth**2)
    return (w / w.sum(1, keepdim=True)) @ value


@wrong("kernel_regression")
def nearest(query, key, value, bandwidth):
    return value[(query[:, None] - key).abs().argmin(1)]


@wrong("kernel_regression")
def softmax_of_the_kernel(query, key, value, bandwidth):
    w = torch.exp(-((query[:, None] - key) ** 2) / (2 * bandwidth**2))
    return w.softmax(1) @ value


@wrong("kernel_regression")
def a_column(query, key, value, bandwidth):
    w = (-((query[:, None] - key) ** 2) / (2 * bandwidth**2)).softmax(1)
    return w @ value[:, None]


@wrong("kernel_regression")
def distance_of_cdist(query, key, value, bandwidth):
    w = torch.exp(-torch.cdist(query[:, None], key[:, None]) / (2 * bandwidth**2))
    return (w @ value) / w.sum(-1)


@right("kernel_regression")
def by_loop(query, key, value, bandwidth):
    out = []
    for q in query:
        w = [math.exp(-(float(q - k) ** 2) / (2 * bandwidth * bandwidth)) for k in key]
        out.append(sum(a * float(v) for a, v in zip(w, value, strict=False)) / sum(w))
    return torch.tensor(out)


@right("kernel_regression")
def by_softmax(query, key, value, bandwidth):
    return (-((query.unsqueeze(1) - key.unsqueeze(0)) / bandwidth).square() / 2).softmax(-1) @ value


@right("kernel_regression")
def by_qkv(query, key, value, bandwidth):
    return qkv.attention(query[:, None], key[:, None], value[:, None], score=qkv.scores.Gaussian(bandwidth))[:, 0]


# attention
@wrong("attention")
def by_d(query, key, value):
    return (query @ key.mT / query.shape[-1]).softmax(-1) @ value


@wrong("attention")
def dim_1(query, key, value):
    s = query @ key.mT / math.sqrt(key.shape[-1])
    return F.softmax(s, dim=0) @ value


@wrong("attention")
def root_of_keys(query, key, value):
    return (query @ key.mT / math.sqrt(key.shape[-2])).softmax(-1) @ value


@wrong("attention")
def scale_after(query, key, value):
    return (query @ key.mT).softmax(-1) / math.sqrt(query.shape[-1]) @ value


@wrong("attention")
def softmax_last(query, key, value):
    return (query @ key.mT / math.sqrt(query.shape[-1]) @ value).softmax(-1)


@wrong("attention")
def no_softmax(query, key, value):
    return query @ key.mT / math.sqrt(query.shape[-1]) @ value


@wrong("attention")
def relu(query, key, value):
    s = F.relu(query @ key.mT / math.sqrt(query.shape[-1]))
    return s / s.sum(-1, keepdim=True).clamp(min=1e-9) @ value


@wrong("attention")
def transposed(query, key, value):
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ key


@right("attention")
def sdpa(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


@right("attention")
def einsum(query, key, value):
    s = torch.einsum("...nd,...md->...nm", query / query.shape[-1] ** 0.25, key / query.shape[-1] ** 0.25)
    w = torch.exp(s - s.amax(-1, keepdim=True))
    return torch.einsum("...nm,...me->...ne", w, value) / w.sum(-1, keepdim=True)


@right("attention")
def double(query, key, value):
    q, k, v = query.double(), key.double(), value.double()
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


# additive
@wrong("additive_scores")
def linear(query, key, query_weight, key_weight, vector):
    return ((query @ query_weight.T)[:, None] + (key @ key_weight.T)[None]) @ vector


@wrong("additive_scores")
def vector_first(query, key, query_weight, key_weight, vector):
    return torch.tanh((query @ query_weight.T @ vector)[:, None] + (key @ key_weight.T @ vector)[None])


@wrong("additive_scores")
def sigmoid(query, key, query_weight, key_weight, vector):
    return torch.sigmoid((query @ query_weight.T)[:, None] + (key @ key_weight.T)[None]) @ vector


@wrong("additive_scores")
def keys_first(query, key, query_weight, key_weight, vector):
    return torch.tanh((query @ query_weight.T)[None] + (key @ key_weight.T)[:, None]) @ vector


@wrong("additive_scores")
def with_softmax(query, key, query_weight, key_weight, vector):
    return (torch.tanh((query @ query_weight.T)[:, None] + (key @ key_weight.T)[None]) @ vector).softmax(-1)


@wrong("additive_scores")
def scaled(query, key, query_weight, key_weight, vector):
    return torch.tanh((query @ query_weight.T)[:, None] + (key @ key_weight.T)[None]) @ vector / len(vector) ** 0.5


@wrong("additive_scores")
def difference(query, key, query_weight, key_weight, vector):
    return torch.tanh((query @ query_weight.T)[:, None] - (key @ key_weight.T)[None]) @ vector


@wrong("additive_scores")
def no_vector(query, key, query_weight, key_weight, vector):
    return torch.tanh((query @ query_weight.T)[:, None] + (key @ key_weight.T)[None]).sum(-1)


@right("additive_scores")
def by_loop_2(query, key, query_weight, key_weight, vector):
    return torch.stack(
        [torch.stack([vector @ torch.tanh(query_weight @ q + key_weight @ k) for k in key]) for q in query]
    )


@right("additive_scores")
def one_matrix(query, key, query_weight, key_weight, vector):
    n, m = len(query), len(key)
    both = torch.cat([query[:, None].expand(n, m, -1), key[None].expand(n, m, -1)], -1)
    return torch.tanh(both @ torch.cat([query_weight, key_weight], 1).T) @ vector


@right("additive_scores")
def by_sigmoid(query, key, query_weight, key_weight, vector):
    x = (query @ query_weight.T)[:, None] + (key @ key_weight.T)[None]
    return ((2 * torch.sigmoid(2 * x) - 1) * vector).sum(-1)


# context
@wrong("context")
def no_softmax_2(state, keys, annotations, vector):
    return (torch.tanh(state + keys) @ vector) @ annotations


@wrong("context")
def mixes_keys(state, keys, annotations, vector):
    return (torch.tanh(state + keys) @ vector).softmax(0) @ keys


@wrong("context")
def no_tanh(state, keys, annotations, vector):
    return ((state + keys) @ vector).softmax(0) @ annotations


@wrong("context")
def sigmoid_2(state, keys, annotations, vector):
    return torch.sigmoid(torch.tanh(state + keys) @ vector) @ annotations


@wrong("context")
def no_sum(state, keys, annotations, vector):
    return (torch.tanh(state + keys) @ vector).softmax(0)[:, None] * annotations


@wrong("context")
def dot(state, keys, annotations, vector):
    return (keys @ state).softmax(0) @ annotations


@wrong("context")
def scaled_2(state, keys, annotations, vector):
    return (torch.tanh(state + keys) @ vector / len(vector) ** 0.5).softmax(0) @ annotations


@wrong("context")
def returns_weights(state, keys, annotations, vector):
    return (torch.tanh(state + keys) @ vector).softmax(0)


@right("context")
def by_loop_3(state, keys, annotations, vector):
    e = torch.stack([vector @ torch.tanh(state + k) for k in keys])
    w = e.exp() / e.exp().sum()
    return sum(a * h for a, h in zip(w, annotations, strict=False))


@right("context")
def by_sum(state, keys, annotations, vector):
    w = ((state[None] + keys).tanh() * vector).sum(1).softmax(0)
    return (w[:, None] * annotations).sum(0)


@right("context")
def by_qkv_2(state, keys, annotations, vector):
    return qkv.attention(state[None], keys, annotations, score=qkv.scores.Additive(vector))[0]


# masked
def _s(q, k):
    return q @ k.mT / q.shape[-1] ** 0.5


@wrong("masked_attention")
def inverted(query, key, value, mask):
    return _s(query, key).masked_fill(mask, -torch.inf).softmax(-1).nan_to_num(0.0) @ value


@wrong("masked_attention")
def after(query, key, value, mask):
    return (_s(query, key).softmax(-1) * mask) @ value


@wrong("masked_attention")
def renormalized(query, key, value, mask):
    w = _s(query, key).softmax(-1) * mask
    return w / w.sum(-1, keepdim=True) @ value


@wrong("masked_attention")
def infinite(query, key, value, mask):
    return _s(query, key).masked_fill(~mask, float("-inf")).softmax(-1) @ value


@wrong("masked_attention")
def times_mask(query, key, value, mask):
    return (_s(query, key) * mask).softmax(-1) @ value


@wrong("masked_attention")
def added(query, key, value, mask):
    return (_s(query, key) + mask).softmax(-1) @ value


@wrong("masked_attention")
def not_scaled(query, key, value, mask):
    return (query @ key.mT).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0) @ value


@wrong("masked_attention")
def finfo(query, key, value, mask):
    return _s(query, key).masked_fill(~mask, torch.finfo(query.dtype).min).softmax(-1) @ value


@right("masked_attention")
def renormalized_safely(query, key, value, mask):
    w = _s(query, key).exp() * mask
    return w / w.sum(-1, keepdim=True).clamp(min=1e-20) @ value


@right("masked_attention")
def where(query, key, value, mask):
    w = torch.where(mask, _s(query, key), -1e9).softmax(-1)
    return torch.where(mask.any(-1, keepdim=True), w @ value, 0.0)


@right("masked_attention")
def by_qkv_3(query, key, value, mask):
    return qkv.attention(query, key, value, mask=mask)


@right("masked_attention")
def large_number_then_mask(query, key, value, mask):
    return (_s(query, key).masked_fill(~mask, -1e9).softmax(-1) * mask) @ value


# heads
@wrong("multi_head")
def heads_attend_to_heads(x, query_weight, key_weight, value_weight, output_weight, heads):
    n, width = x.shape
    q, k, v = ((x @ w.T).view(n, heads, width // heads) for w in (query_weight, key_weight, value_weight))
    return qkv.attention(q, k, v).reshape(n, width) @ output_weight.T


@wrong("multi_head")
def scale_of_width(x, query_weight, key_weight, value_weight, output_weight, heads):
    n, width = x.shape
    q, k, v = ((x @ w.T).view(n, heads, -1).transpose(0, 1) for w in (query_weight, key_weight, value_weight))
    o = (q @ k.mT / width**0.5).softmax(-1) @ v
    return o.transpose(0, 1).reshape(n, width) @ output_weight.T


@wrong("multi_head")
def stacked(x, query_weight, key_weight, value_weight, output_weight, heads):
    q, k, v = ((x @ w.T).chunk(heads, -1) for w in (query_weight, key_weight, value_weight))
    return torch.cat([qkv.attention(*parts) for parts in zip(q, k, v, strict=False)], 0)


@wrong("multi_head")
def slices_of_the_embedding(x, query_weight, key_weight, value_weight, output_weight, heads):
    d = x.shape[1] // heads
    outs = []
    for h in range(heads):
        s = slice(h * d, (h + 1) * d)
        q, k, v = (x[:, s] @ w[s, s].T for w in (query_weight, key_weight, value_weight))
        outs.append(qkv.attention(q, k, v))
    return torch.cat(outs, -1) @ output_weight.T


@wrong("multi_head")
def residual(x, query_weight, key_weight, value_weight, output_weight, heads):
    n, width = x.shape
    q, k, v = ((x @ w.T).view(n, heads, -1).transpose(0, 1) for w in (query_weight, key_weight, value_weight))
    return x + qkv.attention(q, k, v).transpose(0, 1).reshape(n, width) @ output_weight.T


@wrong("multi_head")
def softmax_over_heads(x, query_weight, key_weight, value_weight, output_weight, heads):
    n, width = x.shape
    q, k, v = ((x @ w.T).view(n, heads, -1).transpose(0, 1) for w in (query_weight, key_weight, value_weight))
    o = (q @ k.mT / q.shape[-1] ** 0.5).softmax(0) @ v
    return o.transpose(0, 1).reshape(n, width) @ output_weight.T


@wrong("multi_head")
def not_transposed_back(x, query_weight, key_weight, value_weight, output_weight, heads):
    n, width = x.shape
    q, k, v = ((x @ w.T).view(n, heads, -1).transpose(0, 1) for w in (query_weight, key_weight, value_weight))
    return qkv.attention(q, k, v).reshape(n, width) @ output_weight.T


@wrong("multi_head")
def causal(x, query_weight, key_weight, value_weight, output_weight, heads):
    n, width = x.shape
    q, k, v = ((x @ w.T).view(n, heads, -1).transpose(0, 1) for w in (query_weight, key_weight, value_weight))
    return qkv.attention(q, k, v, mask=qkv.masks.causal()).transpose(0, 1).reshape(n, width) @ output_weight.T


@right("multi_head")
def by_torch(x, query_weight, key_weight, value_weight, output_weight, heads):
    out, _ = F.multi_head_attention_forward(
        x[:, None],
        x[:, None],
        x[:, None],
        x.shape[1],
        heads,
        torch.cat([query_weight, key_weight, value_weight]),
        None,
        None,
        None,
        False,
        0.0,
        output_weight,
        None,
        training=False,
    )
    return out[:, 0]


@right("multi_head")
def by_chunks(x, query_weight, key_weight, value_weight, output_weight, heads):
    q, k, v = ((x @ w.T).chunk(heads, -1) for w in (query_weight, key_weight, value_weight))
    return torch.cat([qkv.attention(*parts) for parts in zip(q, k, v, strict=False)], -1) @ output_weight.T


@right("multi_head")
def summed_heads(x, query_weight, key_weight, value_weight, output_weight, heads):
    d = x.shape[1] // heads
    total = 0
    for h in range(heads):
        s = slice(h * d, (h + 1) * d)
        o = qkv.attention(x @ query_weight[s].T, x @ key_weight[s].T, x @ value_weight[s].T)
        total = total + o @ output_weight[:, s].T
    return total


# causal
@wrong("causal_mask")
def minus_past(new, past):
    return torch.ones(new, past + new, dtype=torch.bool).tril(-past)


@wrong("causal_mask")
def forgets_the_past(new, past):
    return torch.cat([torch.zeros(new, past), torch.ones(new, new).tril()], 1).bool()


@wrong("causal_mask")
def past_behind(new, past):
    return torch.cat([torch.ones(new, new).tril(), torch.ones(new, past)], 1).bool()


@wrong("causal_mask")
def not_itself(new, past):
    return torch.arange(past + new)[None] < past + torch.arange(new)[:, None]


@wrong("causal_mask")
def square(new, past):
    return torch.ones(past + new, past + new, dtype=torch.bool).tril()


@wrong("causal_mask")
def additive(new, past):
    return torch.full((new, past + new), -torch.inf).triu(past + 1)


@wrong("causal_mask")
def integers(new, past):
    return torch.ones(new, past + new, dtype=torch.long).tril(past)


@wrong("causal_mask")
def triu(new, past):
    return torch.ones(new, past + new).triu(past + 1).bool()


@right("causal_mask")
def rows_of_the_square(new, past):
    return torch.ones(past + new, past + new, dtype=torch.bool).tril()[past:]


@right("causal_mask")
def put_together(new, past):
    return torch.cat([torch.ones(new, past), torch.ones(new, new).tril()], 1) > 0


@right("causal_mask")
def compared(new, past):
    return torch.arange(past, past + new)[:, None] >= torch.arange(past + new)


# positions
def _table(angle):
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


@wrong("positions")
def i_of_the_pair(length, width):
    return _table(torch.arange(length)[:, None] / 10000 ** (torch.arange(width // 2) / width))


@wrong("positions")
def each_column_its_own(length, width):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(width) / width)
    out = torch.zeros(length, width)
    out[:, 0::2] = angle[:, 0::2].sin()
    out[:, 1::2] = angle[:, 1::2].cos()
    return out


@wrong("positions")
def from_one(length, width):
    return _table(torch.arange(1, length + 1)[:, None] / 10000 ** (torch.arange(0, width, 2) / width))


@wrong("positions")
def doubled(length, width):
    return _table(torch.arange(length)[:, None] / 10000 ** (2 * torch.arange(0, width, 2) / width))


@wrong("positions")
def whole_turns(length, width):
    return _table(2 * math.pi * torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width))


@wrong("positions")
def share_of_length(length, width):
    return _table(torch.arange(length)[:, None] / length / 10000 ** (torch.arange(0, width, 2) / width))


@wrong("positions")
def ends_at_10000(length, width):
    half = width // 2
    return _table(torch.arange(length)[:, None] / 10000 ** (torch.arange(half) / (half - 1)))


@wrong("positions")
def columns_by_hand_swapped(length, width):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(1)


@right("positions")
def by_exp(length, width):
    div = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    out = torch.zeros(length, width)
    out[:, 0::2] = torch.sin(torch.arange(length)[:, None] * div)
    out[:, 1::2] = torch.cos(torch.arange(length)[:, None] * div)
    return out


@right("positions")
def by_loop_4(length, width):
    return torch.tensor(
        [
            [(math.cos if c % 2 else math.sin)(p / 10000 ** (2 * (c // 2) / width)) for c in range(width)]
            for p in range(length)
        ]
    )


@right("positions")
def by_qkv_4(length, width):
    return qkv.nn.sinusoidal(length, width)


# copying
def _joint(words, places):
    return torch.cat([words, places], -1).softmax(-1).split([words.shape[1], places.shape[1]], -1)


@wrong("copying")
def mixture(words, places, ids):
    return 0.5 * words.softmax(-1).index_add(1, ids, places.softmax(-1))


@wrong("copying")
def put(words, places, ids):
    g, c = _joint(words, places)
    out = g.clone()
    out[:, ids] = c
    return out


@wrong("copying")
def scores_added(words, places, ids):
    return words.index_add(1, ids, places).softmax(-1)


@wrong("copying")
def over_rows(words, places, ids):
    both = torch.cat([words, places], -1).softmax(0)
    return both[:, : words.shape[1]].index_add(1, ids, both[:, words.shape[1] :])


@wrong("copying")
def renormalized_2(words, places, ids):
    g, c = _joint(words, places)
    out = g.clone()
    out[:, ids] += c
    return out / out.sum(-1, keepdim=True)


@wrong("copying")
def logarithms(words, places, ids):
    g, c = _joint(words, places)
    return g.index_add(1, ids, c).log()


@wrong("copying")
def largest(words, places, ids):
    g, c = _joint(words, places)
    return g.scatter_reduce(1, ids.expand(len(g), -1), c, "amax")


@wrong("copying")
def side_by_side(words, places, ids):
    return torch.cat([words, places], -1).softmax(-1)


@right("copying")
def scattered(words, places, ids):
    g, c = _joint(words, places)
    return g.scatter_add(1, ids.expand(len(g), -1), c)


@right("copying")
def one_hot(words, places, ids):
    g, c = _joint(words, places)
    return g + c @ F.one_hot(ids, words.shape[1]).to(c)


@right("copying")
def by_loop_5(words, places, ids):
    e, p = words.exp(), places.exp()
    z = e.sum(1) + p.sum(1)
    for j, i in enumerate(ids.tolist()):
        e[:, i] += p[:, j]
    return e / z[:, None]


# influence
def _w(query, key):
    return (key @ query / len(query) ** 0.5).softmax(0)


@wrong("influence")
def weights_only(query, key, value):
    return _w(query, key)


@wrong("influence")
def key_zeroed(query, key, value):
    out = _w(query, key) @ value
    moved = []
    for j in range(len(key)):
        k = key.clone()
        k[j] = 0
        moved.append((_w(query, k) @ value - out).norm())
    return torch.stack(moved)


@wrong("influence")
def value_zeroed(query, key, value):
    return _w(query, key) * value.norm(dim=-1)


@wrong("influence")
def from_the_mean(query, key, value):
    w = _w(query, key)
    return w / (1 - w) * (value.mean(0) - value).norm(dim=-1)


@wrong("influence")
def shares(query, key, value):
    w = _w(query, key)
    r = w / (1 - w) * (w @ value - value).norm(dim=-1)
    return r / r.sum()


@wrong("influence")
def vectors(query, key, value):
    w = _w(query, key)
    return (w / (1 - w))[:, None] * (value - w @ value)


@wrong("influence")
def not_scaled_2(query, key, value):
    w = (key @ query).softmax(0)
    return w / (1 - w) * (w @ value - value).norm(dim=-1)


@wrong("influence")
def mean_square(query, key, value):
    w = _w(query, key)
    return w / (1 - w) * (w @ value - value).square().mean(-1).sqrt()


@right("influence")
def leave_one_out(query, key, value):
    out = _w(query, key) @ value
    others = [torch.arange(len(key)) != j for j in range(len(key))]
    return torch.stack([(_w(query, key[rest]) @ value[rest] - out).norm() for rest in others])


@right("influence")
def by_equation(query, key, value):
    w = _w(query, key)
    return torch.stack([w[j] / (1 - w[j]) * torch.linalg.vector_norm(w @ value - value[j]) for j in range(len(w))])


@right("influence")
def masked(query, key, value):
    out = qkv.attention(query[None], key, value)
    each = qkv.attention(query.expand(len(key), -1), key, value, mask=~torch.eye(len(key), dtype=torch.bool))
    return (each - out).norm(dim=1)
