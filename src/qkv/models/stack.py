"""The parts of published Transformers as one configuration, from which their decoders, encoders and pairs are built."""

from dataclasses import dataclass, field
from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, lengths, window
from qkv.nn.biases import BucketedBias
from qkv.nn.blocks import Activation, FeedForward
from qkv.nn.gated import GatedFeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import PositionEmbedding, RopeScaling, Rotary, sinusoidal
from qkv.nn.stack_block import NormParts, StackBlock
from qkv.scores.products import ScaledDot


@final
@dataclass(frozen=True)
class PositionParts:
    """How positions are encoded.

    Args:
        kind: "learned", "halves" (sinusoids, all sines before all cosines), "rotary", "buckets" (of distances) or
            "none".
        skipped: learned positions before the first that is used.
        count: number of learned positions; 0 for as many as the context has.
        base, share, scaling: of rotary positions: see `qkv.nn.Rotary`.
        local_base: the base of blocks with a window, which then are not scaled; None for the same positions.
        buckets, farthest: of the distances: see `qkv.nn.BucketedBias`.
    """

    kind: Literal["learned", "halves", "rotary", "buckets", "none"] = "learned"
    skipped: int = 0
    count: int = 0
    base: float = 10_000.0
    share: float = 1.0
    scaling: RopeScaling | None = None
    local_base: float | None = None
    buckets: int = 32
    farthest: int = 128

    def rotary(self, *, local: bool) -> Rotary | None:
        """Create the rotary positions of a block, if there are any."""
        if self.kind != "rotary":
            return None
        if local and self.local_base is not None:
            return Rotary(self.local_base, share=self.share)
        return Rotary(self.base, share=self.share, scaling=self.scaling)


@final
@dataclass(frozen=True)
class StackConfig:
    """The sizes and parts of a published Transformer; each family is a set of points in this space.

    Args:
        size: vocabulary size.
        width: M.
        heads: H.
        key_heads: G.
        head_width: D.
        feed_forward: the hidden width of feed-forward layers.
        layers: number of blocks; of an encoder-decoder, of the encoder.
        decoder_layers: number of blocks of the decoder; 0 for a single stack.
        context: maximum number of tokens.
        norms, positions: which, and where.
        activation: of the feed-forward layers.
        gated: whether these are gated.
        attention_bias: which projections have biases: True for all, "inputs" for query, key and value.
        feed_forward_bias: whether the feed-forward layers have biases.
        window: how many earlier positions a block with a window sees.
        windowed: for each block whether it has the window; empty for none.
        scale: of the scores; None for 1/√D.
        softcap, output_softcap: bounds of the scores and of the logits; None for none.
        embed_scale, output_scale: factors of the embeddings and of the output layer's inputs.
        kinds: number of token types; 0 for none.
        tied: whether the output layer shares the embedding's weights.
        two_embeddings: whether the target of an encoder-decoder has its own embedding.
        output_bias: whether the output layer has a bias.
        masked_head: whether a layer with an activation and a norm precedes the output layer, as in BERT.
        head_activation: of that layer; None for the same as in the feed-forward layers.
        labels: number of labels that the output layer scores, in place of the vocabulary; 0 for none.
        pooler: the activation of a layer on the state of the first token, which then stands for the whole text; None
            where each token has its labels.
        dropout: on embeddings and on the output of each sublayer.
        attention_dropout: on the attention weights.
        settings: the config.json that it was read from, as text; "" for none.

    Raises:
        ConfigError: a size is below 1.
    """

    size: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    feed_forward: int
    layers: int
    decoder_layers: int = 0
    context: int = 1024
    norms: NormParts = field(default_factory=NormParts)
    positions: PositionParts = field(default_factory=PositionParts)
    activation: Activation = "gelu"
    gated: bool = False
    attention_bias: Literal[True, False, "inputs"] = True
    feed_forward_bias: bool = True
    window: int | None = None
    windowed: tuple[bool, ...] = ()
    scale: float | None = None
    softcap: float | None = None
    output_softcap: float | None = None
    embed_scale: float = 1.0
    output_scale: float = 1.0
    kinds: int = 0
    tied: bool = True
    two_embeddings: bool = False
    output_bias: bool = False
    masked_head: bool = False
    head_activation: Activation | None = None
    labels: int = 0
    pooler: Literal["tanh", "relu"] | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    settings: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("size", "width", "heads", "key_heads", "head_width", "feed_forward", "layers", "context"):
            if getattr(self, name) < 1:
                got, hint = f"{getattr(self, name)}", "Heads are as wide as the model's width divided by their number."
                raise ConfigError(f"model.{name}", "at least 1", got, hint)

    def block(self, index: int = 0, *, cross: bool = False) -> StackBlock:
        """Create a block.

        Args:
            index: its place in the stack.
            cross: whether it attends to a source too.
        """
        local = index < len(self.windowed) and self.windowed[index]
        layer = GatedFeedForward if self.gated else FeedForward
        feed = layer(
            self.width, self.feed_forward, self.dropout, activation=self.activation, bias=self.feed_forward_bias
        )
        return StackBlock(
            self.width,
            self._attention(self.positions.rotary(local=local)),
            feed,
            self.norms,
            cross=self._attention(None) if cross else None,
            dropout=self.dropout,
            reach=self.window if local else None,
        )

    def bias(self, *, causal: bool) -> BucketedBias | None:
        """Create the biases of distances, which all blocks of a stack share, if there are any."""
        if self.positions.kind != "buckets":
            return None
        return BucketedBias(self.positions.buckets, self.positions.farthest, self.heads, causal=causal)

    def learned(self) -> PositionEmbedding | None:
        """Create the learned positions, if there are any."""
        if self.positions.kind != "learned":
            return None
        return PositionEmbedding("learned", self.width, self.positions.count or self.context + self.positions.skipped)

    def _attention(self, rotary: Rotary | None) -> MultiHeadAttention:
        norms = (self.norms.build(self.head_width), self.norms.build(self.head_width)) if self.norms.heads else None
        return MultiHeadAttention(
            self.width,
            self.heads,
            key_heads=self.key_heads,
            score=ScaledDot(self.scale, self.softcap),
            dropout=self.attention_dropout,
            bias=self.attention_bias,
            positions=rotary,
            head_width=self.head_width,
            norms=norms,
        )


