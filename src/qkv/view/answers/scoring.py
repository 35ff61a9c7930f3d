"""The steps from a query and its keys to their scores, for each score."""

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.scores.base import Score
from qkv.scores.free import Learned
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.view.answers.equations import score_equation
from qkv.view.answers.stage import Stage, number, product, vector

_CHUNK = 4_096


def scores(score: Score, query: Tensor, keys: Tensor) -> Tensor:
    """Compute the score of one query with every key, (K), a few keys at a time."""
    parts = [score(query[None], keys[at : at + _CHUNK])[0] for at in range(0, len(keys), _CHUNK)]
    return torch.cat(parts) if parts else query.new_zeros(0)


def wide(score: Score, x: Tensor) -> Tensor:
    """Compute in float64, except for user-defined functions, which get their own dtype."""
    return x if isinstance(score, Learned) else x.double()


def score_stages(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    """Return the stages of the score of one query with some keys; the last stage is the score.

    Args:
        score: the score of one head.
        query: (D).
        keys: (n, E).

    Returns:
        The stages.

    Example:
        >>> [stage.symbol for stage in score_stages(ScaledDot(), torch.ones(4), torch.ones(2, 4))]
        ['q·k', 's']
    """
    stages = _STAGES.get(type(score), _free)
    return stages(score, wide(score, query), wide(score, keys))


def _row(name: str, symbol: str, equation: str, values: Tensor, filled: Callable[[int], str]) -> Stage:
    return Stage(name, symbol, equation, "row", values, filled=filled)


def _products(left: str, query: Tensor, keys: Tensor) -> Stage:
    return _row("product", f"{left}·k", f"{left}·k", keys @ query, lambda at: product(query, keys[at]))


def _scaled(score: Score, of: Stage, factor: float, shown: str) -> Stage:
    values = of.values * factor
    return _row("scale", "s", f"s = {shown}", values, lambda at: f"{number(of.values[at])} × {number(factor)}")


def _dot(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    return [_row("product", "s", "s = q·k", keys @ query, lambda at: product(query, keys[at]))]


def _scaled_dot(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    assert isinstance(score, ScaledDot)
    together = _products("q", query, keys)
    width = max(len(query), 1)
    factor = width**-0.5 if score.scale is None else float(score.scale)
    scaled = _scaled(score, together, factor, f"q·k/√{width}" if score.scale is None else "c·(q·k)")
    if score.softcap is None:
        return [together, scaled]
    cap, x = score.softcap, scaled.values
    capped = cap * torch.tanh(x / cap)
    fill = f"{cap:g}·tanh({{}}/{cap:g})"
    equation = f"s = {cap:g}·tanh(s/{cap:g})"
    return [together, scaled, _row("soft cap", "s", equation, capped, lambda at: fill.format(number(x[at])))]


def _cosine(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    assert isinstance(score, Cosine)
    together, lengths, length = _products("q", query, keys), keys.norm(dim=-1), query.norm()
    divided = score(query[None], keys)[0]
    scale = float(score.scale)

    def filled(at: int) -> str:
        return f"{number(scale)} × {number(together.values[at])}/({number(length)} × {number(lengths[at])})"

    return [
        together,
        Stage("norm of the query", "‖q‖", "‖q‖ = √(q·q)", "number", length),
        _row("norms of the keys", "‖k‖", "‖k‖ = √(k·k)", lengths, lambda at: f"√({product(keys[at], keys[at])})"),
        _row("cosine", "s", "s = c · q·k/(‖q‖‖k‖)", divided, filled),
    ]


def _bilinear(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    assert isinstance(score, Bilinear)
    moved = query @ score.weight.detach().to(query.dtype)
    together = _products("u", moved, keys)
    first = Stage("query in the keys' space", "u", "u = Mᵀq", "vector", moved)
    return [first, together, _scaled(score, together, float(score.scale), "c · u·k")]


def _additive(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    assert isinstance(score, Additive)
    a, b, _, _ = score.prepare(query[None], keys)
    v = score.vector.detach().to(a.dtype)
    hidden = torch.tanh(a + b)
    stages = []
    if score.query_weight is not None:
        stages.append(Stage("query, projected", "a", "a = W q", "vector", a[0]))
    if score.key_weight is not None:
        stages.append(Stage("keys, projected", "b", "b = U k", "matrix", b))
    left, right = ("q" if score.query_weight is None else "a"), ("k" if score.key_weight is None else "b")
    filled = lambda at: f"tanh({vector(a[0])} + {vector(b[at])})"  # noqa: E731
    stages += [
        Stage("hidden layer", "h", f"h = tanh({left} + {right})", "matrix", hidden, filled=filled),
        Stage("weights of the hidden layer", "v", "v", "vector", v),
        _row("score", "s", "s = vᵀh", hidden @ v, lambda at: product(v, hidden[at])),
    ]
    return stages


def _concat(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    assert isinstance(score, Concat)
    a, b, _, _ = score.prepare(query[None], keys)
    own, theirs = a[0, 0], b[:, 0]
    joined = own + theirs
    w_q, w_k = (x.detach().to(query.dtype) for x in (score.query_vector, score.key_vector))
    name = score.activation
    return [
        Stage("number of the query", "a·q", "a·q", "number", own, filled=lambda at: product(w_q, query)),
        _row("numbers of the keys", "b·k", "b·k", theirs, lambda at: product(w_k, keys[at])),
        _row("sum", "z", "z = a·q + b·k", joined, lambda at: f"{number(own)} + {number(theirs[at])}"),
        _row(
            "activation",
            "s",
            f"s = {name}(z)",
            score.pointwise(joined),
            lambda at: f"{name}({number(joined[at])})",
        ),
    ]


def _distance(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    assert isinstance(score, SquaredDistance | Gaussian | Boxcar | Epanechnikov)
    difference = query - keys
    squares = difference.square().sum(-1)
    h = float(score.bandwidth)
    x = (difference / h).square().sum(-1)

    def bent(at: int) -> str:
        return f"with ‖q−k‖ = {number(squares[at].sqrt())} and h = {number(h)}"

    return [
        Stage("difference", "q−k", "q − k", "matrix", difference),
        _row("squared distance", "‖q−k‖²", "‖q−k‖²", squares, lambda at: product(difference[at], difference[at])),
        _row("relative to the bandwidth", "x", "x = ‖q−k‖²/h²", x, lambda at: f"{number(squares[at])}/{number(h * h)}"),
        _row("kernel", "s", score_equation(score), score.pointwise(x), bent),
    ]


def _free(score: Score, query: Tensor, keys: Tensor) -> list[Stage]:
    return [Stage("score", "s", score_equation(score), "row", scores(score, query, keys).detach().double())]


_STAGES: dict[type[Score], Callable[[Score, Tensor, Tensor], list[Stage]]] = {
    Dot: _dot,
    ScaledDot: _scaled_dot,
    Cosine: _cosine,
    Bilinear: _bilinear,
    Additive: _additive,
    Concat: _concat,
    SquaredDistance: _distance,
    Gaussian: _distance,
    Boxcar: _distance,
    Epanechnikov: _distance,
}
