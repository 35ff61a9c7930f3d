"""Multi-head attention: several attentions beside each other, each in a subspace of its own."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ConfigError, ShapeError, complaint
from qkv.masks.base import Mask
from qkv.nn.attention import Attention
from qkv.nn.cache import Memory
from qkv.nn.scores import build_score, xavier_uniform
from qkv.normalizers.base import Normalizer


@final
class MultiHeadAttention(nn.Module):
    """Concat(head_1, …, head_H) W_O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), for any score and normalizer.

    Args:
        width: M, of the queries' input and of the output.
        heads: H.
        key_width: of the keys' input; None for `width`.
        value_width: of the values' input; None for `key_width`.
        key_heads: G, the heads of keys and values, a divisor of H (grouped-query attention); None for H.
        score: "scaled_dot", "dot", "bilinear" or "additive"; learned scores have parameters for each head.
        normalizer: from scores to weights; None for the score's own.
        dropout: the share of weights dropped in training.
        bias: whether projections add a bias.
        project_output: whether heads are mixed by W_O, or only concatenated.

    Raises:
        ConfigError: heads that do not divide the width, or each other.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, "GQA", section 2.2.

    Example:
        >>> attend = MultiHeadAttention(width=32, heads=4)
        >>> x, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
        >>> attend(x).shape, attend(x, memory).shape
        (torch.Size([2, 5, 32]), torch.Size([2, 5, 32]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        key_heads: int | None = None,
        score: str = "scaled_dot",
        normalizer: Normalizer | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        project_output: bool = True,
    ) -> None:
        super().__init__()
        groups = heads if key_heads is None else key_heads
        if heads < 1 or width % heads:
            raise ConfigError(complaint("heads", f"a divisor of the width {width}", str(heads), "Try 4 or 8."))
        if groups < 1 or heads % groups:
            raise ConfigError(complaint("key_heads", f"a divisor of {heads} heads", str(groups), "1 shares one."))
        self.width, self.heads, self.key_heads = width, heads, groups
        head = width // heads
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        # One matrix for query, key and value where all read the same input: one product instead of three.
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(key_width, groups * head, bias=bias)
        self.value = nn.Linear(value_width, groups * head, bias=bias)
        self.score = build_score(score, head, head, heads=heads, key_heads=groups)
        self.attention = Attention(normalizer=normalizer, dropout=dropout)
        self.output = nn.Linear(width, width, bias=bias) if project_output else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, each projection by Glorot's rule, biases zero."""
        for layer in (self.query, self.key, self.value, self.output):
            if layer is not None:
                xavier_uniform(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: (B, Q, M).
            key: (B, K, key width); None for self-attention.
            value: (B, K, value width); None for `key`.
            mask: True where a query may attend; broadcasts to (B, H, Q, K).
            bias: added to the scores; broadcasts to (B, H, Q, K).

        Returns:
            (B, Q, M).
        """
        if key is None:
            q, memory = self._self_projected(query)
        else:
            q, memory = self.project_query(query), self.project_memory(key, value)
        return self.attend(q, memory, mask=mask, bias=bias)

    def project_query(self, query: Tensor) -> Tensor:
        """Queries by head, as the score wants them: (B, Q, M) to (B, H, Q, F)."""
        return self.score.project_query(self._by_head(self.query(query), self.heads))

    def project_memory(self, key: Tensor, value: Tensor | None = None) -> Memory:
        """Keys and values by head, once per sentence: (B, K, width) to (B, G, K, F) and (B, G, K, V)."""
        k = self._by_head(self.key(key), self.key_heads)
        v = self._by_head(self.value(key if value is None else value), self.key_heads)
        return Memory(self.score.project_key(k), v)

    def attend(
        self, query: Tensor, memory: Memory, *, mask: Mask | Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Attend with what was projected before.

        Args:
            query: (B, H, Q, F), from `project_query`.
            memory: from `project_memory`, perhaps grown step by step.
            mask: True where a query may attend.
            bias: added to the scores.

        Returns:
            (B, Q, M).
        """
        heads = self.attention(
            query,
            memory.key,
            memory.value,
            score=self.score.projected(),
            mask=mask,
            bias=bias,
            enable_gqa=self.key_heads != self.heads,
        )
        joined = heads.transpose(-3, -2).flatten(-2)
        return joined if self.output is None else self.output(joined)

    def extend(self, x: Tensor, past: Memory | None) -> tuple[Tensor, Memory]:
        """Project new positions, and put their keys and values behind those kept.

        Args:
            x: (B, N, M), the new positions.
            past: what was kept; None at the start.

        Returns:
            The new queries by head, and all keys and values.
        """
        query, memory = self._self_projected(x)
        return query, memory if past is None else past.append(memory)

    def _self_projected(self, x: Tensor) -> tuple[Tensor, Memory]:
        layers = (self.query, self.key, self.value)
        if any(layer.in_features != self.width for layer in layers):
            mend = "Pass the key; widths of query and key inputs differ."
            raise ShapeError(complaint("key", "an input of its own width", "none", mend))
        weight = torch.cat([layer.weight for layer in layers])
        bias = None if self.query.bias is None else torch.cat([layer.bias for layer in layers])
        q, k, v = F.linear(x, weight, bias).split([layer.out_features for layer in layers], -1)
        memory = Memory(self.score.project_key(self._by_head(k, self.key_heads)), self._by_head(v, self.key_heads))
        return self.score.project_query(self._by_head(q, self.heads)), memory

    def _by_head(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-3, -2)

    @classmethod
    def from_torch(cls, other: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same layer as one of PyTorch's, weights copied.

        Args:
            other: without `bias_k`, `bias_v` and `add_zero_attn`.

        Returns:
            A layer whose output equals `other`'s.

        Raises:
            ConfigError: an option that has no counterpart.

        Example:
            >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
            >>> x = torch.randn(1, 3, 8)
            >>> torch.allclose(MultiHeadAttention.from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-6)
            True
        """
        if other.bias_k is not None or other.add_zero_attn:
            mend = "Convert a layer without bias_k, bias_v and add_zero_attn."
            raise ConfigError(complaint("other", "projections and heads alone", "an extra key", mend))
        ours = cls(
            other.embed_dim,
            other.num_heads,
            key_width=other.kdim,
            value_width=other.vdim,
            dropout=other.dropout,
            bias=other.in_proj_bias is not None,
        )
        ours._copy(other, back=False)
        return ours

    def to_torch(self) -> nn.MultiheadAttention:
        """The same layer as PyTorch's, weights copied.

        Returns:
            A layer with `batch_first=True` whose output equals this one's.

        Raises:
            ConfigError: a score, grouping or missing projection that PyTorch's layer does not have.
        """
        plain = self.output is not None and self.key_heads == self.heads and not list(self.score.parameters())
        if not plain or self.attention.normalizer is not None:
            mend = "Only scaled dot products under softmax with all projections have a counterpart."
            raise ConfigError(complaint("self", "what nn.MultiheadAttention can express", "more than that", mend))
        widths = {"kdim": self.key.in_features, "vdim": self.value.in_features}
        bias = self.query.bias is not None
        theirs = nn.MultiheadAttention(
            self.width, self.heads, self.attention.dropout, bias=bias, batch_first=True, **widths
        )
        self._copy(theirs, back=True)
        return theirs

    @torch.no_grad()
    def _copy(self, other: nn.MultiheadAttention, *, back: bool) -> None:
        assert self.output is not None
        joint = other.in_proj_weight
        weights = (
            joint.chunk(3) if joint is not None else (other.q_proj_weight, other.k_proj_weight, other.v_proj_weight)
        )
        pairs = list(zip((self.query.weight, self.key.weight, self.value.weight), weights, strict=True))
        pairs.append((self.output.weight, other.out_proj.weight))
        if other.in_proj_bias is not None:
            biases = (self.query.bias, self.key.bias, self.value.bias)
            pairs += list(zip(biases, other.in_proj_bias.chunk(3), strict=True))
            pairs.append((self.output.bias, other.out_proj.bias))
        for ours, theirs in pairs:
            (theirs if back else ours).copy_(ours if back else theirs)
