"""Pooling the states of a sequence to one vector: attention with a learned query, or the mean."""

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import expect_name
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.inputs import expect_input, expect_sizes
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.normalizers import module_or_value
from qkv.nn.scores import score_of, xavier_uniform
from qkv.normalizers.kinds import optional_normalizer
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.sums import Additive
from qkv.values.checked import checked

Pooling = Literal["attention", "mean"]


@checked
@final
class Pool(nn.Module):
    """Σ_t α_t h_t with α = softmax_t(vᵀ tanh(W h_t + b)), or with α_t = 1/T.

    b is a learned query, the same for every sequence.

    Args:
        width: M, width of the states.
        kind: "attention" or "mean".
        mechanism: another score or normalizer than the additive one under softmax: the learned query b is compared with
            the keys W h_t.

    Raises:
        ConfigError: the kind is unknown.

    Source: Yang et al. 2016, "Hierarchical Attention Networks for Document Classification", eq. 5 to 7.

    Example:
        >>> Pool(8)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, width: int, kind: Pooling = "attention", mechanism: MechanismConfig | None = None) -> None:
        super().__init__()
        expect_sizes(width=width)
        self.width = width
        self.kind = expect_name("kind", kind, get_args(Pooling))
        learns = kind == "attention"
        mechanism = MechanismConfig(score="additive") if mechanism is None else mechanism
        additive = mechanism.score == "additive"
        self.score = mechanism.score_module(width, width) if learns and not additive else None
        self.normalizer, fixed = module_or_value(mechanism.normalizer_part() if learns else None)
        self.key = nn.Linear(width, width, bias=False) if learns else None
        self.query = nn.Parameter(torch.empty(width)) if learns else None
        self.vector = nn.Parameter(torch.empty(width)) if learns and additive else None
        self.attention = Attention(normalizer=fixed)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize W and v; b is zero, or of about unit length where it is compared with keys."""
        if self.key is None or self.query is None:
            return
        xavier_uniform(self.key.weight)
        if self.vector is None:
            nn.init.normal_(self.query, std=self.query.numel() ** -0.5)
            return
        nn.init.zeros_(self.query)
        xavier_uniform(self.vector.data[None])

    def forward(self, states: Tensor, mask: Mask | None = None) -> Tensor:
        """Pool states to one vector per row.

        Args:
            states: h, (B, T, M).
            mask: masks padding.

        Returns:
            (B, M); 0 if a row has no states.

        Raises:
            ShapeError, DtypeError: the states do not fit the layer.
        """
        expect_input("states", states, self.key, self.width, rank=3)
        if self.key is None or self.query is None:
            query, key, score = torch.zeros_like(states[:, :1]), states, Uniform()
            pooled: Tensor = self.attention(query, key, states, score=score, mask=mask)
        else:
            query = self.query.to(states.dtype).expand(states.shape[0], 1, -1)
            normalizer = optional_normalizer(self.normalizer)
            pooled = self.attention(
                query, self.key(states), states, score=self._score(), normalizer=normalizer, mask=mask
            )
        return pooled[:, 0]

    def _score(self) -> Score:
        if self.score is not None:
            return score_of(self.score).value()
        assert self.vector is not None
        return Additive(self.vector)
