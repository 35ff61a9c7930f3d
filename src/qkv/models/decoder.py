"""The Transformer decoder: a language model that predicts each token from those before it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

from torch import Tensor, nn

from qkv.models.checks import check_config, check_heads, check_positions, expect_attention, parts_of
from qkv.models.token_predictor import TokenPredictor
from qkv.nn.biases import AlibiBias, BiasModule, RelativeBias
from qkv.nn.blocks import Activation
from qkv.nn.causal import CausalBlock
from qkv.nn.decoding.cache import BatchRows, Memory
from qkv.nn.dropout import Dropout
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import PositionEmbedding, Rotary

_FARTHEST = 128
"""Relative positions distinguish distances up to this."""


@final
@dataclass(frozen=True)
class DecoderConfig(MechanismConfig):
    """The sizes of a language model; the mechanism is that of every attention.

    Args:
        size: vocabulary size.
        positions: how positions are encoded; "none" leaves only the causal mask; None for "rotary", or
            "sinusoidal" where the score is not of products or distances.
        context: maximum number of tokens read at once.
        window: how many earlier positions each attention sees; None for the whole context.
        width: M.
        heads: heads of every attention.
        key_heads: heads of keys and values, a divisor of `heads`; None for `heads`.
        feed_forward: the hidden width of feed-forward layers.
        layers: number of blocks.
        activation: activation of feed-forward layers.
        bias: whether projections and feed-forward layers have biases.
        dropout: on embeddings and on the output of each sublayer.
        attention_dropout: on the attention weights.
        tied: whether the output layer shares the embedding's weights.

    Raises:
        ConfigError: a name is unknown, a size is below one, heads do not divide the width, or a dropout is outside
            [0, 1).
    """

    size: int
    positions: Literal["rotary", "alibi", "relative", "learned", "sinusoidal", "none"] | None = None
    context: int = 256
    window: int | None = None
    width: int = 192
    heads: int = 6
    key_heads: int | None = None
    feed_forward: int = 768
    layers: int = 4
    activation: Activation = "squared_relu"
    bias: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_config(self)
        expect_attention(self.score)
        check_heads("width", self.width, self.heads)
        if self.positions is None:
            object.__setattr__(self, "positions", "rotary" if self.rotates else "sinusoidal")
        check_positions(f"{self.positions}", self, self.width // self.heads, bounded=True)


class DecoderState(NamedTuple):
    """A language model's state between two steps; B rows.

    Attributes:
        caches: keys and values of each block; empty initially.
        position: position of the next token.
    """

    caches: tuple[Memory, ...]
    position: int


@final
class LanguageModel(TokenPredictor[DecoderState]):
    """A stack of blocks of masked self-attention over one sequence.

    Args:
        config: its sizes.

    Source: Vaswani et al. 2017, section 3, the decoder alone; Radford et al. 2019.

    Example:
        >>> import torch
        >>> model = LanguageModel(DecoderConfig(size=20, width=16, heads=2, feed_forward=32)).eval()
        >>> tokens = torch.randint(4, 20, (2, 6))
        >>> logits = model(tokens)
        >>> first, state = model.read(tokens[:, :4])
        >>> then, state = model.read(tokens[:, 4:], state)
        >>> torch.allclose(torch.cat([first, then], 1), logits, atol=1e-5), state.position
        (True, 6)
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.size, config.width)
        self.positions = _embedded_positions(config)
        self.blocks = nn.ModuleList(_block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.size, bias=False)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters; the last layers before the residual stream start at zero, so that blocks start as
        identities.

        Source: Zhang et al. 2019, "Fixup Initialization", section 3 (zero last layers).
        """
        for block in self._blocks():
            attention, feed = block.self_attention, block.feed_forward
            attention.reset_parameters()
            nn.init.normal_(feed.expand.weight, std=self.config.width**-0.5)
            for layer in (attention.output, feed.contract):
                assert layer is not None
                nn.init.zeros_(layer.weight)
        nn.init.normal_(self.embed.weight, std=0.02)
        if self.positions is not None:
            self.positions.reset_parameters()
        if self.config.tied:
            self.output.weight = self.embed.weight
        else:
            nn.init.normal_(self.output.weight, std=0.02)

    def begin(self, tokens: Tensor) -> DecoderState:
        """Return the initial state for a batch of tokens (B, T)."""
        self.rows.begin(tokens)
        return DecoderState((), 0)

    def continued(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Return the output layer's input for each token (B, T, M), and the state after the last. Tokens are valid."""
        x_BTM = self.embed(tokens)
        x_BTM = self.dropout(x_BTM if self.positions is None else self.positions(x_BTM, state.position))
        caches = []
        for index, block in enumerate(self._blocks()):
            x_BTM, cache = block.step(x_BTM, state.caches[index] if state.caches else None)
            caches.append(cache)
        h_BTM: Tensor = self.norm(x_BTM)
        return h_BTM, DecoderState(tuple(caches), state.position + tokens.shape[1])

    def select(self, state: DecoderState, rows: Tensor) -> DecoderState:
        """Select rows of a state: fewer, repeated or reordered."""
        rows = self.rows(rows)
        return DecoderState(tuple(cache.select(rows) for cache in state.caches), state.position)

    def _blocks(self) -> list[CausalBlock]:
        return parts_of(self.blocks, CausalBlock, "blocks")


def _embedded_positions(config: DecoderConfig) -> PositionEmbedding | None:
    match config.positions:
        case "sinusoidal" | "learned":
            return PositionEmbedding(config.positions, config.width, config.context)
        case _:
            return None


def attended_positions(name: str, heads: int, farthest: int = _FARTHEST) -> Rotary | BiasModule | None:
    """Create the positions of a self-attention by name.

    Args:
        name: "rotary", "alibi" or "relative"; any other is none of the attention's.
        heads: H.
        farthest: relative positions distinguish distances up to this.

    Example:
        >>> type(attended_positions("alibi", heads=4)).__name__
        'AlibiBias'
    """
    match name:
        case "rotary":
            return Rotary()
        case "alibi":
            return AlibiBias(heads)
        case "relative":
            return RelativeBias(farthest, heads)
        case _:
            return None


def _block(config: DecoderConfig) -> CausalBlock:
    attention = MultiHeadAttention(
        config.width,
        config.heads,
        key_heads=config.key_heads,
        score=config,
        dropout=config.attention_dropout,
        bias=config.bias,
        positions=attended_positions(f"{config.positions}", config.heads, min(_FARTHEST, config.context)),
    )
    return CausalBlock(
        config.width,
        attention,
        config.feed_forward,
        reach=config.window,
        dropout=config.dropout,
        activation=config.activation,
        bias=config.bias,
    )
