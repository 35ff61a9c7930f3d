"""Models that read a text: one label for all of it, or one for each of its tokens."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, ShapeError, error_message
from qkv.masks.patterns import Lengths
from qkv.models import recurrence
from qkv.models.checks import check_config, clean_source, padding_of
from qkv.nn.blocks import EncoderBlock
from qkv.nn.decoding.cache import Rows
from qkv.nn.dropout import Dropout
from qkv.nn.pooling import Pool
from qkv.nn.positions import sinusoidal
from qkv.nn.scores import xavier_uniform

_CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@final
@dataclass(frozen=True)
class ReaderConfig:
    """The sizes of a model that reads.

    Args:
        size: pieces in the vocabulary.
        labels: how many labels there are.
        encoder: what makes states of embeddings: "transformer" (self-attention), a bidirectional "gru", "lstm" or
            "rnn", or "none", where the embeddings themselves are pooled.
        pool: how states become one vector: by attention with a learned query, or their "mean".
        width: of embeddings, and of the states; an RNN has half of it in each direction.
        layers: of the encoder.
        heads, feed_forward: of a transformer's blocks.
        dropout: on embeddings, states and what is pooled.
        word_dropout: the share of tokens that training reads as unknown, so that no single word decides.
        residual: whether an RNN's states have the embeddings added to them, so that what a word says by itself need not
            pass through the gates. A transformer's blocks do that in any case.
        wide: buckets of a linear model beside the encoder, which reads words, pairs of words and runs of characters,
            those of words that training never saw too, see `qkv.data.features`; None for none. 2**17 suit some
            thousand sentences. Only where a text has one label.

    Raises:
        ConfigError: an unknown name, a size below one, a width that heads or directions do not divide, or a share
            outside [0, 1).
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

    def __post_init__(self) -> None:
        check_config(self)
        if self.wide is not None and self.wide < 1:
            raise ConfigError(
                error_message("model.wide", "at least 1 bucket", f"{self.wide}", "Leave it out for none.")
            )
        parts = self.heads if self.encoder == "transformer" else 2 if self.encoder in _CELLS else 1
        if self.width % parts:
            name = "model.heads" if self.encoder == "transformer" else "model.width"
            got = f"{parts} parts of width {self.width}"
            raise ConfigError(
                error_message(name, "a divisor of model.width", got, "Choose an even width, or other heads.")
            )


