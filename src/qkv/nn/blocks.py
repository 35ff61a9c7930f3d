"""Encoder and decoder blocks of the Transformer, with the norm before or after each part."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from qkv.masks.base import Mask
from qkv.masks.patterns import causal
from qkv.nn.cache import Memory
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.scores import xavier_uniform


@final
class FeedForward(nn.Module):
    """W₂ relu(W₁ x + b₁) + b₂, at each position alike.

    Args:
        width: M.
        hidden: of the layer between.
        dropout: on that layer, in training.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.expand, self.contract):
            xavier_uniform(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., M) to (..., M)."""
        return self.contract(self.dropout(self.expand(x).relu()))


@final
class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)).

    Args:
        width: M.
        dropout: on what f gives, in training.
        norm_first: whether the norm stands before f ("pre-norm").

    Source: Vaswani et al. 2017, section 3.1 (after); Xiong et al. 2020, "On Layer Normalization in the Transformer
        Architecture" (before).
    """

    def __init__(self, width: int, dropout: float = 0.0, *, norm_first: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a part of a block around which the stream runs on."""
        if self.norm_first:
            return x + self.dropout(part(self.norm(x)))
        return self.norm(x + self.dropout(part(x)))


@final
class EncoderBlock(nn.Module):
    """Self-attention, then a feed-forward layer.

    Args:
        width: M.
        heads: of the attention.
        hidden: of the feed-forward layer.
        dropout: everywhere, in training.
        score: of the attention.
        norm_first: where the norms stand.

    Source: Vaswani et al. 2017, section 3.1.

    Example:
        >>> import torch
        >>> EncoderBlock(16, 2, 32)(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        dropout: float = 0.0,
        score: str = "scaled_dot",
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(width, heads, score=score, dropout=dropout)
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_self = Residual(width, dropout, norm_first=norm_first)
        self.around_feed = Residual(width, dropout, norm_first=norm_first)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """(B, S, M) to (B, S, M); `mask` hides padding."""
        x = self.around_self(x, lambda y: self.self_attention(y, mask=mask))
        return self.around_feed(x, self.feed_forward)


@dataclass(frozen=True, eq=False)
class DecoderCache:
    """What a decoder block keeps between steps.

    Args:
        past: keys and values of the target so far; None at the start.
        memory: keys and values of the source.
    """

    past: Memory | None
    memory: Memory

    def select(self, rows: Tensor) -> "DecoderCache":
        """Take rows of the batch."""
        return DecoderCache(None if self.past is None else self.past.select(rows), self.memory.select(rows))


@final
class DecoderBlock(nn.Module):
    """Masked self-attention, attention over the encoder, then a feed-forward layer.

    Args:
        width: M.
        heads: of both attentions.
        hidden: of the feed-forward layer.
        dropout: everywhere, in training.
        score: of both attentions.
        norm_first: where the norms stand.

    Source: Vaswani et al. 2017, section 3.1.

    Example:
        >>> import torch
        >>> block = DecoderBlock(16, 2, 32)
        >>> block(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        dropout: float = 0.0,
        score: str = "scaled_dot",
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(width, heads, score=score, dropout=dropout)
        self.cross_attention = MultiHeadAttention(width, heads, score=score, dropout=dropout)
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_self = Residual(width, dropout, norm_first=norm_first)
        self.around_cross = Residual(width, dropout, norm_first=norm_first)
        self.around_feed = Residual(width, dropout, norm_first=norm_first)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Mask | None = None) -> Tensor:
        """All positions at once: (B, T, M) and (B, S, M) to (B, T, M); `memory_mask` hides source padding."""
        x = self.around_self(x, lambda y: self.self_attention(y, mask=causal()))
        x = self.around_cross(x, lambda y: self.cross_attention(y, memory, mask=memory_mask))
        return self.around_feed(x, self.feed_forward)

    def begin(self, memory: Tensor) -> DecoderCache:
        """Project the source once, for all steps."""
        return DecoderCache(None, self.cross_attention.project_memory(memory))

    def step(self, x: Tensor, cache: DecoderCache, memory_mask: Mask | None = None) -> tuple[Tensor, DecoderCache]:
        """The newest position: (B, 1, M) to (B, 1, M), and the cache that includes it."""
        kept: list[Memory] = []

        def look_back(y: Tensor) -> Tensor:
            query, grown = self.self_attention.extend(y, cache.past)
            kept.append(grown)
            return self.self_attention.attend(query, grown)

        def look_across(y: Tensor) -> Tensor:
            query = self.cross_attention.project_query(y)
            return self.cross_attention.attend(query, cache.memory, mask=memory_mask)

        x = self.around_self(x, look_back)
        x = self.around_cross(x, look_across)
        return self.around_feed(x, self.feed_forward), DecoderCache(kept[0], cache.memory)
