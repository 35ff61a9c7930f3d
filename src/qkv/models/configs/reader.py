"""The configurations of models that label a text, or each of its words."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from qkv.errors import ConfigError, setting
from qkv.models.configs.checks import (
    check_heads,
    check_positions,
    expect_attention,
    expect_halves,
    expect_transformer,
)
from qkv.models.configs.fields import MOST_LAYERS, Dropout, FeedForwardWidth, Positions, Size, Width, Window
from qkv.nn.mechanism import ATTENTION, MechanismConfig, score_option
from qkv.settings import Option, check

if TYPE_CHECKING:
    from qkv.models.parts import TransformerParts

_OWN_DEFAULT = "default"
_DEFAULTS: dict[str, Any] = {part.name: part.default for part in fields(MechanismConfig)} | {"score": _OWN_DEFAULT}


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(MechanismConfig):
    """The settings of a model that labels words; the mechanism is that of its self-attentions.

    Args:
        size: vocabulary size.
        labels: number of labels.
        model: the encoder: "transformer" (self-attention), a bidirectional "gru", "lstm" or "rnn", or "none" for the
            embeddings themselves.
        width: width of embeddings and states; an RNN has half of it in each direction.
        residual: whether the embeddings are added to an RNN's states, so that the meaning of a word need not pass
            through the gates. A Transformer's blocks do that in any case.
        score: "default" for each attention's own: "scaled_dot" in blocks, "additive" in pooling.
        dropout: on embeddings, states and the pooled vector.
        word_dropout: the fraction of tokens replaced by unknown in training, so that no single word decides.
        window: how many positions to either side the attentions of blocks see; None for all.

    The others say themselves what they are, by their `Option`.

    Raises:
        ConfigError: a name is unknown, a number is out of range, or heads or directions do not divide the width.
    """

    size: Size
    labels: Annotated[
        int, Option("Number of labels", least=1, derived="The vocabulary and the labels come from the training text.")
    ]
    model: Annotated[
        Literal["gru", "lstm", "rnn", "transformer", "none"],
        Option("Encoder; none attends to the words themselves"),
    ] = "gru"
    layers: Annotated[int, Option("Layers of the encoder", least=1, most=MOST_LAYERS)] = 1
    width: Width = 256
    feed_forward: FeedForwardWidth = 512
    residual: Annotated[bool, Option("Add the embeddings to the states of a recurrent encoder")] = False
    positions: Positions = "sinusoidal"
    dropout: Dropout = 0.5
    word_dropout: Annotated[
        float,
        Option("Fraction of tokens replaced by unknown in training", least=0, below=1, hint="0 disables it."),
    ] = 0.1
    score: Annotated[str, score_option(or_else="scaled-dot, in a Transformer's blocks")] = _OWN_DEFAULT
    heads: Annotated[int, Option("Heads of a Transformer's self-attentions", topic=ATTENTION, least=1)] = 4
    window: Window = None

    def __post_init__(self) -> None:
        if self.score != _OWN_DEFAULT:
            super().__post_init__()
        else:
            check(self)
            MechanismConfig(**{name: getattr(self, name) for name in _DEFAULTS} | {"score": "additive"})
        if self.model == "transformer":
            expect_attention(self.blocks.score)
            check_heads("width", self.width, self.heads)
            check_positions(self.positions, self.blocks, self.width // self.heads)
            return
        if self.model != "none":
            expect_halves("width", self.width, "for two directions", "Each direction has half of it.")
        expect_transformer(self, positions="sinusoidal", window=None, heads=4)
        if self.score == "none":
            expected = "the score of the attention that pools the states"
            hint = "Omit it; to classify by the mean of the states, use " + setting("pool", "mean") + "."
            raise ConfigError("score", expected, '"none"', hint)
        changed = [name for name, usual in _DEFAULTS.items() if getattr(self, name) != usual]
        if changed and not self.pools:
            name = "score" if "score" in changed else changed[0]
            hint = "Nothing attends: omit it, or choose " + setting("model", "transformer") + " or, to classify, "
            hint += setting("pool", "attention") + "."
            expected = "the default beside a mean and no Transformer"
            raise ConfigError(name, expected, f'"{getattr(self, name)}"', hint)

    @property
    def attends(self) -> bool:
        """Whether the model has attention."""
        return self.pools or self.model == "transformer"

    @property
    def pools(self) -> bool:
        """Whether an attention pools the states."""
        return False

    @property
    def blocks(self) -> MechanismConfig:
        """The mechanism of the self-attentions of a Transformer's blocks."""
        return self.replaced("scaled_dot", self.normalizer) if self.score == _OWN_DEFAULT else self.replaced()

    @property
    def parts(self) -> "TransformerParts":
        """All parts of the model but its pool and its wide part."""
        from qkv.models.parts import PositionParts, TransformerParts

        attends = self.model == "transformer"
        return TransformerParts.of(
            self,
            heads=self.heads if attends else 1,
            layers=0 if self.model == "none" else self.layers,
            positions=PositionParts(self.positions if attends else "none"),
            activation="relu",
            mechanism=self.blocks if attends else None,
            embed_scale=self.width**0.5 if attends else 1.0,
            recurrent=None if self.model == "transformer" or self.model == "none" else self.model,  # noqa: PLR1714
            tied=False,
            output_bias=True,
        )


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(ReaderConfig):
    """The settings of a model that labels whole texts; the mechanism is that of its self-attentions and its pooling.

    Args:
        pool: how states become one vector: "attention" with a learned query, or the "mean".
        wide: buckets of a linear model next to the encoder, over words, word pairs and character n-grams, which also
            covers unseen words; None for none. 2**17 suits a few thousand sentences.

    Raises:
        ConfigError: as for `ReaderConfig`.
    """

    score: Annotated[str, score_option(or_else="additive to pool, scaled-dot in a Transformer's blocks")] = _OWN_DEFAULT
    pool: Annotated[Literal["attention", "mean"], Option("How words become one vector")] = "attention"
    wide: Annotated[
        int | None,
        Option(
            "Buckets of a linear model of words and n-grams beside the encoder; 131072 suit a few thousand texts",
            least=1,
            hint="Omit it for no such model.",
            or_else="no such model",
        ),
    ] = None

    @property
    def pools(self) -> bool:
        """Whether an attention pools the states."""
        return self.pool == "attention"

    @property
    def pooling(self) -> MechanismConfig:
        """The mechanism of the attention that pools the states."""
        return self.replaced("additive", self.normalizer) if self.score == _OWN_DEFAULT else self.replaced()
