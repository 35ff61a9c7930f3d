"""Models that read a text: one label for the whole text, or one for each word."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, ShapeError, setting
from qkv.masks.patterns import Lengths
from qkv.models import recurrence
from qkv.models.checks import (
    check_config,
    check_heads,
    check_positions,
    clean_source,
    expect_attention,
    expect_unbounded,
    padding_of,
)
from qkv.models.encoders import CELLS, encode
from qkv.models.first_weights import initialize_cells
from qkv.models.parts import PositionParts
from qkv.nn.blocks import TransformerBlock
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.pooling import Pool
from qkv.nn.scores import xavier_uniform

_EACH = "default"
_DEFAULTS: dict[str, Any] = {
    "score": _EACH,
    **{f.name: f.default for f in fields(MechanismConfig) if f.name != "score"},
}


@final
@dataclass(frozen=True)
class ReaderConfig(MechanismConfig):
    """The sizes of a reader model; the mechanism is that of its attentions: a Transformer's blocks, and pooling.

    Args:
        size: vocabulary size.
        labels: number of labels.
        score: "default" for each attention's own: "scaled_dot" in blocks, "additive" in pooling.
        encoder: "transformer" (self-attention), a bidirectional "gru", "lstm" or "rnn", or "none" to pool the
            embeddings themselves.
        pool: how states become one vector: "attention" with a learned query, or the "mean".
        width: width of embeddings and states; an RNN has half of it in each direction.
        layers: layers of the encoder.
        heads, feed_forward: of a Transformer's blocks.
        dropout: on embeddings, states and the pooled vector.
        word_dropout: the fraction of tokens replaced by unknown in training, so that no single word decides.
        residual: whether the embeddings are added to an RNN's states, so that the meaning of a word need not pass
            through the gates. A Transformer's blocks do that in any case.
        wide: buckets of a linear model next to the encoder, over words, word pairs and character n-grams, which also
            covers unseen words, see `qkv.data.features`; None for none. 2**17 suits a few thousand sentences. Only for
            text classification.
        positions: how a Transformer's positions are encoded.
        window: how many positions to either side the attentions of blocks see; None for all.

    Raises:
        ConfigError: a name is unknown, a size is below one, heads or directions do not divide the width, or a fraction
            is outside [0, 1).
    """

    size: int
    labels: int
    encoder: Literal["transformer", "gru", "lstm", "rnn", "none"] = "gru"
    pool: Literal["attention", "mean"] = "attention"
    width: int = 256
    layers: int = 1
    heads: int = 4
    feed_forward: int = 512
    dropout: float = 0.5
    word_dropout: float = 0.1
    residual: bool = False
    wide: int | None = None
    positions: Literal["sinusoidal", "rotary", "alibi", "relative", "none"] = "sinusoidal"
    window: int | None = None
    score: str = field(default=_EACH, kw_only=True)

    def __post_init__(self) -> None:
        if self.score != _EACH:
            super().__post_init__()
        else:
            numbers = {name: getattr(self, name) for name in _DEFAULTS if name != "score"}
            MechanismConfig(score="additive", **numbers)
        expect_unbounded(self.positions)
        check_config(self)
        if self.encoder == "transformer":
            expect_attention(self.blocks.score)
            check_heads("width", self.width, self.heads)
            check_positions(self.positions, self.blocks, self.width // self.heads)
        elif self.encoder in CELLS and self.width % 2:
            hint = "Each direction has half of it."
            raise ConfigError("model.width", "an even width, for two directions", f"{self.width}", hint)
        if self.encoder != "transformer":
            self._expect_no_blocks()
            if self.score == "none":
                expected = "the score of the attention that pools the states"
                hint = f"Omit it; to classify by the mean of the states, use {setting('pool', 'mean')}."
                raise ConfigError("model.score", expected, '"none"', hint)
            changed = [name for name, usual in _DEFAULTS.items() if getattr(self, name) != usual]
            if self.pool == "mean" and changed:
                name = "score" if "score" in changed else changed[0]
                hint = (
                    f"Nothing attends: omit it, or choose {setting('model', 'transformer')} or, to classify, "
                    f"{setting('pool', 'attention')}."
                )
                expected = "the default beside a mean and no Transformer"
                raise ConfigError(f"model.{name}", expected, f'"{getattr(self, name)}"', hint)

    @property
    def blocks(self) -> MechanismConfig:
        """The mechanism of the self-attentions of a Transformer's blocks."""
        return self.replaced("scaled_dot", self.normalizer) if self.score == _EACH else self.replaced()

    @property
    def pooling(self) -> MechanismConfig:
        """The mechanism of the attention that pools the states."""
        return self.replaced("additive", self.normalizer) if self.score == _EACH else self.replaced()

    def _expect_no_blocks(self) -> None:
        for name, default in (("positions", "sinusoidal"), ("window", None)):
            if getattr(self, name) != default:
                hint = f"It belongs to self-attention: omit it, or choose {setting('model', 'transformer')}."
                got = f"{getattr(self, name)} with {self.encoder}"
                raise ConfigError(f"model.{name}", "a Transformer", got, hint)


