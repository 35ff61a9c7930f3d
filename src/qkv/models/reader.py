"""Models that read a text, trained here or published: a label for all of it, one for each word, or masked words."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError
from qkv.linalg.matmul import apply_layer
from qkv.masks.base import Mask
from qkv.masks.patterns import Lengths
from qkv.models import recurrence
from qkv.models.checks import (
    clean_source,
    padding_of,
)
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.encoders import encode
from qkv.models.first_weights import initialize_cells, initialize_embeddings
from qkv.models.parts import TransformerParts, scaled
from qkv.nn.choices import Activation
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import activated, activation_of
from qkv.nn.norms import NormParts
from qkv.nn.pooling import Pool
from qkv.nn.scores import initialize_linear
from qkv.values.rows import real_positions


@final
class Reader(nn.Module):
    """Embeddings and an encoder, trained here or published.

    Args:
        config: its sizes, or all of its parts.
        unknown: the id that word dropout substitutes for a token.

    Source: Vaswani et al. 2017, section 3.1 (transformer); Schuster and Paliwal 1997 (bidirectional RNN); Devlin et al.
        2019, "BERT"; Liu et al. 2019, "RoBERTa"; Sanh et al. 2019, "DistilBERT"; word dropout: Iyyer et al. 2015, "Deep
        Unordered Composition Rivals Syntactic Methods", section 3.1.
    """

    def __init__(self, config: ReaderConfig | TransformerParts, unknown: int = 0) -> None:
        super().__init__()
        self.parts, self.unknown = config.parts, unknown
        parts, cell = self.parts, recurrence.CELLS.get(self.parts.recurrent or "")
        self.rows = BatchRows()
        self.embed = nn.Embedding(parts.size, parts.width)
        self.positions = parts.positions.embedding(parts.width, parts.context)
        self.kinds = nn.Embedding(parts.kinds, parts.width) if parts.kinds else None
        self.embed_norm = parts.norms.build(parts.width) if parts.norms.embedding else nn.Identity()
        self.recurrent = (
            None
            if cell is None
            else cell(parts.width, parts.width // 2, parts.layers, batch_first=True, bidirectional=True)
        )
        blocks = parts.layers if cell is None else 0
        self.blocks = nn.ModuleList(parts.block(index) for index in range(blocks))
        self.norm = parts.norms.build(parts.width) if blocks and parts.norms.final else nn.Identity()
        self.dropout = Dropout(parts.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize embeddings and recurrent parameters; blocks initialize their own."""
        deviation = 0.1 if self.recurrent is not None else self.parts.width**-0.5
        initialize_embeddings(deviation, self.embed, self.kinds)
        if self.recurrent is not None:
            initialize_cells(self.recurrent.named_parameters(), self.parts.width // 2, by_gate=True)

    def forward(self, ids: Tensor, lengths: Tensor, kinds: Tensor | None = None) -> tuple[Tensor, Lengths | None]:
        """Encode texts.

        Args:
            ids: tokens (B, S), int64; entries at or after a row's length are never read.
            lengths: (B,), int64.
            kinds: the token types (B, S), int64, of a model that has some; None for the first of them.

        Returns:
            States (B, S, M), 0 in the padding, and the padding mask (None if there is no padding).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        clean, real = clean_source(ids, lengths, self.parts.size)
        self.rows.begin(clean)
        padded = padding_of(lengths, clean.shape[1])
        mask = None if padded is None else Lengths(padded)
        x_BSM = self.dropout(self._embed(self._drop_words(clean), kinds))
        if self.recurrent is not None:
            states = self.dropout(recurrence.run(self.recurrent, x_BSM, lengths)[0])
            x_BSM = states + x_BSM if self.parts.residual else states
        x_BSM = encode(self.blocks, x_BSM, padded)
        return torch.where(real[..., None], self.norm(x_BSM), 0), mask

    def _drop_words(self, ids: Tensor) -> Tensor:
        """Replace some tokens by unknown, in training."""
        share = self.parts.word_dropout
        if not self.training or not share:
            return ids
        return torch.where(torch.rand(ids.shape, device=ids.device) < share, self.unknown, ids)

    def _embed(self, ids: Tensor, kinds: Tensor | None) -> Tensor:
        x = scaled(self.embed(ids), self.parts.embed_scale)
        if self.kinds is not None:
            x = x + self.kinds(_clean_kinds(ids, kinds))
        elif kinds is not None:
            raise ShapeError("kinds", "None", "token types", "This model has none: omit them.")
        embedded: Tensor = self.embed_norm(x if self.positions is None else self.positions(x))
        return embedded


def _clean_kinds(ids: Tensor, kinds: Tensor | None) -> Tensor:
    if kinds is None:
        return ids.new_zeros(1, 1)
    if kinds.shape != ids.shape:
        got, hint = f"{tuple(kinds.shape)}", "Give one type for each token."
        raise ShapeError("kinds", f"shape {tuple(ids.shape)}", got, hint)
    return kinds


@final
class FirstTokenPool(nn.Module):
    """f(W x + b) of the first token's state x, or the state itself, which stands for the whole text.

    Args:
        width: M.
        activation: f, "tanh" or "relu"; "first" for the state itself.

    Source: Devlin et al. 2019, "BERT", section 4.1.
    """

    def __init__(self, width: int, activation: Literal["tanh", "relu", "first"]) -> None:
        super().__init__()
        self.activate = torch.tanh if activation == "tanh" else torch.relu
        self.linear = None if activation == "first" else nn.Linear(width, width)

    def forward(self, states: Tensor, mask: Mask | None = None) -> Tensor:
        """(B, S, M) to (B, M)."""
        first = states[:, 0]
        return first if self.linear is None else self.activate(apply_layer(self.linear, first))


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
        real_BF = real_positions(counts, features.shape[1])
        weights_BFL: Tensor = self.weights(torch.where(real_BF, features, 0))
        factor_B1 = (2 / counts.clamp(min=1).sqrt())[:, None].to(weights_BFL.dtype)
        factor_BF = self.dropout(real_BF * factor_B1)
        scores_BL: Tensor = (weights_BFL * factor_BF[..., None]).sum(1)
        return scores_BL


@final
class TextClassifier(nn.Module):
    """Labels a text: pools its states, scores the labels by a linear layer, and adds the scores of a wide part, if any.

    Args:
        config: its sizes, or all of its parts.
        unknown: the id of the unknown token.

    Example:
        >>> model = TextClassifier(ClassifierConfig(size=20, labels=3, width=8))
        >>> model(torch.randint(4, 20, (2, 5)), torch.tensor([5, 3])).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: ClassifierConfig | TransformerParts, unknown: int = 0) -> None:
        super().__init__()
        self.config = config
        self.parts = parts = config.parts
        self.reader = Reader(config, unknown)
        self.pool: Pool | FirstTokenPool
        if isinstance(config, TransformerParts):
            pool, self.buckets = parts.pooler or "tanh", None
            self.pool = Pool(parts.width, "mean") if pool == "mean" else FirstTokenPool(parts.width, pool)
        else:
            self.pool, self.buckets = Pool(config.width, config.pool, config.pooling), config.wide
        self.head = head_of(parts)
        self.output = nn.Linear(parts.width, parts.labels)
        self.dropout = Dropout(parts.dropout)
        self.wide = None if self.buckets is None else WideScores(self.buckets, parts.labels, parts.dropout)
        initialize_linear(self.output)

    @property
    def attention_layer(self) -> str | None:
        """The name of the attention that pools the tokens; None where the first token stands for all."""
        return "pool.attention" if isinstance(self.pool, Pool) else None

    def forward(
        self,
        ids: Tensor,
        lengths: Tensor,
        features: Tensor | None = None,
        counts: Tensor | None = None,
        *,
        kinds: Tensor | None = None,
    ) -> Tensor:
        """Score the labels of texts.

        Args:
            ids: tokens (B, S), int64.
            lengths: (B,), int64.
            features: features of the same texts for a wide part (B, F), int64; None for none.
            counts: number of features of each text (B,), int64.
            kinds: token types, as for `Reader`.

        Returns:
            Logits, (B, labels).

        Raises:
            ShapeError: shapes, types or ids that are not these; or features are given to a model without a wide part.
        """
        states, mask = self.reader(ids, lengths, kinds)
        scores: Tensor = apply_layer(self.output, self.dropout(self.head(self.pool(states, mask))))
        if features is None or counts is None:
            return scores
        if self.wide is None:
            hint = "Omit them, or create the model with wide=BUCKETS."
            raise ShapeError("features", "none for a model without a wide part", "some", hint)
        wide: Tensor = self.wide(*_clean_features(features, counts, self.buckets or 0))
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
        config: its sizes, or all of its parts.
        unknown: the id of the unknown token.

    Example:
        >>> model = TextTagger(ReaderConfig(size=20, labels=3, width=8))
        >>> words = torch.tensor([[0, 2, 3], [0, 1, 0]])  # tokens at which words begin
        >>> model(torch.randint(4, 20, (2, 5)), torch.tensor([5, 3]), words).shape
        torch.Size([2, 3, 3])
    """

    def __init__(self, config: ReaderConfig | TransformerParts, unknown: int = 0) -> None:
        super().__init__()
        self.config = config
        self.parts = parts = config.parts
        self.reader = Reader(config, unknown)
        self.head = head_of(parts)
        self.output = nn.Linear(parts.width, parts.labels)
        initialize_linear(self.output)

    def forward(
        self, ids: Tensor, lengths: Tensor, words: Tensor | None = None, *, kinds: Tensor | None = None
    ) -> Tensor:
        """Score the labels of words.

        Args:
            ids: tokens (B, S), int64.
            lengths: (B,), int64.
            words: the index of each word's first token (B, W), int64; any index in the padding; None for all tokens.
            kinds: token types, as for `Reader`.

        Returns:
            Logits, (B, W, labels).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        states, _ = self.reader(ids, lengths, kinds)
        if words is not None:
            states = states.gather(1, words[..., None].expand(-1, -1, states.shape[-1]))
        return apply_layer(self.output, self.head(states))


