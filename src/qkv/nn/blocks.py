"""Encoder and decoder blocks of the Transformer, with the norm before or after each sublayer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ConfigError, nearest
from qkv.linalg.layers import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, window
from qkv.nn.biases import BiasModule
from qkv.nn.decoding.cache import Memory, SomeMemory
from qkv.nn.dropout import Dropout
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import Rotary
from qkv.nn.scores import xavier_uniform
from qkv.values.plain import is_plain

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "squared_relu"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # In place: nothing else reads the previous layer's output.
    "relu": F.relu_,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "squared_relu": lambda x: F.relu_(x).square(),
}


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by name; it may write into its argument.

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> import torch
        >>> activation_of("squared_relu")(torch.tensor([-1.0, 2.0]))
        tensor([0., 4.])
    """
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ConfigError("activation", f"one of {known}", repr(name), nearest(name, _ACTIVATIONS))
    return _ACTIVATIONS[name]


def activated(
    activate: Callable[[Tensor], Tensor], layer: nn.Module, x: Tensor, session: DecodingSession | None = None
) -> Tensor:
    """Return f(layer(x)) for a function from `activation_of`.

    A hook may keep what a layer returned, so only the output of a plain layer is overwritten.

    Example:
        >>> import torch
        >>> activated(activation_of("relu"), nn.Identity(), torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    hidden = apply_layer(layer, x, session)
    return activate(hidden if is_plain(layer, nn.Linear) else hidden.clone())


@final
class FeedForward(nn.Module):
    """W₂ f(W₁ x + b₁) + b₂, applied to each position.

    Args:
        width: M.
        hidden: width of the hidden layer.
        dropout: on the hidden layer, in training.
        activation: f, "relu", "gelu", "gelu_tanh" (its approximation), "silu" or "squared_relu".
        bias: whether both layers have a bias.

    Raises:
        ConfigError: the activation is unknown.

    Source: Vaswani et al. 2017, eq. 2 (relu); Hendrycks and Gimpel 2016 (gelu); So et al. 2021, "Primer", section 3.1
        (squared relu); Elfwing et al. 2018 (silu).
    """

    def __init__(
        self, width: int, hidden: int, dropout: float = 0.0, *, activation: Activation = "relu", bias: bool = True
    ) -> None:
        super().__init__()
        activation_of(activation)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.contract = nn.Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)
        self.activation = activation
        for layer in (self.expand, self.contract):
            xavier_uniform(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, session: DecodingSession | None = None) -> Tensor:
        """(..., M) to (..., M)."""
        hidden: Tensor = self.dropout(activated(_ACTIVATIONS[self.activation], self.expand, x, session))
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

    def forward(self, x: Tensor, part: nn.Module, session: DecodingSession | None = None) -> Tensor:
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
        score: str | MechanismConfig = "scaled_dot",
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

    def forward(self, x: Tensor, mask: Mask | None = None, session: DecodingSession | None = None) -> Tensor:
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
        second: those of a second source, if the block reads one.
    """

    past: Memory | None
    memory: Memory
    second: SomeMemory | None = None

    def select(self, rows: Tensor) -> "DecoderCache":
        """Select rows of the batch."""
        past = None if self.past is None else self.past.select(rows)
        return DecoderCache(past, self.memory.select(rows), None if self.second is None else self.second.select(rows))


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
        positions: positions of the self-attention; None if the inputs contain them.
        second: whether there is a second source, with an attention of its own; what both read is added up.

    Source: Vaswani et al. 2017, section 3.1; two sources: Libovický et al. 2018, "Input Combination Strategies for
        Multi-Source Transformer Decoder", section 3, "parallel".

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
        score: str | MechanismConfig = "scaled_dot",
        norm_first: bool = True,
        cross: MechanismConfig | None = None,
        reach: int | None = None,
        positions: Rotary | BiasModule | None = None,
        second: bool = False,
    ) -> None:
        super().__init__()
        self.reach = reach
        self.self_attention = MultiHeadAttention(
            width, heads, score=score, dropout=attention_dropout, positions=positions
        )
        self.second_attention = (
            MultiHeadAttention(width, heads, score=cross or score, dropout=attention_dropout) if second else None
        )
        self.cross_attention = MultiHeadAttention(width, heads, score=cross or score, dropout=attention_dropout)
        self.feed_forward = FeedForward(width, hidden, dropout)
        self.around_self = Residual(width, dropout, norm_first=norm_first)
        self.around_cross = Residual(width, dropout, norm_first=norm_first)
        self.around_feed = Residual(width, dropout, norm_first=norm_first)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Mask | None = None) -> Tensor:
        """Compute all positions at once: (B, T, M) and (B, S, M) to (B, T, M); `memory_mask` masks source padding."""
        return self.step(x, self.begin(memory), memory_mask)[0]

    def begin(
        self, memory: Tensor, session: DecodingSession | None = None, second: tuple[Tensor, Tensor] | None = None
    ) -> DecoderCache:
        """Project the source once, for all steps.

        Args:
            memory: the source, (B, S, M).
            session: keeps packed weights.
            second: the second source (B, R, M), and which of its positions may be seen, bool (B, R).
        """
        source = self.cross_attention.project_memory(memory, session=session)
        if self.second_attention is None or second is None:
            return DecoderCache(None, source)
        other = self.second_attention.project_memory(second[0], session=session)
        return DecoderCache(None, source, SomeMemory(other, second[1]))

    def step(
        self,
        x: Tensor,
        cache: DecoderCache,
        memory_mask: Mask | None = None,
        seen: Tensor | None = None,
        session: DecodingSession | None = None,
        parted: int = 0,
    ) -> tuple[Tensor, DecoderCache]:
        """Compute the newest positions, each of which sees itself and earlier ones.

        Args:
            x: (B, N, M).
            cache: what was kept of the positions before.
            memory_mask: hides source padding.
            seen: which positions each sees, bool (B, N, K) with K those kept and N more, where they are no sequence.
            session: keeps packed weights, and memory for keys and values.
            parted: with `seen`, the position from which on N keys, one of each alternative, are kept of every position.

        Returns:
            (B, N, M), and the updated cache.
        """
        attention, count = self.self_attention, x.shape[1]
        places = at = None
        if seen is not None and attention.positions is not None:
            places, at = _places(seen, parted)
        query, past = attention.extend(self.around_self.before(x), cache.past, session, at)
        visible = _past(seen, past, count, self.reach)
        x = self.around_self.after(x, attention.attend(query, past, mask=visible, session=session, places=places))
        given = self.around_cross.before(x)
        query = self.cross_attention.project_query(given, session)
        update = self.cross_attention.attend(query, cache.memory, mask=memory_mask, session=session)
        other, second = self.second_attention, cache.second
        if other is not None and second is not None:
            query = other.project_query(given, session)
            update = update + other.attend(query, second.memory, mask=second.mask, session=session)
        x = self.around_cross.after(x, update)
        return self.around_feed(x, self.feed_forward, session), DecoderCache(past, cache.memory, second)


def _places(seen_BNK: Tensor, parted: int) -> tuple[Tensor, int]:
    """Return the position of each key (K,) where N of every position are kept from `parted` on, and the newest one."""
    _, count, keys = seen_BNK.shape
    place = torch.arange(keys, device=seen_BNK.device)
    after = parted + torch.div(place - parted, count, rounding_mode="floor")
    return torch.where(place < parted, place, after), parted + (keys - 1 - parted) // count


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