@final
class Reader(nn.Module):
    """Embeddings and an encoder.

    Args:
        config: its sizes.
        unknown: the id that word dropout substitutes for a token.

    Source: Vaswani et al. 2017, section 3.1 (transformer); Schuster and Paliwal 1997 (bidirectional RNN); word
        dropout: Iyyer et al. 2015, "Deep Unordered Composition Rivals Syntactic Methods", section 3.1.
    """

    def __init__(self, config: ReaderConfig, unknown: int) -> None:
        super().__init__()
        self.config, self.unknown = config, unknown
        self.rows = BatchRows()
        self.embed = nn.Embedding(config.size, config.width)
        cell = CELLS.get(config.encoder)
        self.recurrent = (
            None
            if cell is None
            else cell(config.width, config.width // 2, config.layers, batch_first=True, bidirectional=True)
        )
        blocks = config.layers if config.encoder == "transformer" else 0
        positions = PositionParts(config.positions)
        self.positions = positions.embedding(config.width) if blocks else None
        self.blocks = nn.ModuleList(
            TransformerBlock(
                MultiHeadAttention(
                    config.width, config.heads, score=config.blocks, positions=positions.attended(config.heads)
                ),
                FeedForward(config.width, config.feed_forward, config.dropout),
                dropout=config.dropout,
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(config.width) if blocks else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize embeddings and recurrent parameters; blocks initialize their own."""
        nn.init.normal_(self.embed.weight, std=0.1 if self.recurrent is not None else self.config.width**-0.5)
        if self.recurrent is not None:
            initialize_cells(self.recurrent.named_parameters(), self.config.width // 2, by_gate=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Lengths | None]:
        """Encode texts.

        Args:
            ids: tokens (B, S), int64; entries at or after a row's length are never read.
            lengths: (B,), int64.

        Returns:
            States (B, S, M), 0 in the padding, and the padding mask (None if there is no padding).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        clean, real = clean_source(ids, lengths, self.config.size)
        self.rows.begin(clean)
        padded = padding_of(lengths, real)
        mask = None if padded is None else Lengths(padded)
        x_BSM = self.dropout(self._embed(self._blur(clean)))
        if self.recurrent is not None:
            states = self.dropout(recurrence.run(self.recurrent, x_BSM, lengths)[0])
            x_BSM = states + x_BSM if self.config.residual else states
        x_BSM = encode(self.blocks, x_BSM, padded, self.config.window)
        return torch.where(real[..., None], self.norm(x_BSM), 0), mask

    def _blur(self, ids: Tensor) -> Tensor:
        """Replace some tokens by unknown, in training."""
        share = self.config.word_dropout
        if not self.training or not share:
            return ids
        return torch.where(torch.rand(ids.shape, device=ids.device) < share, self.unknown, ids)

    def _embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        x = x * self.config.width**0.5 if len(self.blocks) else x
        return x if self.positions is None else self.positions(x)


@final
class WideScores(nn.Module):
    """A linear model of the features of a text: s_l = (2 / √n) Σ_f W_fl over its n features.

    AdamW moves all weights at about the same rate; the factor 2 lets this part learn about as fast as the network.

    Args:
        buckets: number of features.
        labels: number of labels.
        dropout: the fraction of a text's features dropped in training.

    Source: Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems", section 3.

    Example:
        >>> WideScores(8, labels=3, dropout=0.5)(torch.tensor([[7, 2], [1, 0]]), torch.tensor([2, 1])).shape
        torch.Size([2, 3])
    """

    def __init__(self, buckets: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.weights = nn.Embedding(buckets, labels)
        self.dropout = Dropout(dropout)
        nn.init.zeros_(self.weights.weight)

    def forward(self, features: Tensor, counts: Tensor) -> Tensor:
        """Score the labels of texts.

        Args:
            features: (B, F), int64; entries at or after a row's count are never read.
            counts: (B,), int64.

        Returns:
            Scores (B, labels).
        """
        real_BF = torch.arange(features.shape[1], device=features.device) < counts[:, None]
        weights_BFL: Tensor = self.weights(torch.where(real_BF, features, 0))
        pace_B1 = (2 / counts.clamp(min=1).sqrt())[:, None].to(weights_BFL.dtype)
        share_BF = self.dropout(real_BF * pace_B1)
        scores_BL: Tensor = (weights_BFL * share_BF[..., None]).sum(1)
        return scores_BL


@final
class TextClassifier(nn.Module):
    """Labels a text: pools its states, scores the labels by a linear layer, and adds the scores of a wide part, if any.

    Args:
        config: its sizes.
        unknown: the id of the unknown token.

    Example:
        >>> model = TextClassifier(ReaderConfig(size=20, labels=3, width=8))
        >>> model(torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: ReaderConfig, unknown: int = 0) -> None:
        super().__init__()
        self.config = config
        self.reader = Reader(config, unknown)
        self.pool = Pool(config.width, config.pool, config.pooling)
        self.output = nn.Linear(config.width, config.labels)
        self.dropout = Dropout(config.dropout)
        self.wide = None if config.wide is None else WideScores(config.wide, config.labels, config.dropout)
        nn.init.zeros_(self.output.bias)
        xavier_uniform(self.output.weight)

    @property
    def attention_layer(self) -> str:
        """The name of the attention that pools the tokens."""
        return "pool.attention"

    def forward(
        self, ids: Tensor, lengths: Tensor, features: Tensor | None = None, counts: Tensor | None = None
    ) -> Tensor:
        """Score the labels of texts.

        Args:
            ids: tokens (B, S), int64.
            lengths: (B,), int64.
            features: features of the same texts for a wide part (B, F), int64; None for none.
            counts: number of features of each text (B,), int64.

        Returns:
            Logits, (B, labels).

        Raises:
            ShapeError: shapes, types or ids that are not these; or features are given to a model without a wide part.
        """
        states, mask = self.reader(ids, lengths)
        scores: Tensor = self.output(self.dropout(self.pool(states, mask)))
        if features is None or counts is None:
            return scores
        if self.wide is None:
            hint = "Omit them, or create the model with wide=BUCKETS."
            raise ShapeError("features", "none for a model without a wide part", "some", hint)
        wide: Tensor = self.wide(*_clean_features(features, counts, self.config.wide or 0))
        return scores + wide


def _clean_features(features: Tensor, counts: Tensor, buckets: int) -> tuple[Tensor, Tensor]:
    try:
        return clean_source(features, counts, buckets)[0], counts
    except ShapeError as error:
        raise error.about(f"features: {error.argument}") from None


@final
class TextTagger(nn.Module):
    """Labels each word of a text, from the state of the word's first token.

    Args:
        config: its sizes; `pool` is ignored.
        unknown: the id of the unknown token.

    Example:
        >>> model = TextTagger(ReaderConfig(size=20, labels=3, width=8))
        >>> words = torch.tensor([[0, 2, 3], [0, 1, 0]])  # tokens at which words begin
        >>> model(torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), words).shape
        torch.Size([2, 3, 3])
    """

    def __init__(self, config: ReaderConfig, unknown: int = 0) -> None:
        super().__init__()
        self.config = config
        self.reader = Reader(config, unknown)
        self.output = nn.Linear(config.width, config.labels)
        nn.init.zeros_(self.output.bias)
        xavier_uniform(self.output.weight)

    def forward(self, ids: Tensor, lengths: Tensor, words: Tensor) -> Tensor:
        """Score the labels of words.

        Args:
            ids: tokens (B, S), int64.
            lengths: (B,), int64.
            words: the index of each word's first token (B, W), int64; any index in the padding.

        Returns:
            Logits, (B, W, labels).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        states, _ = self.reader(ids, lengths)
        begins = states.gather(1, words[..., None].expand(-1, -1, states.shape[-1]))
        scores: Tensor = self.output(begins)
        return scores
