"""The configurations of translators."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from qkv.errors import ConfigError, setting
from qkv.models.configs.checks import (
    check_heads,
    check_positions,
    expect_attention,
    expect_attention_for_features,
    expect_halves,
    separate_attention,
)
from qkv.models.configs.fields import (
    MOST_LAYERS,
    UNSET,
    AnyPositions,
    AttentionDropout,
    Cell,
    Dropout,
    FeedForwardWidth,
    Heads,
    ModelKind,
    Positions,
    Size,
    Tied,
    Window,
)
from qkv.nn.mechanism import ATTENTION, MechanismConfig, ScoreName, score_name, score_option
from qkv.settings import Option, check
from qkv.values.catalog import as_flag

if TYPE_CHECKING:
    from qkv.models.parts import TransformerParts


def _of_cross(name: str, more: str = "") -> Option:
    """Return a setting of the attention to the source, which is otherwise the one of a name."""
    hint = "To the source there is one attention: use " + setting(name) + "."
    return Option(f"Of the attention to the source alone{more}", topic=ATTENTION, hint=hint, or_else=name)


_TEXT_DECIDES = "The text decides it; omit it."
_HALVES = "to split into keys and values"
_KIND = Option("Kind of encoder and decoder", also="decoder")

_ALIGNMENT = Option("Alignment; hard ones of recurrent models never go back, by order 0 or 1")
_SCORES = ("bilinear", "additive", "dot", "scaled_dot")
"""Scores of monotonic alignments."""

SourceSize = Annotated[
    int | None, Option("Size of the vocabulary of sources", least=1, derived=_TEXT_DECIDES, or_else="that of targets")
]
FeaturesMark = Annotated[int | None, Option("The id after which a source has features", least=0, derived=_TEXT_DECIDES)]
Encoder = Annotated[ModelKind | None, Option("The encoder alone", or_else="that of the decoder")]
EncoderLayers = Annotated[int, Option("Layers of the encoder", least=1, most=MOST_LAYERS)]
DecoderLayers = Annotated[int, Option("Layers of the decoder", least=1, most=MOST_LAYERS)]
Copying = Annotated[Literal["mixture", "joint", "none"], Option("Also copy words from the source")]
Soft = Annotated[Literal["soft"], _ALIGNMENT]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(MechanismConfig):
    """The settings of an encoder-decoder with a Transformer decoder; the mechanism is that of every attention.

    Args:
        size: size of the vocabulary.
        width: M.
        encoder: "transformer", or a bidirectional "gru", "lstm" or "rnn"; None for "transformer".
        encoder_layers, decoder_layers: number of blocks.
        positions: added to the embeddings ("sinusoidal"), or in every self-attention; "none" leaves only the causal
            mask.
        copy: whether and how words are copied from the source: see `qkv.nn.CopyHead`.
        dropout: on embeddings and on the output of each sublayer.
        norm_first: whether norms come before the sublayers.
        window: how many positions self-attention sees: earlier ones in the decoder, in the encoder to either side; None
            for all.
        cross_score, cross_normalizer: of the attention to the source, where it differs from the self-attentions.
        source_size: size of the vocabulary of sources; None for the same vocabulary.
        features_mark: the id after which a source has features, a second source with its own attention in each
            decoder block; None if there is none.

    The others say themselves what they are, by their `Option`.

    Raises:
        ConfigError: a name is unknown, a number is out of range, or heads do not divide the width.
    """

    size: Size
    model: Annotated[Literal["transformer"], _KIND] = "transformer"
    score: Annotated[str, score_option("; also none and location with a recurrent decoder")] = "scaled_dot"
    encoder: Encoder = None
    encoder_layers: EncoderLayers = 3
    decoder_layers: DecoderLayers = 3
    width: Annotated[int, Option("Width of the states", least=1)] = 256
    feed_forward: FeedForwardWidth = 1024
    positions: Positions = "sinusoidal"
    copy: Copying = "none"
    alignment: Soft = "soft"
    dropout: Dropout = 0.2
    attention_dropout: AttentionDropout = 0.0
    norm_first: Annotated[bool, Option("Norms of a Transformer come before its sublayers, as by default")] = True
    tied: Tied = True
    heads: Heads = 4
    window: Window = None
    cross_score: Annotated[str | None, _of_cross("score", "; score sets all of a Transformer's")] = None
    cross_normalizer: Annotated[str | None, _of_cross("normalizer")] = None
    source_size: SourceSize = None
    features_mark: FeaturesMark = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_attention(self.score)
        check_heads("width", self.width, self.heads)
        check_positions(self.positions, self, self.width // self.heads)
        if self.encoder == "transformer":
            object.__setattr__(self, "encoder", None)
        if self.encoder is not None:
            expect_halves("width", self.width, "for two directions", "Each direction has half of it.")
        assert self.cross.attends

    @property
    def parts(self) -> "TransformerParts":
        """All parts of the model."""
        from qkv.models.parts import PositionParts, TransformerParts
        from qkv.nn.norms import NormParts

        return TransformerParts.of(
            self,
            layers=self.encoder_layers,
            norms=NormParts(place="before" if self.norm_first else "after", final=self.norm_first),
            positions=PositionParts(self.positions),
            activation="relu",
            windowed=() if self.window is None else (True,) * max(self.encoder_layers, self.decoder_layers),
            mechanism=self.replaced(),
            embed_scale=self.width**0.5,
            recurrent=None if self.encoder == "transformer" else self.encoder,
            output_bias=True,
        )

    @property
    def cross(self) -> MechanismConfig:
        """The mechanism of the attention to the source."""
        return separate_attention(self, "cross", self.cross_score, self.cross_normalizer)


@dataclass(frozen=True, kw_only=True)
class RecurrentWidths:
    """The widths of a recurrent translator: one number for all of them, or each by itself.

    Args:
        width: sets those that are not given; None once they are set.
        embedding: width of embeddings.
        hidden: width of the decoder's state, and of each direction of the encoder's.
        attention: A, the hidden width of an additive or location-sensitive score or a small network.
    """

    width: Annotated[int | None, Option("Width of the states", least=2, or_else=512)] = None
    embedding: Annotated[
        int, Option("Width of a recurrent model's embeddings", least=1, or_else="half of the width")
    ] = UNSET
    hidden: Annotated[int, Option("Width of a recurrent model's states", least=1, or_else="the width")] = UNSET
    attention: Annotated[
        int,
        Option("Hidden width of a recurrent model's additive score", least=1, or_else="half of the width"),
    ] = UNSET

    def _set_widths(self) -> None:
        """Set the widths that are not given.

        Raises:
            ConfigError: the width is out of range, or all widths are given and differ from it.
        """
        check(self, "width")
        width = 512 if self.width is None else self.width
        widths = {"hidden": width, "embedding": width // 2, "attention": width // 2}
        given = {name: getattr(self, name) for name in widths if getattr(self, name) is not None}
        if self.width is not None and len(given) == len(widths) and given != widths:
            got = ", ".join(f"{name} {number}" for name, number in given.items())
            hint = "They are all that it sets: omit it, change them, or train from scratch."
            raise ConfigError("width", f"{width}, in all sizes beside it", got, hint)
        for name, number in {**widths, **given, "width": None}.items():
            object.__setattr__(self, name, number)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(RecurrentWidths, MechanismConfig):
    """The settings of an encoder-decoder with a recurrent decoder; its mechanism attends to the source.

    Args:
        size: size of the vocabulary.
        model: plain RNN, gated recurrent unit, or long short-term memory.
        encoder: "gru", "lstm" or "rnn", in both directions, or "transformer", as wide as the embeddings; None for the
            decoder's cell.
        score: score of decoder state and source position; "location" reads the weights of the step before too; "none"
            for a fixed summary of the source.
        wiring: "bahdanau": the state before a step is the query, and the context is an input of the step; or "luong":
            the state after the step is the query, and the context only enters the prediction, all steps at once.
        positions: how a Transformer encoder encodes positions; None for "sinusoidal".
        memory: "whole": encoder states are keys and values; "split": each is h = [k; v], with key k and value v.
        copy: whether and how words are copied from the source: see `qkv.nn.CopyHead`.
        dropout: on embeddings, the memory and the output layer.
        heads: heads of the attention to the source. One head compares states as they are; several compare projections
            of them, and project what they read.
        window: how many positions to either side the attentions of a Transformer encoder see; None for all.
        encoder_heads: heads of a Transformer encoder.
        encoder_score, encoder_normalizer: of its attentions; None for the scaled dot product and the score's default.
        source_size: size of the vocabulary of sources; None for the same vocabulary.
        features_mark: the id after which a source has features, a second source with its own attention; None if
            there is none.

    The others say themselves what they are, by their `Option`.

    Raises:
        ConfigError: a name is unknown, or a number is out of range.
    """

    stepwise: ClassVar[bool] = True
    size: Size
    model: Annotated[Cell, _KIND] = "gru"
    score: ScoreName = "additive"
    encoder: Encoder = None
    encoder_layers: EncoderLayers = 1
    decoder_layers: DecoderLayers = 1
    positions: Annotated[AnyPositions | None, Option("Positions of a Transformer", or_else="sinusoidal")] = None
    memory: Annotated[
        Literal["whole", "split"], Option("Encoder states are keys and values as they are, or split in two")
    ] = "whole"
    wiring: Annotated[
        Literal["bahdanau", "luong"],
        Option("Recurrent decoders attend before a step (bahdanau) or after it (luong)"),
    ] = "bahdanau"
    copy: Copying = "none"
    alignment: Soft = "soft"
    dropout: Dropout = 0.3
    tied: Tied = True
    heads: Heads = 1
    window: Window = None
    encoder_score: Annotated[
        str | None,
        Option("Of a Transformer encoder before a recurrent decoder", topic=ATTENTION, or_else="scaled-dot"),
    ] = None
    encoder_normalizer: Annotated[
        str | None, Option("Of the same encoder", topic=ATTENTION, or_else="that of its score")
    ] = None
    encoder_heads: Annotated[int, Option("Heads of the same encoder", topic=ATTENTION, least=1)] = 4
    source_size: SourceSize = None
    features_mark: FeaturesMark = None

    def __post_init__(self) -> None:
        self._set_widths()
        super().__post_init__()
        if self.encoder == self.model:
            object.__setattr__(self, "encoder", None)
        check_heads("hidden", self.hidden, self.heads)
        self._check_encoder()
        if self.features_mark is not None:
            expect_attention_for_features(self.score)
        if self.score == "none" and self.heads > 1:
            hint = "Omit it, or choose another score."
            raise ConfigError("heads", "1 without attention", f"{self.heads}", hint)
        if self.memory == "split":
            expect_halves("hidden", self.hidden, _HALVES, "Choose an even width.")

    @property
    def encoding(self) -> MechanismConfig:
        """The mechanism of a Transformer encoder's attentions."""
        return separate_attention(MechanismConfig(), "encoder", self.encoder_score, self.encoder_normalizer)

    def _check_encoder(self) -> None:
        if self.encoder == "transformer":
            check_heads("embedding", self.embedding, self.encoder_heads, "encoder_heads")
            check_positions(self.positions or "sinusoidal", self.encoding, self.embedding // self.encoder_heads)
            if self.memory == "split":
                expect_halves("embedding", self.embedding, _HALVES, "Choose an even width.")
            return
        for name in ("window", "positions", "encoder_score", "encoder_normalizer"):
            if (value := getattr(self, name)) is not None:
                others = setting("encoder", "transformer") + ", use " + setting("model", "transformer")
                hint = "It belongs to self-attention: add " + others + ", or omit it."
                expected = "no such setting of a recurrent encoder"
                raise ConfigError(name, expected, f'"{value}"', hint)


@dataclass(frozen=True, kw_only=True)
class MonotonicConfig(RecurrentWidths):
    """The settings of a translator with hard monotonic attention.

    Args:
        size: size of the vocabulary.
        model: plain RNN, gated recurrent unit, or long short-term memory.
        score: "monotonic-0": score of decoder state and source position: "bilinear", "additive", "dot" or "scaled_dot",
            in any spelling of `qkv.nn.MechanismConfig`.
        copy: always "none": this model does not copy words.
        alignment: "monotonic-0": the next position depends on the decoder's state alone, except that it may not be
            before the previous one; or "monotonic-1": it is predicted as a jump from the previous one.
        jumps: "monotonic-1": the longest jump; 5 as in the authors' code.
        dropout: on embeddings, the memory and the output layer.
        source_size: size of the vocabulary of sources; None for the same vocabulary.

    Raises:
        ConfigError: a name is unknown, a number is out of range, or a setting belongs to the other alignment.
    """

    size: Size
    model: Annotated[Cell, _KIND] = "gru"
    score: ScoreName = "bilinear"
    copy: Annotated[Literal["none"], Option("Also copy words from the source")] = "none"
    alignment: Annotated[Literal["monotonic-0", "monotonic-1"], _ALIGNMENT] = "monotonic-0"
    jumps: Annotated[int, Option("Longest jump of monotonic-1", least=1)] = 5
    dropout: Dropout = 0.3
    tied: Tied = True
    source_size: SourceSize = None

    def __post_init__(self) -> None:
        self._set_widths()
        check(self)
        object.__setattr__(self, "score", score_name(self.score))
        if self.score not in _SCORES:
            expected = "bilinear, additive, dot or scaled-dot with a monotonic alignment"
            hint = "Choose one of them, or omit " + setting("alignment") + "."
            raise ConfigError("score", expected, f'"{as_flag(self.score)}"', hint)
        first_order = self.alignment == "monotonic-1"
        if first_order and self.score != "bilinear":
            hint = 'Omit it, or choose the alignment "monotonic-0".'
            expected = 'no score with "monotonic-1", which predicts jumps'
            raise ConfigError("score", expected, f'"{as_flag(self.score)}"', hint)
        if not first_order and self.jumps != 5:
            hint = 'Omit it, or choose the alignment "monotonic-1".'
            raise ConfigError("jumps", 'no jumps with "monotonic-0"', f"{self.jumps}", hint)


TranslatorConfig = TransformerConfig | RecurrentConfig | MonotonicConfig
"""The configuration of any translator."""
