"""The configurations of language models."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from qkv.models.configs.checks import check_heads, check_positions, expect_attention
from qkv.models.configs.fields import (
    AttentionDropout,
    Cell,
    Dropout,
    FeedForwardWidth,
    Heads,
    KeyHeads,
    Layers,
    Size,
    Tied,
    Width,
    window_option,
)
from qkv.nn.choices import Activation
from qkv.nn.mechanism import MechanismConfig, score_option
from qkv.settings import Option

if TYPE_CHECKING:
    from qkv.models.parts import TransformerParts

Context = Annotated[int, Option("Context length", "tokens", least=1)]
EarlierWindow = Annotated[int | None, window_option("Number of earlier positions that attention sees")]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(MechanismConfig):
    """The settings of a Transformer decoder; the mechanism is that of every attention.

    Args:
        size: vocabulary size.
        layers: number of blocks.
        positions: "none" leaves only the causal mask; None for "rotary", or "sinusoidal" for a score that is neither a
            product nor a distance.
        context: maximum number of tokens read at once.
        key_heads: heads of keys and values, a divisor of `heads`; None for `heads`.
        dropout: on embeddings and on the output of each sublayer.

    The others say themselves what they are, by their `Option`.

    Raises:
        ConfigError: a name is unknown, a number is out of range, or heads do not divide the width.
    """

    size: Size
    model: Annotated[Literal["transformer"], Option("Kind of model")] = "transformer"
    score: Annotated[str, score_option("; also none in recurrent models")] = "scaled_dot"
    layers: Layers = 4
    width: Width = 192
    feed_forward: FeedForwardWidth = 768
    activation: Annotated[Activation, Option("Activation of a Transformer's feed-forward layers")] = "squared_relu"
    bias: Annotated[bool, Option("A Transformer's projections have biases, as by default")] = True
    context: Context = 256
    positions: Annotated[
        Literal["rotary", "sinusoidal", "learned", "alibi", "relative", "none"] | None,
        Option("Positions of a Transformer", or_else="rotary for products and distances, sinusoidal for other scores"),
    ] = None
    dropout: Dropout = 0.1
    attention_dropout: AttentionDropout = 0.0
    tied: Tied = True
    heads: Heads = 6
    key_heads: KeyHeads = None
    window: EarlierWindow = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_attention(self.score)
        check_heads("width", self.width, self.heads)
        if self.positions is None:
            object.__setattr__(self, "positions", "rotary" if self.rotates else "sinusoidal")
        check_positions(f"{self.positions}", self, self.width // self.heads, bounded=True)

    @property
    def parts(self) -> "TransformerParts":
        """All parts of the model."""
        from qkv.models.parts import FARTHEST, PositionParts, TransformerParts

        positions = PositionParts(self.positions or "none")
        if self.positions == "relative":
            positions = replace(positions, farthest=min(FARTHEST, self.context))
        return TransformerParts.of(
            self,
            key_heads=self.key_heads or self.heads,
            positions=positions,
            attention_bias=self.bias,
            feed_forward_bias=self.bias,
            windowed=() if self.window is None else (True,) * self.layers,
            mechanism=self.replaced(),
        )


@dataclass(frozen=True, kw_only=True)
class RecurrentDecoderConfig(MechanismConfig):
    """The settings of a recurrent language model; the mechanism is that of the attention over its own states.

    Args:
        size: vocabulary size.
        model: plain RNN, gated recurrent unit, or long short-term memory.
        layers: layers of cells.
        width: M, of embeddings and states.
        score: "none" for the states alone.
        context: number of tokens that are trained on at once.
        dropout: on embeddings, states and between layers.
        window: how many earlier states the attention sees; None for all.

    The others say themselves what they are, by their `Option`.

    Raises:
        ConfigError: a name is unknown, a number is out of range, or heads do not divide the width.
    """

    size: Size
    model: Annotated[Cell, Option("Kind of model")] = "gru"
    layers: Layers = 1
    width: Width = 256
    context: Context = 256
    dropout: Dropout = 0.1
    tied: Tied = True
    heads: Heads = 4
    key_heads: KeyHeads = None
    window: EarlierWindow = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads("width", self.width, self.heads)


LanguageModelConfig = DecoderConfig | RecurrentDecoderConfig
"""The configuration of any language model."""
