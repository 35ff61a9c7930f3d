"""Location-sensitive attention: the score reads where the step before attended."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ShapeError
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.inputs import expect_counts, expect_input, expect_optional_sizes, expect_sizes
from qkv.nn.scores import xavier_uniform
from qkv.normalizers.base import Normalizer
from qkv.scores.products import Dot, project
from qkv.scores.sums import Additive
from qkv.shapes import show
from qkv.values.checked import checked
from qkv.values.parameters import expect_floats

_POSITIONS = Dot()


@checked
@final
class LocationScore(nn.Module):
    """e_j = vᵀ tanh(W s + V h_j + U f_j + b) with f = F ∗ α, α the weights of the step before.

    The convolution is that of `torch.nn.functional.conv1d` with zeros beyond both ends: f_jc = Σ_d F_cd α_{j+d} for d
    from −r to r. The first step's α is 1 at the first position, as in the authors' code.

    Args:
        query_width: width of the decoder's states s.
        key_width: width of the encoder's states h.
        hidden: A, the width of the hidden layer.
        filters: number of filters; 10 as in the paper.
        reach: r, positions that a filter sees on each side.
        heads: H, for heads with parameters and an alignment each, (B, H, ...) in all shapes below; None for no heads.

    Raises:
        ConfigError: a size is below 1, or the reach is negative.

    Source: Chorowski et al. 2015, "Attention-Based Models for Speech Recognition", eq. 8 and 9; the first alignment:
        `initial_glimpses` in rizar/attention-lvcsr; several heads: `AttMultiHeadLoc` in espnet.

    Example:
        >>> score = LocationScore(query_width=3, key_width=4, hidden=5)
        >>> keys = score.project_key(torch.randn(2, 6, 4))
        >>> score(score.project_query(torch.randn(2, 3)), keys, score.first_alignment(keys)).shape
        torch.Size([2, 6])
    """

    def __init__(
        self,
        query_width: int,
        key_width: int,
        hidden: int,
        filters: int = 10,
        reach: int = 5,
        heads: int | None = None,
    ) -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width, hidden=hidden, filters=filters)
        expect_optional_sizes(heads=heads)
        expect_counts(reach=reach)
        self.heads = heads
        leading = () if heads is None else (heads,)
        self.vector = nn.Parameter(torch.empty(*leading, hidden))
        self.query_weight = nn.Parameter(torch.empty(*leading, hidden, query_width))
        self.key_weight = nn.Parameter(torch.empty(*leading, hidden, key_width))
        self.bias = nn.Parameter(torch.empty(*leading, hidden))
        self.filters = nn.Parameter(torch.empty(filters * (heads or 1), 1, 2 * reach + 1))
        self.location_weight = nn.Parameter(torch.empty(*leading, hidden, filters))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all matrices by Glorot's rule, the bias with zeros."""
        for weight in (self.query_weight, self.key_weight, self.filters, self.location_weight):
            xavier_uniform(weight)
        xavier_uniform(self.vector.data[..., None, :])
        nn.init.zeros_(self.bias)

    def project_query(self, query: Tensor) -> Tensor:
        """Compute W s: (B, T, M) to (B, T, A)."""
        expect_input("query", query, None, self.query_weight.shape[-1], rank=2 if self.heads is None else 3)
        return project(query if self.heads is None else query[:, None], self.query_weight)

    def project_key(self, key: Tensor, session: DecodingSession | None = None) -> Tensor:
        """Compute V h + b, once per source: (B, S, E) to (B, S, A)."""
        expect_input("key", key, None, self.key_weight.shape[-1], rank=2 if self.heads is None else 3)
        return project(key if self.heads is None else key[:, None], self.key_weight) + self.bias[..., None, :]

    def features(self, alignment: Tensor) -> Tensor:
        """Compute f: (B, S) to (B, S, filters)."""
        self._expect("alignment", alignment, positions=True)
        reach, groups = self.filters.shape[-1] // 2, self.heads or 1
        by_head = (alignment[:, None] if self.heads is None else alignment).to(self.filters.dtype)
        features = F.conv1d(by_head, self.filters, padding=reach, groups=groups)
        return features.mT if self.heads is None else features.view(len(features), groups, -1, features.shape[-1]).mT

    def forward(self, query: Tensor, keys: Tensor, alignment: Tensor) -> Tensor:
        """Compute the scores of one step.

        Args:
            query: from `project_query`, (B, A).
            keys: from `project_key`, (B, S, A).
            alignment: α, the weights of the step before (B, S).

        Returns:
            e (B, S).
        """
        self._expect("query", query, hidden=True)
        self._expect("keys", keys, positions=True, hidden=True)
        by_features = self.features(alignment)
        if keys.shape[:-1] != alignment.shape or query.shape[:-1] != alignment.shape[:-1]:
            shapes = ", ".join(show(tuple(x.shape)) for x in (query, keys, alignment))
            hint = "Query, keys and alignment need the same rows, keys and alignment the same positions."
            raise ShapeError("keys", "(B, A) queries, (B, S, A) keys and a (B, S) alignment", shapes, hint)
        shifted = keys + project(by_features, self.location_weight)
        return Additive(self.vector)(query[..., None, :], shifted)[..., 0, :]

    def _expect(self, name: str, x: Tensor, *, positions: bool = False, hidden: bool = False) -> None:
        """Check the shape (B, [H,] [S,] [A]): H for a layer with heads, S for `positions`, A for `hidden`."""
        expect_floats(name, x, 1)
        rank = (1 if self.heads is None else 2) + positions + hidden
        width = self.vector.shape[-1] if hidden else x.shape[-1]
        heads = (x.shape[0],) if self.heads is None else (x.shape[0], self.heads)
        if x.ndim != rank or x.shape[: len(heads)] != heads or x.shape[-1] != width:
            shape = [
                "B",
                *([] if self.heads is None else [f"{self.heads}"]),
                *(["S"] if positions else []),
                *([f"{width}"] if hidden else []),
            ]
            raise ShapeError(
                name, f"shape ({', '.join(shape)})", show(tuple(x.shape)), "The layer was created for that."
            )

    def first_alignment(self, keys: Tensor) -> Tensor:
        """Return α before the first step, (B, S), for keys (B, S, A)."""
        alignment = keys.new_zeros(keys.shape[:-1])
        alignment[..., 0] = 1.0
        return alignment


