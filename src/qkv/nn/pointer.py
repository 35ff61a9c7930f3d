"""Attention as the output: a probability for each position of the source."""

from typing import final, get_args

from torch import Tensor, nn

from qkv.errors import ConfigError, expect_name
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.choices import PointerScore
from qkv.nn.distance_scores import KernelScore
from qkv.nn.inputs import expect_input, expect_sizes
from qkv.nn.scores import FixedScore, ScoreModule, build_score, score_of
from qkv.normalizers.dense import Softmax
from qkv.scores.products import Cosine
from qkv.values.checked import checked
from qkv.values.hooks import through_hooks

_SHARPNESS = 10.0
"""The cosine's factor: without one a softmax over cosines is nearly uniform."""


@checked
@final
class Pointer(nn.Module):
    """p(position j | step i) = softmax_j(score(d_i, e_j)): the weights are the prediction.

    Args:
        query_width: D, width of the decoder's states d.
        key_width: E, width of the encoder's states e.
        hidden: A, the width of the additive score.
        score: "additive" as in the paper, or "bilinear"; if D = E also "dot", "scaled_dot", "cosine" (times 10), or
            "squared_distance" with a learned bandwidth, whose softmax is a normalized Gaussian kernel.

    Raises:
        ConfigError: the score is unknown, or does not support these widths.

    Source: Vinyals et al. 2015, "Pointer Networks", eq. 3.

    Example:
        >>> import torch
        >>> pointer = Pointer(query_width=4, key_width=6, hidden=8)
        >>> context, probabilities = pointer(torch.randn(2, 3, 4), torch.randn(2, 5, 6))
        >>> probabilities.shape, context.shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3, 6]))
    """

    def __init__(self, query_width: int, key_width: int, hidden: int, score: str = "additive") -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width, hidden=hidden)
        self.widths = query_width, key_width
        self.score = _score(score, query_width, key_width, hidden)
        self.attention = Attention(normalizer=Softmax(), also="weights")

    def project(self, key: Tensor) -> Tensor:
        """Project the keys for the score, once per source: (B, S, E) to (B, S, F)."""
        expect_input("key", key, None, self.widths[1])
        return score_of(self.score).project_key(key)

    def forward(self, query: Tensor, key: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the pointing probabilities.

        Args:
            query: d, (B, T, D).
            key: e, (B, S, E).
            mask: True where a step may point; broadcasts to (B, T, S).

        Returns:
            The expected state pointed at (B, T, E), and the probabilities (B, T, S).

        Raises:
            ShapeError, DtypeError: the query or the key does not fit the layer.
        """
        return self._point(query, self.project(key), key, mask)

    def point(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the pointing probabilities with keys from `project`, within the hooks of this layer.

        Args:
            query: d, (B, T, D).
            key: from `project`, (B, S, F).
            value: e, (B, S, E).
            mask: True where a step may point.

        Returns:
            As for `forward`.
        """
        return through_hooks(self, self._point, query, key, value, mask)

    def _point(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        expect_input("query", query, None, self.widths[0])
        projected, score = score_of(self.score).project_query(query), score_of(self.score).projected()
        context, probabilities = self.attention(projected, key, value, score=score, mask=mask)
        return context, probabilities


def _score(name: str, query_width: int, key_width: int, hidden: int) -> ScoreModule:
    expect_name("score", name, get_args(PointerScore), "a score whose softmax can point")
    if name not in ("cosine", "squared_distance"):
        return build_score(name, query_width, key_width, hidden=hidden)
    if query_width != key_width:
        hint = 'For different widths use "bilinear" or "additive".'
        expected = f"equal widths of query and key for {name!r}"
        raise ConfigError("score", expected, f"{query_width} and {key_width}", hint)
    return FixedScore(Cosine(_SHARPNESS)) if name == "cosine" else KernelScore(name, bandwidth=key_width**0.25)