@final
class Reader(nn.Module):
    """Embeddings, an encoder, and the states it gives.

    Args:
        config: its sizes.
        unknown: the id that word dropout puts in a token's place.

    Source: Vaswani et al. 2017, section 3.1 (transformer); Schuster and Paliwal 1997 (bidirectional RNN); word
        dropout: Iyyer et al. 2015, "Deep Unordered Composition Rivals Syntactic Methods", section 3.1.
    """

    def __init__(self, config: ReaderConfig, unknown: int) -> None:
        super().__init__()
        self.config, self.unknown = config, unknown
        self.rows = Rows()
        self.embed = nn.Embedding(config.size, config.width)
        cell = _CELLS.get(config.encoder)
        self.recurrent = (
            None
            if cell is None
            else cell(config.width, config.width // 2, config.layers, batch_first=True, bidirectional=True)
        )
        blocks = config.layers if config.encoder == "transformer" else 0
        self.blocks = nn.ModuleList(
            EncoderBlock(config.width, config.heads, config.feed_forward, dropout=config.dropout) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(config.width) if blocks else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw embeddings and recurrent parameters anew; blocks draw their own."""
        nn.init.normal_(self.embed.weight, std=0.1 if self.recurrent is not None else self.config.width**-0.5)
        for name, parameter in [] if self.recurrent is None else self.recurrent.named_parameters():
            if parameter.ndim < 2:
                nn.init.zeros_(parameter)
                continue
            for block in parameter.data.split(self.config.width // 2):
                nn.init.orthogonal_(block) if "_hh_" in name else xavier_uniform(block)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Lengths | None]:
        """Read.

        Args:
            ids: tokens (B, S), int64; what stands at or after a row's length is never read.
            lengths: (B,), int64.

        Returns:
            States (B, S, M), 0 in the padding, and the mask that hides it (None where there is none).

        Raises:
            ShapeError: shapes, types or ids that are not these.
        """
        clean, real = clean_source(ids, lengths, self.config.size)
        self.rows(torch.arange(clean.shape[0], device=clean.device), start=True)
        padded = padding_of(lengths, real)
        mask = None if padded is None else Lengths(padded)
        x_BSM = self.dropout(self._embed(self._blur(clean)))
        if self.recurrent is not None:
            states = self.dropout(recurrence.run(self.recurrent, x_BSM, lengths)[0])
            x_BSM = states + x_BSM if self.config.residual else states
        for block in self.blocks:
            x_BSM = block(x_BSM, mask)
        return torch.where(real[..., None], self.norm(x_BSM), 0), mask

    def _blur(self, ids: Tensor) -> Tensor:
        """Read some tokens as unknown, in training."""
        share = self.config.word_dropout
        if not self.training or not share:
            return ids
        return torch.where(torch.rand(ids.shape, device=ids.device) < share, self.unknown, ids)

    def _embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embed(ids)
        if not len(self.blocks):
            return x
        width = self.config.width
        position = sinusoidal(ids.shape[1], width, device=x.device, dtype=x.dtype)
        placed: Tensor = x * width**0.5 + position
        return placed


@final
class WideScores(nn.Module):
    """A linear model of the features of a text: s_l = (2 / √n) Σ_f W_fl over its n features.

    AdamW moves every weight at about the same pace; the 2 lets this part learn about as fast as a network beside it.

    Args:
        buckets: how many features there are.
        labels: how many labels.
        dropout: the share of a text's features that training leaves out.

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
            features: (B, F), int64; what stands at or after a row's count is never read.
            counts: (B,), int64.

        Returns:
            Scores (B, labels).
        """
        real_BF = torch.arange(features.shape[1], device=features.device) < counts[:, None]
        pace_B1 = (2 / counts.clamp(min=1).sqrt())[:, None].to(self.weights.weight.dtype)
        share_BF = self.dropout(real_BF * pace_B1)
        scores_BL: Tensor = (self.weights(torch.where(real_BF, features, 0)) * share_BF[..., None]).sum(1)
        return scores_BL


@final
class TextClassifier(nn.Module):
    """One label for a text: its states are pooled, and a linear layer scores the labels; a wide part adds its scores.

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
        self.pool = Pool(config.width, config.pool)
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
            features: what a wide part reads of the same texts (B, F), int64; None for a text without any.
            counts: how many features each text has (B,), int64.

        Returns:
            Scores before the softmax, (B, labels).

        Raises:
            ShapeError: shapes, types or ids that are not these; features for a model that has no wide part.
        """
        states, mask = self.reader(ids, lengths)
        scores: Tensor = self.output(self.dropout(self.pool(states, mask)))
        if features is None or counts is None:
            return scores
        if self.wide is None:
            hint = "Leave them out, or make the model with wide=BUCKETS."
            raise ShapeError(error_message("features", "none for a model without a wide part", "some", hint))
        wide: Tensor = self.wide(*_clean_features(features, counts, self.wide.weights.num_embeddings))
        return scores + wide


def _clean_features(features: Tensor, counts: Tensor, buckets: int) -> tuple[Tensor, Tensor]:
    try:
        return clean_source(features, counts, buckets)[0], counts
    except ShapeError as error:
        raise ShapeError(f"features: {error}") from None


@final
class TextTagger(nn.Module):
    """One label for each word of a text, scored from the state of the word's first piece.

    Args:
        config: its sizes; `pool` says nothing here.
        unknown: the id of the unknown token.

    Example:
        >>> model = TextTagger(ReaderConfig(size=20, labels=3, width=8))
        >>> words = torch.tensor([[0, 2, 3], [0, 1, 0]])  # pieces at which words begin
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
            ids: pieces (B, S), int64.
            lengths: (B,), int64.
            words: the place of each word's first piece (B, W), int64; any place in the padding.

        Returns:
            Scores before the softmax, (B, W, labels).

        Raises:
            ShapeError: shapes, types or ids that are not these.
        """
        states, _ = self.reader(ids, lengths)
        begins = states.gather(1, words[..., None].expand(-1, -1, states.shape[-1]))
        scores: Tensor = self.output(begins)
        return scores
