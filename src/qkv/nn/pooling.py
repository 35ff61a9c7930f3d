"""Pooling the states of a sequence to one vector: attention with a learned query, or the mean."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, error_message, nearest
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.scores import xavier_uniform
from qkv.scores.free import Uniform
from qkv.scores.sums import Additive

Pooling = Literal["attention", "mean"]
POOLINGS = ("attention", "mean")


@final
class Pool(nn.Module):
    """Σ_t α_t h_t with α = softmax_t(vᵀ tanh(W h_t + b)), or with α_t = 1/T.

    b is a learned query, the same for every sequence.

    Args:
        width: M, width of the states.
        kind: "attention" or "mean".

    Raises:
        ConfigError: the kind is unknown.

    Source: Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", eq. 5 to 7.

    Example:
        >>> Pool(8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, width: int, kind: Pooling = "attention") -> None:
        super().__init__()
        if kind not in POOLINGS:
            raise ConfigError(error_message("kind", "attention or mean", f'"{kind}"', nearest(str(kind), POOLINGS)))
        self.kind = kind
        learns = kind == "attention"
        self.key = nn.Linear(width, width, bias=False) if learns else None
        self.query = nn.Parameter(torch.empty(width)) if learns else None
        self.vector = nn.Parameter(torch.empty(width)) if learns else None
        self.attention = Attention()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize W and v; b is zero."""
        if self.key is None or self.query is None or self.vector is None:
            return
        xavier_uniform(self.key.weight)
        nn.init.zeros_(self.query)
        xavier_uniform(self.vector.data[None])

    def forward(self, states: Tensor, mask: Mask | None = None) -> Tensor:
        """Pool states to one vector per row.

        Args:
            states: h, (B, T, M).
            mask: masks padding.

        Returns:
            (B, M); 0 if a row has no states.
        """
        if self.key is None or self.query is None or self.vector is None:
            query, key, score = torch.zeros_like(states[:, :1]), states, Uniform()
            pooled: Tensor = self.attention(query, key, states, score=score, mask=mask)
        else:
            query = self.query.to(states.dtype).expand(states.shape[0], 1, -1)
            pooled = self.attention(query, self.key(states), states, score=Additive(self.vector), mask=mask)
        return pooled[:, 0]
