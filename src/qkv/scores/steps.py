"""The steps from a query and its keys to their scores."""

from functools import singledispatch

import torch
from torch import Tensor

from qkv.scores.base import Score
from qkv.scores.catalog import SCORES
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.values.steps import Product, Step


def equation_of(score: Score) -> str:
    """Return the equation of a score.

    Example:
        >>> equation_of(ScaledDot())
        's = q·k/√D'
    """
    return f"s = {SCORES.equation(score) or 'f(q, k)'}"


@singledispatch
def steps(score: Score, query: Tensor, keys: Tensor) -> list[Step]:
    """Return the steps of the score of one query with some keys; the last step is the score.

    Scores of a distance have the steps of a kernel; those of another core have one step unless `steps.register` names
    more.

    Args:
        score: with the parameters of one head.
        query: (D).
        keys: (n, E).

    Returns:
        The steps.

    Example:
        >>> [step.symbol for step in steps(ScaledDot(), torch.ones(4), torch.ones(2, 4))]
        ['q·k', 's']
    """
    if score.core == "distance" and "bandwidth" in vars(score):
        return _of_distance(score, query, keys)
    return [Step("score", "s", equation_of(score), "row", score(query[None], keys)[0].detach().double())]


def _of_distance(score: Score, query: Tensor, keys: Tensor) -> list[Step]:
    h: float = float(vars(score)["bandwidth"])
    difference = query - keys
    squares = difference.square().sum(-1)
    x = (difference / h).square().sum(-1)
    return [
        Step("difference", "q−k", "q − k", "matrix", difference),
        Step(
            *("squared distance", "‖q−k‖²", "‖q−k‖²", "row", squares),
            filled=lambda i: ("{}", (Product(difference[i], difference[i]),)),
        ),
        Step(
            *("relative to the bandwidth", "x", "x = ‖q−k‖²/h²", "row", x),
            filled=lambda i: ("{}/{}", (squares[i], h * h)),
        ),
        Step(
            *("kernel", "s", equation_of(score), "row", score.pointwise(x)),
            filled=lambda i: ("with ‖q−k‖ = {} and h = {}", (squares[i].sqrt(), h)),
        ),
    ]


def _products(left: str, query: Tensor, keys: Tensor) -> Step:
    name = f"{left}·k"
    return Step("product", name, name, "row", keys @ query, filled=lambda i: ("{}", (Product(query, keys[i]),)))


def _scaled(products: Step, factor: float, equation: str) -> Step:
    filled = lambda i: ("{} × {}", (products.values[i], factor))  # noqa: E731
    return Step("scale", "s", equation, "row", products.values * factor, filled=filled)


@steps.register
def _(score: Dot, query: Tensor, keys: Tensor) -> list[Step]:
    filled = lambda i: ("{}", (Product(query, keys[i]),))  # noqa: E731
    return [Step("product", "s", equation_of(score), "row", keys @ query, filled=filled)]


@steps.register
def _(score: ScaledDot, query: Tensor, keys: Tensor) -> list[Step]:
    products = _products("q", query, keys)
    width = max(len(query), 1)
    factor = width**-0.5 if score.scale is None else float(score.scale)
    scaled = _scaled(products, factor, f"s = q·k/√{width}" if score.scale is None else "s = g·q·k")
    if score.softcap is None:
        return [products, scaled]
    cap, x = score.softcap, scaled.values
    capped = cap * torch.tanh(x / cap)
    filled = lambda i: ("{}·tanh({}/{})", (cap, x[i], cap))  # noqa: E731
    return [products, scaled, Step("soft cap", "s", f"s = {cap:g}·tanh(s/{cap:g})", "row", capped, filled=filled)]


@steps.register
def _(score: Cosine, query: Tensor, keys: Tensor) -> list[Step]:
    products, lengths, length = _products("q", query, keys), keys.norm(dim=-1), query.norm()
    scale = float(score.scale)
    return [
        products,
        Step("norm of the query", "‖q‖", "‖q‖ = √(q·q)", "number", length),
        Step(
            *("norms of the keys", "‖k‖", "‖k‖ = √(k·k)", "row", lengths),
            filled=lambda i: ("√({})", (Product(keys[i], keys[i]),)),
        ),
        Step(
            *("cosine", "s", equation_of(score), "row", score(query[None], keys)[0]),
            filled=lambda i: ("{} × {}/({} × {})", (scale, products.values[i], length, lengths[i])),
        ),
    ]


@steps.register
def _(score: Bilinear, query: Tensor, keys: Tensor) -> list[Step]:
    projected = query @ score.weight.detach().to(query.dtype)
    products = _products("u", projected, keys)
    first = Step("query in the keys' space", "u", "u = Mᵀq", "vector", projected)
    return [first, products, _scaled(products, float(score.scale), "s = g·u·k")]


@steps.register
def _(score: Additive, query: Tensor, keys: Tensor) -> list[Step]:
    a, b, _, _ = score.prepare(query[None], keys)
    v = score.vector.detach().to(a.dtype)
    hidden = torch.tanh(a + b)
    result = []
    if score.query_weight is not None:
        result.append(Step("query, projected", "a", "a = W_q q", "vector", a[0]))
    if score.key_weight is not None:
        result.append(Step("keys, projected", "b", "b = W_k k", "matrix", b))
    left, right = ("q" if score.query_weight is None else "a"), ("k" if score.key_weight is None else "b")
    return [
        *result,
        Step(
            *("hidden layer", "h", f"h = tanh({left} + {right})", "matrix", hidden),
            filled=lambda i: ("tanh({} + {})", (a[0], b[i])),
        ),
        Step("weights of the hidden layer", "v", "v", "vector", v),
        Step("score", "s", "s = vᵀh", "row", hidden @ v, filled=lambda i: ("{}", (Product(v, hidden[i]),))),
    ]


@steps.register
def _(score: Concat, query: Tensor, keys: Tensor) -> list[Step]:
    a, b, _, _ = score.prepare(query[None], keys)
    of_query, of_keys = a[0, 0], b[:, 0]
    z = of_query + of_keys
    w_q, w_k = (x.detach().to(query.dtype) for x in (score.query_vector, score.key_vector))
    name = score.activation
    return [
        Step(
            *("number of the query", "w_q·q", "w_q·q", "number", of_query),
            filled=lambda i: ("{}", (Product(w_q, query),)),
        ),
        Step(
            *("numbers of the keys", "w_k·k", "w_k·k", "row", of_keys),
            filled=lambda i: ("{}", (Product(w_k, keys[i]),)),
        ),
        Step("sum", "z", "z = w_q·q + w_k·k", "row", z, filled=lambda i: ("{} + {}", (of_query, of_keys[i]))),
        Step(
            *("activation", "s", f"s = {name}(z)", "row", score.pointwise(z)),
            filled=lambda i: (f"{name}({{}})", (z[i],)),
        ),
    ]
