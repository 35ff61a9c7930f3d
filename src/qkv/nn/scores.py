"""Scores that own their parameters and build the score's value in each forward pass."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, nearest
from qkv.linalg.matmul import cached_weight
from qkv.linalg.session import DecodingSession
from qkv.nn.inputs import expect_input, expect_optional_sizes, expect_sizes
from qkv.scores.base import Score
from qkv.scores.free import Learned, as_score
from qkv.scores.products import SCALED_DOT, Bilinear, Cosine, Dot, ScaledDot, project
from qkv.scores.sums import Additive
from qkv.values.checked import checked
from qkv.values.parameters import Owner, above, expect_floats, register, with_registered
from qkv.values.plain_modules import is_watched

BUILT = ("additive", "bilinear", "dot", "scaled_dot")
"""The names that `build_score` takes."""


class ScoreParts:
    """A score as layers use it: whole, or divided so that a decoder projects keys once.

    `value()` is the score of raw queries and keys. `projected()` is the score of the results of `project_query` and
    `project_key`, which lets a decoder project the keys once per sentence and only the query in each step. Both give
    the same scores. By default nothing is projected.
    """

    @abstractmethod
    def value(self) -> Score:
        """Build the score of raw queries (..., Q, D) and keys (..., K, E), with the current parameters."""

    def project_query(self, query: Tensor) -> Tensor:
        """Compute the part of the score that depends only on the query: (..., Q, D) to (..., Q, F)."""
        return query

    def project_queries(self, steps: int, session: DecodingSession | None = None) -> Callable[[Tensor], Tensor]:
        """Return `project_query` for at most `steps` steps of one loop; a session keeps the weight packed."""
        return self.project_query

    def project_key(self, key: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Compute the part of the score that depends only on the key: (..., K, E) to (..., K, F)."""
        return key

    def projected(self) -> Score:
        """Build the score of projected queries and keys."""
        return self.value()


@checked
class ScoreModule(nn.Module, ScoreParts, Owner):
    """Parameters of a score."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute the scores (..., Q, K) by the equation, for inspection and tests."""
        expect_floats("query", query)
        expect_floats("key", key)
        score = self.value()
        score.check(tuple(query.shape), tuple(key.shape))
        return score(query, key)


