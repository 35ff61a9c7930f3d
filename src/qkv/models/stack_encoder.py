"""A reader with the parts of a published one (BERT, RoBERTa, DistilBERT): it fills masks, or labels."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError
from qkv.linalg.layers import apply_layer
from qkv.models.checks import clean_source, padding_of
from qkv.models.encoders import encode
from qkv.models.parts import TransformerParts
from qkv.nn.decoding.cache import BatchRows
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import Activation, activated, activation_of
from qkv.nn.norms import NormParts


@final
class MaskedHead(nn.Module):
    """norm(f(W x + b)): what comes before the output layer of a masked language model.

    Args:
        width: M.
        activation: f.
        norms: the kind of the norm.

    Source: Devlin et al. 2019, "BERT", section 3.1.
    """

    def __init__(self, width: int, activation: Activation, norms: NormParts) -> None:
        super().__init__()
        self.activate = activation_of(activation)
        self.linear = nn.Linear(width, width)
        self.norm = norms.build(width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., M) to (..., M)."""
        out: Tensor = self.norm(activated(self.activate, self.linear, x))
        return out


@final
class PooledHead(nn.Module):
    """f(W x + b) of the first token's state x: what comes before the output layer of a classifier.

    Args:
        width: M.
        activation: f, "tanh" or "relu".
        dropout: on the result.

    Source: Devlin et al. 2019, "BERT", section 4.1.
    """

    def __init__(self, width: int, activation: Literal["tanh", "relu"], dropout: float) -> None:
        super().__init__()
        self.activate = torch.tanh if activation == "tanh" else torch.relu
        self.linear = nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, M) to (B, M)."""
        out: Tensor = self.dropout(self.activate(apply_layer(self.linear, x[:, 0])))
        return out


@final
class StackReader(nn.Module):
    """A stack of blocks in which each token sees all of its row, and an output layer.

    It predicts the tokens that are masked, or scores labels of the tokens or of the whole text.

    Args:
        config: its parts.

    Source: Devlin et al. 2019, "BERT"; Liu et al. 2019, "RoBERTa"; Sanh et al. 2019, "DistilBERT".

    Example:
        >>> config = TransformerParts(20, 16, 4, 4, 4, 32, 2, kinds=2, masked_head=True, norms=NormParts(place="after"))
        >>> StackReader(config)(torch.randint(4, 20, (2, 6)), torch.tensor([6, 4])).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, config: TransformerParts) -> None:
        super().__init__()
        self.config = self.parts = config
        self.embed = nn.Embedding(config.size, config.width)
        self.positions = config.positions.embedding(config.width, config.context)
        self.kinds = nn.Embedding(config.kinds, config.width) if config.kinds else None
        self.embed_norm = config.norms.build(config.width) if config.norms.embedding else nn.Identity()
        self.blocks = nn.ModuleList(config.block(index) for index in range(config.layers))
        self.head = _head(config)
        self.output = nn.Linear(config.width, config.labels or config.size, bias=config.output_bias)
        self.dropout = Dropout(config.dropout)
        self.rows = BatchRows()
        for embedding in (self.embed, self.kinds):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=0.02)
        if config.tied:
            self.output.weight = self.embed.weight

    def forward(self, tokens: Tensor, lengths: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Predict each token from all of its row, as if it were masked; or score the labels.

        Args:
            tokens: ids (B, S), int64; entries at or after a row's length are never read.
            lengths: (B,), int64.
            kinds: the token types (B, S), int64; None for the first of them.

        Returns:
            Logits: of tokens (B, S, N), or of labels (B, S, L); those of padding are undefined. Of labels of a whole
            text, (B, L).

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        return apply_layer(self.output, self.head(self.states(tokens, lengths, kinds)))

    def states(self, tokens: Tensor, lengths: Tensor, kinds: Tensor | None = None) -> Tensor:
        """Return the states of the last block, (B, S, M); arguments as for `forward`."""
        ids, real = clean_source(tokens, lengths, self.config.size)
        self.rows.begin(ids)
        padded = padding_of(lengths, real)
        x = self.embed(ids) + self._kinds(ids, kinds)
        x = self.embed_norm(x if self.positions is None else self.positions(x))
        return encode(self.blocks, self.dropout(x), padded)

    def _kinds(self, ids: Tensor, kinds: Tensor | None) -> Tensor | float:
        if self.kinds is None:
            if kinds is not None:
                raise ShapeError("kinds", "None", "token types", "This model has none: omit them.")
            return 0.0
        if kinds is None:
            first: Tensor = self.kinds(ids.new_zeros(1, 1))
            return first
        if kinds.shape != ids.shape:
            got, hint = f"{tuple(kinds.shape)}", "Give one type for each token."
            raise ShapeError("kinds", f"shape {tuple(ids.shape)}", got, hint)
        found: Tensor = self.kinds(kinds)
        return found


def _head(config: TransformerParts) -> nn.Module:
    if config.pooler is not None:
        return PooledHead(config.width, config.pooler, config.dropout)
    if not config.masked_head:
        return nn.Identity()
    return MaskedHead(config.width, config.head_activation or config.activation, config.norms)
