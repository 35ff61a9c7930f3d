"""Attention as the output: a probability for each position of the source."""

from typing import final

from torch import Tensor, nn

from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.scores import build_score


@final
class Pointer(nn.Module):
    """p(position j | step i) = softmax_j(score(d_i, e_j)): the weights are the prediction.

    Args:
        query_width: D, width of the decoder's states d.
        key_width: E, width of the encoder's states e.
        hidden: A, the width of the additive score.
        score: "additive" as in the paper, "bilinear", or "scaled_dot" if D = E.

    Raises:
        ConfigError: the score is unknown, or does not support these widths.

    Source: Vinyals et al. 2015, "Pointer Networks", eq. 3.

    Example:
        >>> import torch
        >>> pointer = Pointer(query_width=4, key_width=6, hidden=8)
        >>> context, chances = pointer(torch.randn(2, 3, 4), torch.randn(2, 5, 6))
        >>> chances.shape, context.shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3, 6]))
    """

    def __init__(self, query_width: int, key_width: int, hidden: int, score: str = "additive") -> None:
        super().__init__()
        self.score = build_score(score, query_width, key_width, hidden=hidden)
        self.attention = Attention(also="weights")

    def project(self, key: Tensor) -> Tensor:
        """Project the keys for the score, once per source: (B, S, E) to (B, S, F)."""
        return self.score.project_key(key)

    def forward(self, query: Tensor, key: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute the pointing probabilities.

        Args:
            query: d, (B, T, D).
            key: e, (B, S, E).
            mask: True where a step may point; broadcasts to (B, T, S).

        Returns:
            The expected state pointed at (B, T, E), and the probabilities (B, T, S).
        """
        return self.point(query, self.project(key), key, mask)

    def point(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the pointing probabilities with keys from `project`.

        Args:
            query: d, (B, T, D).
            key: from `project`, (B, S, F).
            value: e, (B, S, E).
            mask: True where a step may point.

        Returns:
            As for `forward`.
        """
        projected, score = self.score.project_query(query), self.score.projected()
        context, chances = self.attention(projected, key, value, score=score, mask=mask)
        return context, chances
