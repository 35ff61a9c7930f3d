"""The exercises: inputs, and a function whose steps can be swapped for the usual mistakes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


@final
@dataclass(frozen=True)
class Exercise:
    """An exercise.

    Args:
        signature: the arguments of the function to write.
        shape: what the shape of the result says.
        draw: draw arguments; the number of the trial varies the sizes, which all differ.
        solve: the right function; each keyword replaces a step by a wrong form of it.
        mistakes: for each step, its wrong forms and what is wrong with each.
    """

    signature: str
    shape: str
    draw: Callable[[Generator, int], tuple[Any, ...]]
    solve: Callable[..., Tensor]
    mistakes: Mapping[str, Mapping[str, str]]


def _normal(generator: Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=generator, device="cpu")


def _shared_axis(scores: Tensor, axis: str, function: str = "softmax") -> Tensor:
    """Return weights over the keys (last axis) or, by mistake, over the queries, the batch or everything."""
    dim = {"keys": -1, "queries": -2, "first": 0}.get(axis, -1) if scores.ndim > 1 else -1
    if axis == "all":
        return scores.flatten().softmax(0).view_as(scores)
    functions: dict[str, Callable[[], Tensor]] = {
        "softmax": lambda: scores.softmax(dim),
        "none": lambda: scores,
        "exp": scores.exp,
        "sigmoid": scores.sigmoid,
        "sum": lambda: scores / scores.sum(dim, keepdim=True),
        "hard": lambda: F.one_hot(scores.argmax(dim), scores.shape[-1]).to(scores.dtype),
        "uniform": lambda: torch.full_like(scores, 1 / scores.shape[-1]),
        "relu": lambda: scores.relu() / scores.relu().sum(dim, keepdim=True).clamp(min=1e-9),
        "absolute": lambda: scores.abs() / scores.abs().sum(dim, keepdim=True),
        "twice": lambda: scores.softmax(dim).softmax(dim),
    }
    return functions[function]()


_AXIS = {
    "queries": "the weights of each query over its keys must sum to 1, not those of each key over the queries (dim=-1)",
    "first": "the softmax is over the first dimension; it is over the keys, the last one (dim=-1)",
    "all": "the weights of all queries together sum to 1; those of each query must",
}
_NO_SOFTMAX = {
    "none": "the scores are used as weights: there is no softmax",
    "exp": "exp(s) is not divided by its sum over the keys",
    "sigmoid": "a sigmoid is no softmax: the weights of a query do not sum to 1",
    "hard": "only the best key is used (argmax); a softmax mixes all of them",
    "uniform": "all keys have the same weight: the scores are not used",
    "sum": "the scores are divided by their sum, without exp: that is no softmax",
    "relu": "negative scores are set to 0 and the others divided by their sum: that is no softmax",
    "absolute": "the sizes of the scores are divided by their sum: that is no softmax",
    "twice": "there are two softmaxes, one of the other",
}


# 1. Kernel regression


def _draw_regression(g: Generator, trial: int) -> tuple[Any, ...]:
    keys, values = 5 * torch.rand(7 + trial % 3, generator=g, device="cpu"), 10 + 5 * _normal(g, 7 + trial % 3)
    return 5 * torch.rand(4, generator=g, device="cpu"), keys, values, (0.4, 0.7, 1.6)[trial % 3]


def _regression(
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    h: float,
    *,
    distance: str = "squared",
    width: str = "right",
    sign: str = "minus",
    axis: str = "keys",
    weights: str = "sum",
) -> Tensor:
    gap = x[:, None] - keys[None]
    gap = {"squared": gap**2, "absolute": gap.abs(), "signed": gap, "product": -x[:, None] * keys[None]}[distance]
    divisor = {
        "right": 2 * h * h,
        "no square": 2 * h,
        "no two": h * h,
        "neither": h,
        "two": 2.0,
        "both": (2 * h) ** 2,
    }.get(width, 1.0)
    exponent = gap / divisor if sign == "plus" else -gap / divisor
    if width == "times":
        exponent = -gap * h * h / 2
    reach = gap.abs().sqrt() / h if distance == "squared" else gap.abs() / h
    kernels = {"boxcar": (reach <= 1).to(x.dtype), "triangle": (1 - reach).relu(), "parabola": (1 - reach**2).relu()}
    kernels["Cauchy"] = 1 / (1 + reach**2)
    if weights in ("density", "number and bandwidth"):
        root: float = (2 * math.pi) ** 0.5 * h if weights == "density" else len(keys) * h
        return exponent.exp() @ values / root
    if weights in kernels:
        shares = kernels[weights]
        return shares @ values / shares.sum(1).clamp(min=1e-9)
    if weights == "mean":
        return exponent.exp() @ values / len(values)
    if weights == "kernel's softmax":
        return _shared_axis(exponent.exp(), axis) @ values
    return _shared_axis(exponent, axis, "softmax" if weights == "sum" else weights) @ values


_REGRESSION = {
    "distance": {
        "absolute": "the distance is not squared: that is the Laplace kernel, not the Gaussian",
        "signed": "the difference is not squared, so that keys on one side get more weight the farther they are",
        "product": "the score is a product, not a distance",
    },
    "width": {
        "no square": "the bandwidth is not squared: divide by 2h²",
        "no two": "the factor 2 is missing: divide by 2h², not by h²",
        "neither": "divide by 2h², not by h",
        "one": "the bandwidth is not used",
        "two": "the bandwidth is not used: divide by 2h², not by 2",
        "both": "`(2 * h)**2` is 4h²; write `2 * h**2`",
        "times": "it is multiplied by h²: `a / 2 * h**2` divides by 2 alone; write `a / (2 * h**2)`",
    },
    "sign": {"plus": "the minus is missing: far keys get the largest weights"},
    "axis": _AXIS,
    "weights": {
        "exp": "the sum is not divided by the sum of the kernel's values, so that the weights do not sum to 1",
        "mean": "the sum is divided by the number of keys, not by the sum of the kernel's values",
        "hard": "that is the nearest neighbor: only one key is used",
        "uniform": "all keys have the same weight: the distances are not used",
        "none": "the kernel's exponent is used as a weight: there is no exp",
        "kernel's softmax": "a softmax is taken of the kernel's values; divide them by their sum",
        "density": "the kernel is divided by h√(2π), as a density is; divide the sum by the sum of the kernel's values",
        "number and bandwidth": "the sum is divided by n·h, as a density is; divide it by that of the kernel's values",
        "Cauchy": "that is 1/(1 + d²/h²), the Cauchy kernel; the Gaussian is exp(−d²/2h²)",
        "boxcar": "that is the boxcar kernel, 1 within the bandwidth; the Gaussian reaches every key",
        "triangle": "that is the triangular kernel; the Gaussian is exp(−d²/2h²)",
        "parabola": "that is the Epanechnikov kernel; the Gaussian is exp(−d²/2h²)",
    },
}


# 2. Attention, and 5. with a mask


def _draw_attention(g: Generator, trial: int) -> tuple[Any, ...]:
    n, m, d, e = 2 + trial % 3, 5 + trial % 4, (8, 16, 12)[trial % 3], 3
    leading = () if trial % 2 else (2,)
    return _normal(g, *leading, n, d), _normal(g, *leading, m, d), _normal(g, *leading, m, e)


def _draw_masked(g: Generator, trial: int) -> tuple[Any, ...]:
    query, key, value = _draw_attention(g, trial)
    mask = torch.rand(*query.shape[:-1], key.shape[-2], generator=g, device="cpu") < 0.6
    mask[..., 1, 0] = True
    if trial % 2 == 0:
        mask[..., 0, :] = False  # a query that may see nothing
    return query, key, value, mask


_SCALES: Mapping[str, Callable[[Tensor, Tensor, Tensor], float]] = {
    "right": lambda q, k, v: q.shape[-1] ** -0.5,
    "none": lambda q, k, v: 1.0,
    "width": lambda q, k, v: 1 / q.shape[-1],
    "keys": lambda q, k, v: k.shape[-2] ** -0.5,
    "queries": lambda q, k, v: q.shape[-2] ** -0.5,
    "values": lambda q, k, v: v.shape[-1] ** -0.5,
    "first": lambda q, k, v: q.shape[0] ** -0.5,
    "second": lambda q, k, v: q.shape[1] ** -0.5,
    "times": lambda q, k, v: q.shape[-1] ** 0.5,
    "after": lambda q, k, v: 1.0,
}


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    compare: str = "product",
    scale: str = "right",
    hide: str = "right",
    empty: str = "zero",
    axis: str = "keys",
    weights: str = "softmax",
    output: str = "mixed",
) -> Tensor:
    scores = _SCORES[compare](query, key) * _SCALES[scale](query, key, value)
    if mask is not None:
        scores = _hide(scores, mask, hide)
    shares = _shared_axis(scores, axis, weights)
    if scale == "after":
        shares = shares * query.shape[-1] ** -0.5
    if mask is not None:
        if empty == "average":
            shares = torch.where(mask.any(-1, keepdim=True), shares, 1 / key.shape[-2])
        elif empty == "zero" and weights == "softmax":
            shares = shares.nan_to_num(0.0)
        if hide == "after":
            shares = shares * mask
        if hide == "rows":
            shares = shares * mask.any(-1, keepdim=True)
        if hide == "values":
            return shares @ value.masked_fill(~mask.any(-2)[..., None], 0.0)
    return shares if output == "weights" else shares @ value


def _hide(scores: Tensor, mask: Tensor, how: str) -> Tensor:
    forms: dict[str, Callable[[], Tensor]] = {
        "right": lambda: scores.masked_fill(~mask, -math.inf),
        "inverted": lambda: scores.masked_fill(mask, -math.inf),
        "zero": lambda: scores.masked_fill(~mask, 0.0),
        "times": lambda: scores * mask,
        "added": lambda: scores + mask,
        "subtracted": lambda: scores - mask.to(scores.dtype),
        "small": lambda: scores.masked_fill(~mask, -1.0),
        "ten": lambda: scores.masked_fill(~mask, -10.0),
        "plus": lambda: scores.masked_fill(~mask, math.inf),
    }
    return forms.get(how, lambda: scores)()


_SCORES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda q, k: q @ k.mT,
    "cosine": lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT,
    "distance": lambda q, k: -torch.cdist(q, k),
    "squared distance": lambda q, k: -torch.cdist(q, k).square(),
    "tanh": lambda q, k: (q @ k.mT * q.shape[-1] ** -0.5).tanh() * q.shape[-1] ** 0.5,
}
_COMPARE = {
    "cosine": "that is the cosine: queries and keys are normalized; the score is their product",
    "distance": "the score is a distance; it is the product of query and key",
    "squared distance": "the score is a squared distance; it is the product of query and key",
    "tanh": "a tanh is taken of the scores; there is none",
}
_ATTENTION_SCALE = {
    "none": "the scores are not divided by √d",
    "width": "the scores are divided by d, not by √d",
    "keys": "the scores are divided by the square root of the number of keys; it is that of the width d",
    "queries": "the scores are divided by the square root of the number of queries; it is that of the width d",
    "values": "the scores are divided by the root of the width of a value; d is the width of a query and of a key",
    "first": "the scores are divided by the root of `shape[0]`; the width is `shape[-1]`, the last size",
    "second": "with leading dimensions `shape[1]` is not the width; it is `shape[-1]`, the last size",
    "times": "the scores are multiplied by √d; divide them",
    "after": "√d divides the weights, after the softmax; it must divide the scores, before it",
}
_ATTENTION = {
    "scale": _ATTENTION_SCALE,
    "compare": _COMPARE,
    "axis": _AXIS,
    "weights": _NO_SOFTMAX,
    "output": {"weights": "these are the weights; the output is weights @ value"},
}
_MASKED = {
    "hide": {
        "inverted": "the mask is upside down: True means *may attend* here, as in scaled_dot_product_attention "
        "(nn.MultiheadAttention has it the other way around)",
        "none": "the mask is not used",
        "zero": "hidden scores are set to 0, not to −∞: exp(0) = 1 is still a weight",
        "times": "the scores are multiplied by the mask: a hidden score becomes 0, and exp(0) = 1 is still a weight",
        "added": "the mask is added as 0 and 1; hidden scores must become −∞",
        "subtracted": "the mask is subtracted as 0 and 1; hidden scores must become −∞",
        "after": "weights are set to 0 after the softmax: the others no longer sum to 1; set scores to −∞ before it",
        "values": "hidden values are set to 0: their keys still take a share of the weight",
        "rows": "the mask is used only for queries that may see no key; it hides keys from all others too",
        "small": "hidden scores are set to −1, not to −∞",
        "ten": "hidden scores are set to −10, not to −∞: their keys still take a share of the weight",
        "plus": "hidden scores are set to +∞; set them to −∞",
    },
    "empty": {
        "nan": "a query that may see no key gives NaN (0/0): let its weights be 0, so that its output is 0",
        "average": "a query that may see no key gets the average of all values, because all its scores are equal; "
        "let its weights be 0",
    },
    "scale": _ATTENTION_SCALE,
    "compare": _COMPARE,
    "axis": _AXIS,
    "weights": _NO_SOFTMAX,
    "output": {"weights": "these are the weights; the output is weights @ value"},
}


# 3. Additive scores, and 4. one step of a decoder


def _draw_additive(g: Generator, trial: int) -> tuple[Any, ...]:
    n, m, a = 3 + trial % 2, 5 + trial % 3, 7
    d, e = (4, 6) if trial % 2 else (5, 5)
    sizes = ((n, d), (m, e), (a, d), (a, e), (a,))
    return tuple(_normal(g, *size) for size in sizes)


def _additive(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    vector: Tensor,
    *,
    squash: str = "tanh",
    combine: str = "sum",
    reduce: str = "vector",
    after: str = "none",
    layout: str = "rows",
) -> Tensor:
    left, right = (query @ query_weight.mT)[:, None], (key @ key_weight.mT)[None]
    if layout == "columns":
        left, right = (key @ key_weight.mT)[:, None], (query @ query_weight.mT)[None]
    scores = _reduced(_combined(left, right, combine, squash), vector, reduce)
    if squash == "late":
        scores = scores.tanh()
    if squash == "inside":
        scores = (_combined(left, right, combine, squash) * vector).tanh().sum(-1)
    return scores.softmax(-1) if after == "softmax" else scores


def _combined(left: Tensor, right: Tensor, combine: str, squash: str) -> Tensor:
    if squash == "each":
        return left.tanh() + right.tanh()
    hidden = {"sum": left + right, "product": left * right, "difference": left - right}
    hidden |= {"query": left + 0 * right, "key": 0 * left + right}
    functions: Mapping[str, Callable[[Tensor], Tensor]] = {
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "relu": torch.relu,
    }
    squashed = functions.get(squash)
    return hidden[combine] if squashed is None else squashed(hidden[combine])


def _reduced(hidden: Tensor, vector: Tensor, reduce: str) -> Tensor:
    forms: dict[str, Tensor] = {
        "vector": hidden @ vector,
        "sum": hidden.sum(-1),
        "mean": hidden.mean(-1),
        "scaled": hidden @ vector / len(vector) ** 0.5,
        "none": hidden * vector,
    }
    return forms[reduce]


_SQUASH = {
    "none": "there is no tanh: without it the query adds the same number to every key's score, and softmax forgets it",
    "late": "tanh comes before the product with the vector, not after it",
    "each": "tanh is taken of each projection; take it of their sum",
    "sigmoid": "that is a sigmoid; Bahdanau's score has a tanh",
    "relu": "that is a ReLU; Bahdanau's score has a tanh",
    "inside": "the vector is within the tanh; it weighs what comes out of it",
}
_COMBINE = {
    "product": "the projections are multiplied; add them",
    "difference": "the projections are subtracted; add them",
    "query": "the key is not used",
    "key": "the query is not used",
}
_REDUCE = {
    "sum": "the hidden units are summed; they are weighted by the vector",
    "mean": "the hidden units are averaged; they are weighted by the vector",
    "scaled": "additive scores are not divided by a square root",
    "none": "the weighted hidden units are not summed: use @ vector",
}
_ADDITIVE = {
    "squash": _SQUASH,
    "combine": _COMBINE,
    "reduce": _REDUCE,
    "after": {"softmax": "these are weights; the scores come before the softmax"},
    "layout": {"columns": "it is transposed: a row for each query, a column for each key"},
}


def _draw_context(g: Generator, trial: int) -> tuple[Any, ...]:
    m, a, h = 5 + trial % 3, 6, (6 if trial % 2 else 4)
    return _normal(g, a), _normal(g, m, a), _normal(g, m, h), 2 * _normal(g, a)


def _context(
    state: Tensor,
    keys: Tensor,
    annotations: Tensor,
    vector: Tensor,
    *,
    squash: str = "tanh",
    combine: str = "sum",
    reduce: str = "vector",
    weights: str = "softmax",
    values: str = "annotations",
    output: str = "sum",
) -> Tensor:
    if combine == "dot":
        scores = keys @ state
    else:
        scores = _reduced(_combined(state[None], keys, combine, squash), vector, reduce)
        scores = scores.tanh() if squash == "late" else scores
        if squash == "inside":
            scores = (_combined(state[None], keys, combine, squash) * vector).tanh().sum(-1)
    shares = _shared_axis(scores, "keys", weights)
    mixed = keys if values == "keys" else annotations
    if output == "weights":
        return shares
    return shares[:, None] * mixed if output == "rows" else shares @ mixed


_CONTEXT = {
    "squash": {
        **_SQUASH,
        "none": "there is no tanh: without it the state adds the same number to every score, and softmax forgets it",
        "each": "the state changes nothing: it is not used, or tanh is taken of each projection and not of their sum",
    },
    "combine": {
        **_COMBINE,
        "query": "all annotations have the same weight: the keys are not used",
        "key": "the state is not used",
        "dot": "that is the dot product; Bahdanau's score is vᵀ tanh(s + k)",
    },
    "reduce": {name: text for name, text in _REDUCE.items() if name != "none"},
    "weights": _NO_SOFTMAX,
    "values": {"keys": "the projected keys are mixed; the weights belong to the annotations"},
    "output": {
        "weights": "these are the weights; the context is their sum of annotations",
        "rows": "the weighted annotations are not summed",
    },
}


# 6. Several heads


def _draw_heads(g: Generator, trial: int) -> tuple[Any, ...]:
    heads, n, width = (2, 3, 4)[trial % 3], 5 + trial % 2, 12
    weights = (_normal(g, width, width) / width**0.5 for _ in range(4))
    return _normal(g, n, width), *weights, heads


def _multi_head(
    x: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    output_weight: Tensor,
    heads: int,
    *,
    project: str = "right",
    split: str = "right",
    scale: str = "right",
    axis: str = "keys",
    weights: str = "softmax",
    mask: str = "none",
    join: str = "right",
    last: str = "right",
) -> Tensor:
    inner = [query_weight, key_weight, value_weight]
    if project == "not transposed":
        inner = [weight.mT for weight in inner]
    elif project in ("shared", "swapped", "no value"):
        inner = {
            "shared": [query_weight, query_weight, value_weight],
            "swapped": [key_weight, query_weight, value_weight],
            "no value": [query_weight, key_weight, torch.eye(len(x[0]), device="cpu")],
        }[project]
    if project == "slices":
        inner = [_diagonal_blocks(weight, heads) for weight in inner]
    query, key, value = (_split(x @ weight.mT, heads, split) for weight in inner)
    scales = {"right": query.shape[-1] ** -0.5, "whole": x.shape[-1] ** -0.5, "none": 1.0, "width": 1 / query.shape[-1]}
    scores = query @ key.mT * scales[scale]
    if mask == "causal":
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    out = _head_weights(scores, axis, weights) @ value
    joined = _join(out, x.shape, join, split)
    return {
        "right": joined @ output_weight.mT,
        "not transposed": joined @ output_weight,
        "left out": joined,
    }[last]


def _head_weights(scores: Tensor, axis: str, weights: str) -> Tensor:
    shares = _shared_axis(scores, axis, "softmax" if weights == "averaged" else weights)
    return shares.mean(0, keepdim=True).expand_as(shares) if weights == "averaged" else shares


def _diagonal_blocks(weight: Tensor, heads: int) -> Tensor:
    """Return the weight with only its diagonal blocks, as if each head read only its slice of the embedding."""
    at = torch.arange(len(weight), device="cpu") * heads // len(weight)
    return weight * (at[:, None] == at)


def _split(x: Tensor, heads: int, how: str) -> Tensor:
    n, width = x.shape
    match how:
        case "reshaped" | "reshaped once":
            return x.reshape(heads, n, width // heads)
        case "interleaved":
            return x.reshape(n, width // heads, heads).permute(2, 0, 1)
        case "one":
            return x[None]
        case "positions":
            return x.reshape(n, heads, width // heads)
        case _:
            return x.reshape(n, heads, width // heads).transpose(0, 1)


def _join(out: Tensor, shape: torch.Size, how: str, split: str) -> Tensor:
    if how == "reshaped" or split in ("reshaped", "positions"):
        return out.reshape(shape)
    if how == "interleaved":
        return out.permute(1, 2, 0).reshape(shape)
    if how in ("mean", "sum"):
        mixed = out.mean(0) if how == "mean" else out.sum(0)
        return mixed.repeat(1, shape[-1] // mixed.shape[-1])
    return out.transpose(0, 1).reshape(shape)


_RESHAPED = "reshape alone does not split heads: it mixes positions; make it (n, heads, d), then transpose"
_MULTI_HEAD = {
    "split": {
        "reshaped": _RESHAPED,
        "reshaped once": _RESHAPED,
        "interleaved": "head 0 takes features that are `heads` apart; it takes the first width / heads features",
        "one": "there is only one head, of the whole width",
        "positions": "the heads of one position attend to each other: transpose to (heads, n, d)",
    },
    "join": {
        "reshaped": "the heads are joined without transposing back: positions and heads are mixed",
        "interleaved": "the heads are joined feature by feature; they are concatenated one after another",
        "mean": "the heads are averaged; concatenate them",
        "sum": "the heads are summed; concatenate them",
    },
    "scale": {
        "whole": "√d is that of the whole width; each head divides by the root of its own width",
        "none": "the scores are not divided by √d",
        "width": "the scores are divided by d, not by √d",
    },
    "project": {
        "not transposed": "the projections are x @ W.T (as in nn.Linear), not x @ W",
        "shared": "queries and keys have the same projection: W_K is not used",
        "swapped": "W_Q and W_K are swapped",
        "no value": "the values are not projected: W_V is not used",
        "slices": "each head sees only its slice of x; it is a slice of the projection, which sees all of x",
    },
    "axis": {
        "queries": _AXIS["queries"],
        "first": "the softmax is over the heads; it is over the keys, the last dimension (dim=-1)",
    },
    "weights": {**_NO_SOFTMAX, "averaged": "the weights are averaged over the heads; each head mixes with its own"},
    "mask": {"causal": "a causal mask hides later positions; here every position sees every other"},
    "last": {
        "left out": "the output projection W_O is missing: it mixes the heads",
        "not transposed": "the output is joined @ W_O.T (as in nn.Linear), not joined @ W_O",
    },
}


# 7. The causal mask with a cache


def _draw_causal(g: Generator, trial: int) -> tuple[Any, ...]:
    return (3, 1, 4, 2, 5, 3)[trial], (4, 6, 0, 3, 2, 7)[trial]


def _causal(new: int, past: int, *, start: str = "right", sense: str = "right", width: str = "right") -> Tensor:
    columns = {"right": past + new, "new": new, "past": past}[width]
    offset = {"right": past, "top left": 0, "strict": past - 1, "ahead": past + 1, "minus": -past, "new": new}[start]
    mask = torch.arange(columns, device="cpu")[None] <= offset + torch.arange(new, device="cpu")[:, None]
    forms: dict[str, Callable[[], Tensor]] = {
        "right": lambda: mask,
        "inverted": lambda: ~mask,
        "upper": lambda: torch.arange(columns, device="cpu")[None] >= offset + torch.arange(new, device="cpu")[:, None],
        "all": lambda: torch.ones_like(mask),
        "bias": lambda: torch.zeros(mask.shape, device="cpu").masked_fill(~mask, -math.inf),
        "float": mask.float,
        "no past": lambda: mask & (torch.arange(columns, device="cpu")[None] >= past),
        "past alone": lambda: mask & (torch.arange(columns, device="cpu")[None] < past),
        "past last": lambda: mask.roll(-past, 1),
        "diagonal": lambda: (
            torch.arange(columns, device="cpu")[None] == offset + torch.arange(new, device="cpu")[:, None]
        ),
        "first diagonal": lambda: torch.eye(new, columns, dtype=torch.bool, device="cpu"),
    }
    return forms[sense]()


_CAUSAL = {
    "start": {
        "top left": "the diagonal starts at the first key: the new tokens come after `past` older ones, which all of "
        "them may see",
        "strict": "a token may see itself too: the diagonal belongs to the mask",
        "ahead": "each token sees the next one, which it is to predict",
        "new": "the diagonal starts at column `new`; it starts at column `past`",
        "minus": "the diagonal starts `past` columns to the left of the first; it starts `past` columns to the right",
    },
    "sense": {
        "inverted": "it is upside down: True means *may attend*",
        "upper": "that is the upper triangle: each token sees itself and what comes after it",
        "all": "nothing is hidden: every token sees those after it",
        "bias": "0 and −∞ are a bias, which is added to scores; a mask is bool, True where a token may attend",
        "float": "it is made of the numbers 0 and 1; a mask is bool, True where a token may attend",
        "no past": "the `past` older tokens are hidden; every new token may see all of them",
        "past alone": "a new token sees the `past` older ones alone; it sees itself and the new ones before it too",
        "diagonal": "each token sees itself alone; it sees all before it too",
        "first diagonal": "that is a diagonal: each row is True once; a token sees itself and all before it",
        "past last": "the `past` older tokens are the last columns; they come first",
    },
    "width": {
        "new": "the cache is missing: a column for each of the `past` tokens too",
        "past": "the new tokens themselves are missing: past + new columns",
    },
}


# 8. Sinusoidal positions


def _draw_positions(g: Generator, trial: int) -> tuple[Any, ...]:
    return (7, 12, 5, 30, 9, 40)[trial], (8, 6, 10, 16, 4, 12)[trial]


def _positions(
    length: int,
    width: int,
    *,
    order: str = "interleaved",
    waves: str = "right",
    base: str = "right",
    power: str = "right",
    first: str = "zero",
    layout: str = "rows",
) -> Tensor:
    positions = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] + (first == "one")
    positions_of = {
        "turns": 2 * math.pi * positions,
        "share": positions / length,
        "degrees": positions * (math.pi / 180),
    }
    positions = positions_of.get(first, positions)
    index = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
    numbers = {"thousand": 1e3, "hundred": 1e2, "hundred thousand": 1e5, "e": math.e}
    numbers |= {"no logarithm": math.inf, "common logarithm": math.exp(4)}
    number = numbers.get(base, 10000.0)
    divisors = {"half": 2 * width, "double": width / 2, "last": max(width - 2, 1), "length": length}
    exponent = index / divisors.get(power, width)
    sine, cosine = (number**value for value in (exponent, exponent + (power == "column") / width))
    if power == "no exponent":
        sine = cosine = torch.ones_like(index)
    sine, cosine = (positions * rate if power == "times" else positions / rate for rate in (sine, cosine))
    pair = {
        "right": (sine.sin(), cosine.cos()),
        "swapped": (sine.cos(), cosine.sin()),
        "sines": (sine.sin(), cosine.sin()),
        "cosines": (sine.cos(), cosine.cos()),
    }[waves]
    table = torch.cat(pair, 1) if order == "halves" else torch.stack(pair, -1).flatten(1)
    sizes: dict[str, float] = {"small": width**-0.5, "large": width**0.5}
    table = table * sizes.get(layout, 1.0)
    return (table.mT if layout == "columns" else table).float()


_POSITIONS = {
    "order": {"halves": "sines fill the first half and cosines the second; they alternate: sin, cos, sin, cos"},
    "waves": {
        "swapped": "sine and cosine are swapped: even columns are sines",
        "sines": "all columns are sines; odd ones are cosines",
        "cosines": "all columns are cosines; even ones are sines",
    },
    "power": {
        "half": "the exponent is 2i/d for the pair i, not i/d: the slowest waves are far too fast",
        "double": "the exponent is 2i/d for the pair i; the column's number is doubled twice",
        "times": "the angle is p divided by 10000^(2i/d); it is multiplied",
        "length": "the exponent is divided by the length; divide it by the width d",
        "no exponent": "all pairs have the same frequency",
        "column": "a cosine has the frequency of the sine before it: the exponent of both is 2i/d for pair i",
        "last": "the exponent ends at 1 − 2/d, not at 1: it is 2i/d for the pair i, whatever their number",
    },
    "base": {
        "thousand": "the base is 10,000, not 1,000",
        "hundred": "the base is 10,000, not 100",
        "hundred thousand": "the base is 10,000, not 100,000",
        "e": "the base is 10,000, not e",
        "no logarithm": "10000^x is exp(x · log 10000); the log is missing",
        "common logarithm": "10000^x is exp(x · log 10000) with the natural logarithm, not with log10",
    },
    "first": {
        "one": "positions are counted from 1; the first is 0",
        "turns": "there is no 2π in the angle: the position itself is divided by 10000^(2i/d)",
        "degrees": "the angle is in degrees; the position itself is divided by 10000^(2i/d), with no π",
        "share": "the position is divided by the length; it is a count, the same in texts of every length",
    },
    "layout": {
        "columns": "it is transposed: a row for each position",
        "small": "the waves are divided by √d; they are between −1 and 1",
        "large": "the waves are multiplied by √d; they are between −1 and 1",
    },
}


# 9. Copying


def _draw_copying(g: Generator, trial: int) -> tuple[Any, ...]:
    size, length, rows = 9 + trial % 2, 5 + trial % 3, 3
    ids = torch.randint(size, (length,), generator=g, device="cpu")
    ids[-1] = ids[0]  # a word that stands twice
    return _normal(g, rows, size), _normal(g, rows, length), ids


def _copying(
    words: Tensor,
    positions: Tensor,
    ids: Tensor,
    *,
    softmax: str = "joint",
    repeated: str = "added",
    parts: str = "both",
) -> Tensor:
    size = words.shape[1]
    together = torch.cat([words, positions], -1).softmax(-1)
    over_rows = torch.cat([words, positions], -1).softmax(0)
    exchanged = torch.cat([positions, words], -1).softmax(-1)
    forms: dict[str, tuple[Tensor, Tensor]] = {
        "joint": (together[:, :size], together[:, size:]),
        "separate": (words.softmax(-1), positions.softmax(-1)),
        "half": (words.softmax(-1) / 2, positions.softmax(-1) / 2),
        "none": (words, positions),
        "before": (words, positions),
        "rows": (over_rows[:, :size], over_rows[:, size:]),
        "exchanged": (exchanged[:, :size], exchanged[:, size:]),
        "sigmoid": (words.sigmoid(), positions.sigmoid()),
    }
    generated, copied = forms[softmax]
    spread = _spread(ids, size, repeated).to(words.dtype)
    landed = copied @ spread
    if repeated in ("set", "put"):
        return torch.where(spread.any(0), landed, generated)
    if repeated == "larger":
        return torch.maximum(generated, (copied[:, :, None] * spread).amax(1))
    if softmax == "before":
        return (generated + landed).softmax(-1)
    if repeated == "averaged":
        landed = landed / spread.sum(0).clamp(min=1)
    return {
        "both": generated + landed,
        "product": generated * landed,
        "generated": generated,
        "copied": landed,
        "apart": torch.cat([generated, copied], -1),
    }[parts]


def _spread(ids: Tensor, size: int, repeated: str) -> Tensor:
    """Return a one-hot row for each position; by mistake, only for the first or last position of a repeated word."""
    if repeated == "in order":
        return torch.eye(len(ids), size, dtype=torch.int64, device="cpu")
    spread = F.one_hot(ids, size)
    for word in set(ids.tolist()) if repeated in ("first", "last", "put") else ():
        at = (ids == word).nonzero()[:, 0]
        spread[at[1:] if repeated == "first" else at[:-1], word] = 0
    return spread


_COPYING = {
    "softmax": {
        "separate": "words and positions have a softmax each, so that all sum to 2; one softmax is over both",
        "half": "words and positions have a softmax each and count half; here one softmax over both decides the shares",
        "before": "scores are added before the softmax; add the probabilities after it",
        "none": "there is no softmax",
        "rows": "the softmax is over the rows; it is over the words and positions of each row (dim=-1)",
        "exchanged": "positions come first in the softmax, and are taken for words after it",
        "sigmoid": "a sigmoid is no softmax: the probabilities do not sum to 1",
    },
    "repeated": {
        "last": "a word that stands several times in the source counts once; add the probability of each position "
        "(index_add, not out[:, ids] += ...)",
        "first": "a word that stands several times in the source counts once; add the probability of each position",
        "set": "the copied probability replaces the generated one; add them",
        "put": "the probability of the last position replaces the generated one; add those of all positions to it",
        "averaged": "the probabilities of a word's positions are averaged; add them",
        "larger": "the largest probability of a word is taken; add all of them",
        "in order": "the probability of position j is added to word j; add it to word `ids[j]`",
    },
    "parts": {
        "generated": "what is copied is missing: a word's probability also has those of its positions",
        "copied": "what is generated is missing: a word's probability also has that of the vocabulary",
        "product": "generated and copied probabilities are multiplied; add them",
        "apart": "the positions are still apart: add each one's probability to the word that stands there",
    },
}


# 10. What a key does


def _draw_influence(g: Generator, trial: int) -> tuple[Any, ...]:
    m, d, e = 5 + trial % 3, 6, 4
    return 2 * _normal(g, d), _normal(g, m, d), _normal(g, m, e)


def _influence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    factor: str = "right",
    change: str = "right",
    size: str = "norm",
    scale: str = "right",
) -> Tensor:
    roots = {"none": 1.0, "width": query.shape[-1], "values": value.shape[-1] ** 0.5, "keys": len(key) ** 0.5}
    root = roots.get(scale, query.shape[-1] ** 0.5)
    w = (key @ query / root).softmax(-1)
    factors = {"right": w / (1 - w), "weight": w, "one": torch.ones_like(w), "odds": 1 / (1 - w), "rest": 1 - w}
    factors |= {"times": w * (1 - w), "upside down": (1 - w) / w}
    changes = {
        "right": w @ value - value,
        "value": value,
        "none": torch.ones_like(value[:, :1]),
        "mean": value.mean(0) - value,
        "sum": w @ value + value,
        "rest": w @ value - w[:, None] * value,
    }
    moved = factors[factor][:, None] * changes.get(change, value)
    if change == "zero key":
        scores = (key @ query / root).expand(len(key), -1)
        moved = (
            scores.masked_fill(torch.eye(len(key), dtype=torch.bool, device="cpu"), 0.0).softmax(-1) @ value - w @ value
        )
    sizes: dict[str, Tensor] = {
        "norm": moved.norm(dim=-1),
        "squared": moved.square().sum(-1),
        "squared distance": factors[factor] * changes.get(change, value).square().sum(-1),
        "absolute": moved.abs().sum(-1),
        "largest": moved.abs().amax(-1),
        "mean": moved.square().mean(-1),
        "root of mean": moved.square().mean(-1).sqrt(),
        "relative": moved.norm(dim=-1) / (w @ value).norm(),
        "vector": moved,
        "minus": -moved,
        "no brackets": w - w * changes.get(change, value).norm(dim=-1),
    }
    return sizes[size]


_INFLUENCE = {
    "factor": {
        "weight": "the other weights must grow when a key goes: they sum to 1 again, so divide by 1 − w",
        "one": "the weight is not used",
        "rest": "that is 1 − w, the weight of all other keys; the factor is w / (1 − w)",
        "odds": "the weight itself is missing: w / (1 − w)",
        "times": "the weight is multiplied by 1 − w; divide it",
        "upside down": "the factor is upside down: it is w / (1 − w)",
    },
    "change": {
        "value": "that is the size of the removed value; the output moves by its distance from the output",
        "none": "these are weights alone: a key whose value is like the output changes nothing, whatever its weight",
        "mean": "that is the distance of each value from the plain average; the output is the weighted one",
        "sum": "output and value are added; the output moves by the distance between them",
        "rest": "the value is multiplied by its weight before it is subtracted; the weight is in the factor already",
        "zero key": "a key that is set to 0 keeps a score of 0, and so a weight; take it away (a score of −∞)",
    },
    "size": {
        "squared": "the norm is squared",
        "squared distance": "the distance is squared: take the root of the sum of squares",
        "absolute": "that is the sum of absolute differences; the norm is the root of the sum of squares",
        "largest": "that is the largest difference; the norm is the root of the sum of squares",
        "mean": "that is a mean of squares; the norm is the root of their sum",
        "root of mean": "that is the root of the mean of squares; the norm is the root of their sum",
        "relative": "it is divided by the length of the output",
        "vector": "these are the differences; return their norms, one for each key",
        "minus": "these are the differences; return their norms, one for each key",
        "no brackets": "`w / 1 - w` is (w / 1) − w; write `w / (1 - w)`",
    },
    "scale": {
        "none": "the scores are not divided by √d",
        "width": "the scores are divided by d, not by √d",
        "values": "the scores are divided by the root of the width of a value; d is the width of the query",
        "keys": "the scores are divided by the root of the number of keys; d is the width of the query",
    },
}


EXERCISES: Mapping[str, Exercise] = MappingProxyType(
    {
        "kernel_regression": Exercise(
            "(query, key, value, bandwidth)", "one number for each query", _draw_regression, _regression, _REGRESSION
        ),
        "attention": Exercise(
            "(query, key, value)", "as many rows as queries, as wide as values", _draw_attention, _attention, _ATTENTION
        ),
        "additive_scores": Exercise(
            "(query, key, query_weight, key_weight, vector)",
            "a row for each query, a column for each key",
            _draw_additive,
            _additive,
            _ADDITIVE,
        ),
        "context": Exercise(
            "(state, keys, annotations, vector)", "as wide as an annotation", _draw_context, _context, _CONTEXT
        ),
        "masked_attention": Exercise(
            "(query, key, value, mask)",
            "as many rows as queries, as wide as values",
            _draw_masked,
            _attention,
            _MASKED,
        ),
        "multi_head": Exercise(
            "(x, query_weight, key_weight, value_weight, output_weight, heads)",
            "that of x",
            _draw_heads,
            _multi_head,
            _MULTI_HEAD,
        ),
        "causal_mask": Exercise(
            "(new, past)", "a row for each new token, a column for each token", _draw_causal, _causal, _CAUSAL
        ),
        "positions": Exercise("(length, width)", "a row for each position", _draw_positions, _positions, _POSITIONS),
        "copying": Exercise(
            "(words, positions, ids)",
            "a probability for each word of the vocabulary",
            _draw_copying,
            _copying,
            _COPYING,
        ),
        "influence": Exercise(
            "(query, key, value)", "one number for each key", _draw_influence, _influence, _INFLUENCE
        ),
    }
)
"""The exercises of the course by name."""
