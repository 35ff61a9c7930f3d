"""The masked language model: BERT, RoBERTa, DistilBERT."""

from typing import final

from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.models.parts import TransformerParts
from qkv.models.reader import Reader
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
class MaskedLanguageModel(nn.Module):
    """A reader and an output layer, which predicts the tokens that are masked.

    Args:
        parts: its parts.

    Source: Devlin et al. 2019, "BERT"; Liu et al. 2019, "RoBERTa"; Sanh et al. 2019, "DistilBERT".

    Example:
        >>> import torch
        >>> parts = TransformerParts(20, 16, 4, 4, 4, 32, 2, kinds=2, masked_head=True, norms=NormParts(place="after"))
        >>> MaskedLanguageModel(parts)(torch.randint(4, 20, (2, 6)), torch.tensor([6, 4])).shape
        torch.Size([2, 6, 20])
    """

    def __init__(self, parts: TransformerParts) -> None:
        super().__init__()
        self.config = self.parts = parts
        self.reader = Reader(parts)
        activation = parts.head_activation or parts.activation
        self.head = MaskedHead(parts.width, activation, parts.norms) if parts.masked_head else nn.Identity()
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