@checked
@final
class LocationSteps:
    """The steps of one loop, each of which reads the alignment of the one before.

    The attention normalizes the scores and averages the values: its query is a row of scores e, its keys are one-hot
    positions, so that query times key is e_j. A recording thus shows the weights that were used.

    Args:
        attention: with `also="weights"`.
        score: the score.
        mask: where queries may attend, the same in all steps.
        keys: from `score.project_key`, (B, S, A).
        values: (B, S, V).
        alignment: α before the first step, (B, S).
        normalizer: of the scores; None for that of the attention.

    Attributes:
        alignment: that of the last step.
    """

    def __init__(
        self,
        attention: Attention,
        score: LocationScore,
        mask: Mask | None,
        keys: Tensor,
        values: Tensor,
        alignment: Tensor,
        normalizer: Normalizer | None = None,
    ) -> None:
        self.alignment = alignment
        self._normalizer = normalizer
        self._attention, self._score, self._mask, self._keys, self._values = attention, score, mask, keys, values

    def __call__(self, query: Tensor) -> Tensor:
        """Take the next steps.

        Args:
            query: s (B, T, M).

        Returns:
            The contexts (B, T, V), or (B, H, T, V) by head.
        """
        contexts = [self._step(step_query) for step_query in self._score.project_query(query).unbind(-2)]
        return torch.cat(contexts, -2)

    def _step(self, query: Tensor) -> Tensor:
        scores = self._score(query, self._keys, self.alignment)
        *rows, size = scores.shape
        positions = torch.eye(size, dtype=scores.dtype, device=scores.device).expand(*rows, -1, -1)
        values = self._values.to(scores.dtype)
        settings = {"score": _POSITIONS, "normalizer": self._normalizer, "mask": self._mask}
        context, weights = self._attention(scores[..., None, :], positions, values, **settings)
        self.alignment = weights[..., 0, :]
        result: Tensor = context
        return result