def add_positions(x: Tensor, learned: PositionEmbedding | None, parts: PositionParts, start: Tensor | int) -> Tensor:
    """Add positions to embeddings.

    Args:
        x: (B, N, M).
        learned: the learned positions, if any.
        parts: how positions are encoded.
        start: of the first token; an integer, or one for each row (B,): below zero are the tokens of padding.

    Returns:
        (B, N, M).

    Raises:
        ShapeError: a position exceeds the learned ones.
    """
    if learned is None and parts.kind != "halves":
        return x
    count, width = x.shape[-2:]
    if learned is None:
        first = start if isinstance(start, int) else int(start.max())
        waves = sinusoidal(count, width, start=first, device=x.device, dtype=x.dtype)
        return x + torch.cat([waves[:, ::2], waves[:, 1::2]], -1)
    # Tokens of padding are read as if they were at the first position.
    steps = start if isinstance(start, int) else start[:, None] + torch.arange(count, device=x.device)
    places = steps + parts.skipped if isinstance(steps, int) else steps.clamp(min=0) + parts.skipped
    placed: Tensor = learned(x, places)
    return placed


def causal_mask(new: int, memory: int, first: int, reach: int | None, skipped: Tensor | None) -> Mask | None:
    """Return which keys the newest positions see.

    Args:
        new: number of new positions.
        memory: number of keys, the new ones included.
        first: position of the first key.
        reach: how many earlier positions each sees; None for all.
        skipped: the tokens of padding at the left of each row (B,); None for none.
    """
    mask: Mask | None = None
    if reach is not None and memory > reach + 1:
        mask = window(reach, 0, offset=memory - new)
    elif new > 1:
        mask = causal(offset=memory - new)
    if skipped is None:
        return mask
    real = ~lengths((skipped - first).clamp(min=0))
    return real if mask is None else mask & real


def initialize(model: nn.Module, config: StackConfig) -> None:
    """Initialize embeddings and output layers; blocks initialize their own parameters."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or (name == "output" and isinstance(module, nn.Linear) and not config.tied):
            nn.init.normal_(module.weight, std=0.02)
        if name == "output" and isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