@final
class CalledScore(ScoreParts):
    """The score of a module that has hooks or is of another class: it is called on tiles.

    Args:
        module: takes queries (..., Q, D) and keys (..., K, E), and returns scores (..., Q, K).
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def value(self) -> Score:
        """Build the score that calls the module."""
        return Learned(self._module)


def score_of(module: nn.Module) -> ScoreParts:
    """Return a score module if its parameters may be read, else a score that calls it.

    Example:
        >>> score = DotScore()
        >>> score_of(score) is score
        True
        >>> handle = score.register_forward_hook(lambda module, inputs, scores: 2 * scores)
        >>> score_of(score).value()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[8., 8.]])
    """
    return module if isinstance(module, ScoreModule) and not is_watched(module) else CalledScore(module)


@checked
@final
class FixedScore(ScoreModule):
    """Any score value as a module.

    Args:
        score: the value, or a function of (query, key). A `torch.nn.Parameter` in it becomes one of this module.

    Raises:
        ConfigError: it is neither.

    Example:
        >>> FixedScore(Dot()).value()
        Dot()
    """

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = as_score(score)
        self._learned = register(self, self.score)

    def value(self) -> Score:
        """Return the value itself, with the current parameters."""
        return with_registered(self, self.score, self._learned)

    def extra_repr(self) -> str:
        """Show the value."""
        return f"{self.score}"


@checked
@final
class DotScore(ScoreModule):
    """q·k.

    Source: Luong et al. 2015, eq. 8 (dot).

    Example:
        >>> DotScore()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[4., 4.]])
    """

    def value(self) -> Score:
        """Build the dot product."""
        return Dot()


@checked
@final
class ScaledDotScore(ScoreModule):
    """q·k/√D; with `softcap` c: c·tanh(s/c).

    Args:
        scale: used instead of 1/√D.
        softcap: bound ±softcap on the scores; None for no bound.

    Source: Vaswani et al. 2017, eq. 1.

    Example:
        >>> ScaledDotScore()(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[2., 2.]])
    """

    def __init__(self, scale: float | None = None, softcap: float | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.softcap = softcap

    def value(self) -> Score:
        """Build the scaled dot product."""
        plain = self.scale is None and self.softcap is None
        return SCALED_DOT if plain else ScaledDot(self.scale, self.softcap)


@checked
@final
class AdditiveScore(ScoreModule):
    """vᵀ tanh(W_q q + W_k k), with v, W_q and W_k learned.

    Args:
        query_width: D.
        key_width: E.
        hidden: A, the width of the hidden layer.
        heads: H, for one set of parameters per head: `vector` (H, A), `query_weight` (H, A, D); None for one set.
        key_heads: G, the heads of `key_weight` (G, A, E); None for `heads`.

    Source: Bahdanau et al. 2015, appendix A.1.2; initialization: Glorot and Bengio 2010, eq. 16.

    Example:
        >>> score = AdditiveScore(query_width=3, key_width=4, hidden=8)
        >>> query, memory = torch.randn(2, 1, 3), torch.randn(2, 5, 4)
        >>> keys = score.project_key(memory)  # once per sentence
        >>> torch.allclose(score.projected()(score.project_query(query), keys), score(query, memory), atol=1e-6)
        True
    """

    def __init__(
        self, query_width: int, key_width: int, hidden: int, *, heads: int | None = None, key_heads: int | None = None
    ) -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width, hidden=hidden)
        expect_optional_sizes(heads=heads, key_heads=key_heads)
        self.vector = nn.Parameter(torch.empty(*_head_sizes(heads), hidden))
        self.query_weight = nn.Parameter(torch.empty(*_head_sizes(heads), hidden, query_width))
        self.key_weight = nn.Parameter(torch.empty(*_head_sizes(key_heads or heads), hidden, key_width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters."""
        xavier_uniform(self.query_weight)
        xavier_uniform(self.key_weight)
        xavier_uniform(self.vector.data[..., None, :])

    def value(self) -> Score:
        """Build the additive score of raw queries and keys."""
        return Additive(self.vector, self.query_weight, self.key_weight)

    def project_query(self, query: Tensor) -> Tensor:
        """Compute W_q q."""
        expect_input("query", query, None, self.query_weight.shape[-1], rank=1)
        return project(query, self.query_weight)

    def project_queries(self, steps: int, session: DecodingSession | None = None) -> Callable[[Tensor], Tensor]:
        """Return `project_query` for at most `steps` steps of one loop; a session keeps the weight packed."""
        if self.query_weight.ndim > 2:
            return self.project_query
        from qkv.nn.recurrent.repeated import Repeated

        return Repeated(self.query_weight, None, steps, cached_weight(session, (self, "query")))

    def project_key(self, key: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Compute W_k k, once per sentence."""
        expect_input("key", key, None, self.key_weight.shape[-1], rank=1)
        return project(key, self.key_weight, cached_weight(session, (self, "key")))

    def projected(self) -> Score:
        """Build the additive score of projected queries and keys."""
        return Additive(self.vector)


@checked
@final
class BilinearScore(ScoreModule):
    """scale · qᵀMk, with M learned.

    Args:
        query_width: D.
        key_width: E.
        heads: H, for one matrix per head: `weight` (H, D, E), None for one. Matrices per head start smaller by
            a factor of √D, so that scores start with the spread of a scaled dot product.
        scale: multiplies the score.

    Source: Luong et al. 2015, eq. 8 (general); initialization: Glorot and Bengio 2010, eq. 16.

    Example:
        >>> BilinearScore(3, 4)(torch.randn(2, 1, 3), torch.randn(2, 5, 4)).shape
        torch.Size([2, 1, 5])
    """

    def __init__(self, query_width: int, key_width: int, *, heads: int | None = None, scale: float = 1.0) -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width)
        expect_optional_sizes(heads=heads)
        self.weight = nn.Parameter(torch.empty(*_head_sizes(heads), query_width, key_width))
        self.scale = scale
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the matrix."""
        xavier_uniform(self.weight)
        if self.weight.ndim > 2:
            self.weight.data.mul_(self.weight.shape[-2] ** -0.5)

    def value(self) -> Score:
        """Build the bilinear score of raw queries and keys."""
        return Bilinear(self.weight, self.scale)

    def project_query(self, query: Tensor) -> Tensor:
        """Compute qᵀM, in the key's space; groups of heads can then share unprojected keys."""
        expect_input("query", query, None, self.weight.shape[-2], rank=1)
        return project(query, self.weight.mT)

    def project_queries(self, steps: int, session: DecodingSession | None = None) -> Callable[[Tensor], Tensor]:
        """Return `project_query` for the steps of one loop; a session keeps the weight packed."""
        packed = cached_weight(session, self)
        return lambda query: project(query, self.weight.mT, packed)

    def projected(self) -> Score:
        """Build a dot product with the scale."""
        return ScaledDot(self.scale)


@checked
@final
class CosineScore(ScoreModule):
    """g · q·k/(‖q‖‖k‖) with g learned; its logarithm is the parameter, so that g stays above 0.

    Args:
        scale: initial g. With 1 the weights of a softmax would differ by a factor of at most e².
        heads: H, for one scale per head; None for one.

    Source: Graves et al. 2014, "Neural Turing Machines", eq. 5 and 6 (key strength); Liu et al. 2022, "Swin Transformer
        V2", section 3.2 (learned per head; its code starts from 10).

    Example:
        >>> CosineScore(scale=2.0)(torch.ones(1, 4), torch.tensor([[3.0] * 4, [-1.0] * 4])).round(decimals=4)
        tensor([[ 2., -2.]], grad_fn=<RoundBackward1>)
    """

    def __init__(self, scale: float = 10.0, *, heads: int | None = None) -> None:
        super().__init__()
        expect_optional_sizes(heads=heads)
        above("scale", scale, 0, "It is the initial value.")
        self._initial = math.log(scale)
        self.log_scale = nn.Parameter(torch.full(_head_sizes(heads), self._initial))

    def reset_parameters(self) -> None:
        """Set the initial scales."""
        nn.init.constant_(self.log_scale, self._initial)

    def value(self) -> Score:
        """Build the cosine with the current scale."""
        return Cosine(self.log_scale.exp())


@checked
@final
class LearnedScore(ScoreModule):
    """wᵀ relu(W_q q + W_k k + b): a network with one hidden layer on each pair [q; k], the same for all heads.

    Args:
        query_width: D.
        key_width: E.
        hidden: A, the width of the hidden layer.

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", for the form; initialization: He et al. 2015,
        "Delving Deep into Rectifiers", eq. 10.

    Example:
        >>> LearnedScore(3, 4, hidden=8)(torch.randn(2, 5, 3), torch.randn(2, 7, 4)).shape
        torch.Size([2, 5, 7])
    """

    def __init__(self, query_width: int, key_width: int, hidden: int) -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width, hidden=hidden)
        self.query = nn.Linear(query_width, hidden)
        self.key = nn.Linear(key_width, hidden, bias=False)
        self.vector = nn.Parameter(torch.empty(hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters; the bias is zero."""
        deviation = (2 / (self.query.in_features + self.key.in_features)) ** 0.5
        for layer in (self.query, self.key):
            nn.init.normal_(layer.weight, std=deviation)
        nn.init.zeros_(self.query.bias)
        xavier_uniform(self.vector.data[None])

    def value(self) -> Score:
        """Build the score of raw queries and keys."""
        return Learned(self._pairs)

    def _pairs(self, query: Tensor, key: Tensor) -> Tensor:
        expect_input("query", query, self.query)
        expect_input("key", key, self.key)
        hidden = torch.relu(self.query(query)[..., :, None, :] + self.key(key)[..., None, :, :])
        return hidden @ self.vector


@checked
def build_score(
    name: str,
    query_width: int,
    key_width: int,
    *,
    hidden: int | None = None,
    heads: int | None = None,
    key_heads: int | None = None,
) -> ScoreModule:
    """Create a score by name.

    Args:
        name: "additive", "bilinear", "dot" or "scaled_dot".
        query_width: D.
        key_width: E; dot products need E = D.
        hidden: A, for the additive score; None for D.
        heads: H, for one set of parameters per head; None for one set.
        key_heads: G, if groups of heads share a key head.

    Returns:
        The module.

    Raises:
        ConfigError: the name is unknown, or the score does not support these widths.

    Example:
        >>> build_score("additive", 3, 4, hidden=8).vector.shape
        torch.Size([8])
    """
    match name:
        case "additive":
            hidden = query_width if hidden is None else hidden
            return AdditiveScore(query_width, key_width, hidden, heads=heads, key_heads=key_heads)
        case "bilinear":
            return BilinearScore(query_width, key_width, heads=heads)
        case "dot" | "scaled_dot" if query_width != key_width:
            hint = 'For different widths use "bilinear" or "additive".'
            expected = f"equal widths of query and key for {name!r}"
            raise ConfigError("score", expected, f"{query_width} and {key_width}", hint)
        case "dot":
            return DotScore()
        case "scaled_dot":
            return ScaledDotScore()
        case _:
            raise ConfigError("score", "the name of a score", f'"{name}"', nearest(name, BUILT))


@torch.no_grad()
def xavier_uniform(weight: Tensor) -> None:
    """Initialize matrices (..., out, in) from U(±√(6/(in + out))), each head's as its own matrix.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.

    Example:
        >>> weight = torch.empty(8, 3, 3)
        >>> xavier_uniform(weight)
        >>> bool(weight.abs().max() <= 1)
        True
    """
    bound = math.sqrt(6.0 / max(1, weight.shape[-1] + weight.shape[-2]))
    weight.uniform_(-bound, bound)


def initialize_linear(*layers: nn.Linear | None) -> None:
    """Initialize the weights of layers by `xavier_uniform`, and their biases as 0; None is skipped."""
    for layer in layers:
        if layer is not None:
            xavier_uniform(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _head_sizes(heads: int | None) -> tuple[int, ...]:
    return () if heads is None else (heads,)
