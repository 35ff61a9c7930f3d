"""The parts of a Transformer as one value, from which models trained here and published ones are built."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, final

from torch import Tensor, nn

from qkv.errors import ConfigError
from qkv.nn.biases import AlibiBias, BiasModule, BucketedBias, RelativeBias
from qkv.nn.blocks import TransformerBlock
from qkv.nn.choices import Activation
from qkv.nn.feed_forward import FeedForward, GatedFeedForward
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.norms import NormParts
from qkv.nn.positions import PositionEmbedding, RopeScaling, Rotary
from qkv.nn.scores import ScaledDotScore

FARTHEST = 128
"""Relative positions distinguish distances up to this."""


@final
@dataclass(frozen=True)
class PositionParts:
    """How positions are encoded.

    Args:
        kind: added to the embeddings ("learned", "sinusoidal", or "halves", all sines before all cosines), in each
            self-attention ("rotary", "alibi", "relative"), in one bias that all blocks share ("buckets" of distances),
            or "none".
        skipped: positions before the first that is used, learned or "halves".
        count: number of learned positions; 0 for as many as the context has.
        base, share, scaling: of rotary positions: see `qkv.nn.Rotary`; `base` also of "halves".
        local_base: the base of blocks with a window, which then are not scaled; None for the same positions.
        buckets: of the distances: see `qkv.nn.BucketedBias`.
        farthest: buckets and relative positions distinguish distances up to this.
    """

    kind: Literal["learned", "sinusoidal", "halves", "rotary", "alibi", "relative", "buckets", "none"] = "learned"
    skipped: int = 0
    count: int = 0
    base: float = 10_000.0
    share: float = 1.0
    scaling: RopeScaling | None = None
    local_base: float | None = None
    buckets: int = 32
    farthest: int = FARTHEST

    def embedding(self, width: int, context: int = 0) -> PositionEmbedding | None:
        """Create the layer that adds positions to the embeddings, if there is one."""
        match self.kind:
            case "learned":
                return PositionEmbedding("learned", width, self.count or context + self.skipped, self.skipped)
            case "halves":
                return PositionEmbedding(self.kind, width, skipped=self.skipped, base=self.base)
            case "sinusoidal":
                return PositionEmbedding(self.kind, width)
            case _:
                return None

    def attended(self, heads: int, *, local: bool = False) -> Rotary | BiasModule | None:
        """Create the positions of a self-attention, if there are any.

        Args:
            heads: H.
            local: whether the block has a window.

        Example:
            >>> type(PositionParts("alibi").attended(heads=4)).__name__
            'AlibiBias'
        """
        match self.kind:
            case "rotary" if local and self.local_base is not None:
                return Rotary(self.local_base, share=self.share)
            case "rotary":
                return Rotary(self.base, share=self.share, scaling=self.scaling)
            case "alibi":
                return AlibiBias(heads)
            case "relative":
                return RelativeBias(self.farthest, heads)
            case _:
                return None

    def shared(self, heads: int, *, causal: bool) -> BucketedBias | None:
        """Create the biases of distances, which all blocks of a stack share, if there are any."""
        if self.kind != "buckets":
            return None
        return BucketedBias(self.buckets, self.farthest, heads, causal=causal)


@final
@dataclass(frozen=True)
class TransformerParts:
    """The sizes and parts of a Transformer; each family of published models is a set of points in this space.

    Args:
        size: vocabulary size.
        width: M.
        heads: H.
        key_heads: G.
        head_width: D.
        feed_forward: the hidden width of feed-forward layers.
        layers: number of blocks, or of recurrent layers; of an encoder-decoder, of the encoder.
        decoder_layers: number of blocks of the decoder; 0 for a single stack.
        context: maximum number of tokens.
        norms, positions: which, and where.
        activation: of the feed-forward layers.
        gated: whether these are gated.
        attention_bias: which projections have biases: True for all, "inputs" for query, key and value.
        feed_forward_bias: whether the feed-forward layers have biases.
        window: how many earlier positions a block with a window sees; an encoder's, to either side.
        windowed: for each block whether it has the window; empty for none.
        mechanism: score and normalizer of every attention; None for the scaled dot product under softmax.
        cross: those of the attention to the source, where they differ.
        scale: of the scaled dot product; None for 1/√D.
        softcap, output_softcap: bounds of the scaled dot product and of the logits; None for none.
        embed_scale, output_scale: factors of the embeddings and of the output layer's inputs.
        kinds: number of token types; 0 for none.
        tied: whether the output layer shares the embedding's weights.
        source_size: the size of the vocabulary of sources, if these have an embedding of their own; None for one
            embedding.
        features_mark: the id after which a source has features, a second source with its own attention in each
            block of the decoder; None if there is none.
        recurrent: the cell of a bidirectional encoder, in place of blocks; None for blocks.
        output_bias: whether the output layer has a bias.
        masked_head: whether a layer with an activation and a norm precedes the output layer, as in BERT.
        head_activation: of that layer; None for the same as in the feed-forward layers.
        head_bias: whether that layer has a bias.
        labels: number of labels that the output layer scores, in place of the vocabulary; 0 for none.
        pooler: what stands for the whole text: "tanh" or "relu" of a layer on the state of the first token, that state
            itself ("first"), or the mean of all ("mean"); None where each token has its labels.
        residual: whether a recurrent encoder adds its input to its output.
        dropout: on embeddings and on the output of each sublayer.
        word_dropout: the fraction of tokens that a reader replaces by unknown, in training.
        end_dropout: whether `dropout` is also on the output of the last norm of each stack.
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
    mechanism: MechanismConfig | None = None
    cross: MechanismConfig | None = None
    scale: float | None = None
    softcap: float | None = None
    output_softcap: float | None = None
    embed_scale: float = 1.0
    output_scale: float = 1.0
    kinds: int = 0
    tied: bool = True
    source_size: int | None = None
    features_mark: int | None = None
    recurrent: Literal["gru", "lstm", "rnn"] | None = None
    output_bias: bool = False
    masked_head: bool = False
    head_activation: Activation | None = None
    head_bias: bool = True
    labels: int = 0
    pooler: Literal["tanh", "relu", "first", "mean"] | None = None
    residual: bool = False
    dropout: float = 0.0
    word_dropout: float = 0.0
    end_dropout: bool = False
    attention_dropout: float = 0.0
    settings: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name in ("size", "width", "heads", "key_heads", "head_width", "feed_forward", "context"):
            if getattr(self, name) < 1:
                got, hint = f"{getattr(self, name)}", "Heads are as wide as the model's width divided by their number."
                raise ConfigError(name, "at least 1", got, hint)

    @classmethod
    def of(cls, config: Any, **others: object) -> "TransformerParts":
        """Return the parts of a model trained here: what its configuration calls by the same name, and others.

        Args:
            config: the configuration; heads have keys of their own and divide the width, if others do not say more.
            others: parts that have another name there, or follow from several settings.
        """
        same = {part.name: getattr(config, part.name) for part in fields(cls) if hasattr(config, part.name)}
        values = {**same, **others}
        heads = values["heads"]
        return cls(**{"key_heads": heads, "head_width": config.width // heads, **values})

    @property
    def parts(self) -> "TransformerParts":
        """These parts themselves, as a configuration's `parts`."""
        return self

    def block(self, index: int = 0, *, cross: bool = False) -> TransformerBlock:
        """Create a block.

        Args:
            index: its place in the stack.
            cross: whether it attends to a source too.
        """
        local = index < len(self.windowed) and self.windowed[index]
        attention = self._attention(self.mechanism, self.positions.attended(self.heads, local=local))
        second = self._attention(self.cross or self.mechanism) if cross and self.features_mark is not None else None
        source = self._attention(self.cross or self.mechanism) if cross else None
        layer = GatedFeedForward if self.gated else FeedForward
        block = TransformerBlock(
            attention,
            layer(self.width, self.feed_forward, self.dropout, activation=self.activation, bias=self.feed_forward_bias),
            self.norms,
            cross=source,
            second=second,
            dropout=self.dropout,
            reach=self.window if local else None,
        )
        if index == 0 and not self.norms.first:
            block.around_self.norm = nn.Identity()
        return block

    def _attention(
        self, mechanism: MechanismConfig | None, positions: Rotary | BiasModule | None = None
    ) -> MultiHeadAttention:
        norms = (self.norms.build(self.head_width), self.norms.build(self.head_width)) if self.norms.heads else None
        return MultiHeadAttention(
            self.width,
            self.heads,
            key_heads=self.key_heads,
            score=ScaledDotScore(self.scale, self.softcap) if mechanism is None else mechanism,
            dropout=self.attention_dropout,
            bias=self.attention_bias,
            positions=positions,
            head_width=self.head_width,
            norms=norms,
        )


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return x times a factor; x itself for 1."""
    return x if factor == 1 else x * factor
