"""Encoder and decoder blocks of the Transformer, with the norm before or after each sublayer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ConfigError, error_message, nearest
from qkv.linalg.matmul import Linear, apply_layer
from qkv.linalg.session import Session
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, window
from qkv.nn.biases import BiasModule
from qkv.nn.decoding.cache import Memory
from qkv.nn.dropout import Dropout
from qkv.nn.mechanism import Mechanism
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import Rotary
from qkv.nn.scores import xavier_uniform

Activation = Literal["relu", "gelu", "squared_relu"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # In place: nothing else reads the previous layer's output.
    "relu": F.relu_,
    "gelu": F.gelu,
    "squared_relu": lambda x: F.relu_(x).square(),
}


@final
class FeedForward(nn.Module):
    """W₂ f(W₁ x + b₁) + b₂, applied to each position.

    Args:
        width: M.
        hidden: width of the hidden layer.
        dropout: on the hidden layer, in training.
        activation: f, "relu", "gelu" or "squared_relu".
        bias: whether both layers have a bias.

    Raises:
        ConfigError: the activation is unknown.

    Source: Vaswani et al. 2017, eq. 2 (relu); Hendrycks and Gimpel 2016 (gelu); So et al. 2021, "Primer", section 3.1
        (squared relu).
    """

    def __init__(
        self, width: int, hidden: int, dropout: float = 0.0, *, activation: Activation = "relu", bias: bool = True
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            hint = nearest(activation, _ACTIVATIONS)
            raise ConfigError(error_message("activation", "relu, gelu or squared_relu", repr(activation), hint))
        self.expand = Linear(width, hidden, bias=bias)
        self.contract = Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)
        self.activation = activation
        for layer in (self.expand, self.contract):
            xavier_uniform(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, session: Session | None = None) -> Tensor:
        """(..., M) to (..., M)."""
        hidden: Tensor = self.dropout(_ACTIVATIONS[self.activation](apply_layer(self.expand, x, session)))
        return apply_layer(self.contract, hidden, session)


@final
class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)).

    Args:
        width: M.
        dropout: on the output of f, in training.
        norm_first: whether the norm comes before f ("pre-norm").

    Source: Vaswani et al. 2017, section 3.1 (after); Xiong et al. 2020, "On Layer Normalization in the Transformer
        Architecture" (before).
    """

    def __init__(self, width: int, dropout: float = 0.0, *, norm_first: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def before(self, x: Tensor) -> Tensor:
        """Return the input of f."""
        normed: Tensor = self.norm(x) if self.norm_first else x
        return normed

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        """Add the output of f to the stream."""
        joined: Tensor = x + self.dropout(update)
        return joined if self.norm_first else self.norm(joined)

    def forward(self, x: Tensor, part: nn.Module, session: Session | None = None) -> Tensor:
        """Both, around a part that takes one argument; a `FeedForward` also takes a session."""
        given = self.before(x)
        return self.after(x, part(given, session) if isinstance(part, FeedForward) else part(given))


@final
class EncoderBlock(nn.Module):
    """Self-attention, then a feed-forward layer.

    Args:
        width: M.
        heads: number of heads.
        hidden: width of the feed-forward layer.
        dropout: on the output of each sublayer, in training.
        attention_dropout: on the attention weights, in training.
        score: the attention's score, by name, or its whole mechanism.
        norm_first: whether norms come before the sublayers.
        positions: positions of the self-attention; None if the inputs contain them.

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
        attention_dropout: float = 0.0,
        score: str | Mechanism = "scaled_dot",
        norm_first: bool = True,
        positions: Rotary | BiasModule | None = None,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(
            width, heads, score=score, dropout=attention_dropout, positions=positions
        )
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_self = Residual(width, dropout, norm_first=norm_first)
        self.around_feed = Residual(width, dropout, norm_first=norm_first)

    def forward(self, x: Tensor, mask: Mask | None = None, session: Session | None = None) -> Tensor:
        """(B, S, M) to (B, S, M); `mask` hides padding, a session keeps packed weights for a decoding."""
        update = self.self_attention(self.around_self.before(x), mask=mask, session=session)
        out: Tensor = self.around_feed(self.around_self.after(x, update), self.feed_forward, session)
        return out


@dataclass(frozen=True, eq=False)
class DecoderCache:
    """The cache of a decoder block.

    Args:
        past: keys and values of the target so far; None initially.
        memory: keys and values of the source.
    """

    past: Memory | None
    memory: Memory

    def select(self, rows: Tensor) -> "DecoderCache":
        """Select rows of the batch."""
        return DecoderCache(None if self.past is None else self.past.select(rows), self.memory.select(rows))


@final
class DecoderBlock(nn.Module):
    """Masked self-attention, attention over the encoder, then a feed-forward layer.

    Args:
        width: M.
        heads: number of heads of both attentions.
        hidden: width of the feed-forward layer.
        dropout: on the output of each sublayer, in training.
        attention_dropout: on the attention weights, in training.
        score: the score of both attentions, by name, or their whole mechanism.
        norm_first: whether norms come before the sublayers.
        cross: the mechanism of the attention over the encoder, if it is another one.
        reach: how many earlier positions a position sees; None for all.

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
        attention_dropout: float = 0.0,
        score: str | Mechanism = "scaled_dot",
        norm_first: bool = True,
        cross: Mechanism | None = None,
        reach: int | None = None,
    ) -> None:
        super().__init__()
        self.reach = reach
        self.self_attention = MultiHeadAttention(width, heads, score=score, dropout=attention_dropout)
        self.cross_attention = MultiHeadAttention(width, heads, score=cross or score, dropout=attention_dropout)
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_self = Residual(width, dropout, norm_first=norm_first)
        self.around_cross = Residual(width, dropout, norm_first=norm_first)
        self.around_feed = Residual(width, dropout, norm_first=norm_first)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Mask | None = None) -> Tensor:
        """Compute all positions at once: (B, T, M) and (B, S, M) to (B, T, M); `memory_mask` masks source padding."""
        return self.step(x, self.begin(memory), memory_mask)[0]

    def begin(self, memory: Tensor, session: Session | None = None) -> DecoderCache:
        """Project the source once, for all steps."""
        return DecoderCache(None, self.cross_attention.project_memory(memory, session=session))

    def step(
        self,
        x: Tensor,
        cache: DecoderCache,
        memory_mask: Mask | None = None,
        seen: Tensor | None = None,
        session: Session | None = None,
    ) -> tuple[Tensor, DecoderCache]:
        """Compute the newest positions, each of which sees itself and earlier ones.

        Args:
            x: (B, N, M).
            cache: what was kept of the positions before.
            memory_mask: hides source padding.
            seen: which positions each sees, bool (B, N, K) with K those kept and N more, where they are no sequence.
            session: keeps packed weights, and memory for keys and values.

        Returns:
            (B, N, M), and the updated cache.
        """
        query, past = self.self_attention.extend(self.around_self.before(x), cache.past, session)
        visible = _past(seen, past, x.shape[1], self.reach)
        x = self.around_self.after(x, self.self_attention.attend(query, past, mask=visible, session=session))
        query = self.cross_attention.project_query(self.around_cross.before(x), session)
        update = self.cross_attention.attend(query, cache.memory, mask=memory_mask, session=session)
        x = self.around_cross.after(x, update)
        return self.around_feed(x, self.feed_forward, session), DecoderCache(past, cache.memory)


def _past(seen: Tensor | None, past: Memory, count: int, reach: int | None) -> Mask | Tensor | None:
    """Return the mask of the newest positions over all positions."""
    if seen is not None:
        # The keys that a position sees stand in the order of time: the last of them are the nearest.
        near = seen if reach is None else seen & (seen.flip(-1).cumsum(-1).flip(-1) <= reach + 1)
        return near[:, None]
    if reach is not None and past.length > reach + 1:
        return window(reach, 0, offset=past.length - count)
    # A single newest position sees everything.
    return causal(offset=past.length - count) if count > 1 else None