@final
class MaskedHead(nn.Module):
    """norm(f(W x + b)): what comes before the output layer of a masked language model.

    Args:
        width: M.
        activation: f.
        norms: the kind of the norm.
        bias: whether there is b.

    Source: Devlin et al. 2019, "BERT", section 3.1.
    """

    def __init__(self, width: int, activation: Activation, norms: NormParts, *, bias: bool = True) -> None:
        super().__init__()
        self.activate = activation_of(activation)
        self.linear = nn.Linear(width, width, bias=bias)
        self.norm = norms.build(width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., M) to (..., M)."""
        out: Tensor = self.norm(activated(self.activate, self.linear, x))
        return out


def head_of(parts: TransformerParts) -> nn.Module:
    """Create what comes before the output layer."""
    if not parts.masked_head:
        return nn.Identity()
    return MaskedHead(parts.width, parts.head_activation or parts.activation, parts.norms, bias=parts.head_bias)


@final
class MaskedLanguageModel(nn.Module):
    """A reader and an output layer, which predicts the tokens that are masked.

    Args:
        parts: its parts.

    Source: Devlin et al. 2019, "BERT"; Liu et al. 2019, "RoBERTa"; Sanh et al. 2019, "DistilBERT"; Warner et al. 2024,
        "Smarter, Better, Faster, Longer" (ModernBERT).

    Example:
        >>> parts = TransformerParts(20, 16, 4, 4, 4, 32, 2, kinds=2, masked_head=True, norms=NormParts(place="after"))
        >>> MaskedLanguageModel(parts)(torch.randint(4, 20, (2, 6)), torch.tensor([6, 4])).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, parts: TransformerParts) -> None:
        super().__init__()
        self.config = self.parts = parts
        self.reader = Reader(parts)
        self.head = head_of(parts)
        self.output = nn.Linear(parts.width, parts.size, bias=parts.output_bias)
        if parts.output_bias:
            nn.init.zeros_(self.output.bias)
        if parts.tied:
            self.output.weight = self.reader.embed.weight

    def forward(self, tokens: Tensor, lengths: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Predict each token from all of its row, as if it were masked.

        Args:
            tokens: ids (B, S), int64; entries at or after a row's length are never read.
            lengths: (B,), int64.
            kinds: the token types (B, S), int64; None for the first of them.

        Returns:
            Logits (B, S, N); those of padding are undefined.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        states, _ = self.reader(tokens, lengths, kinds)
        return apply_layer(self.output, self.head(states))
