"""Self-attention over a source, also for a recurrent decoder."""

from typing import Literal, final

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Mask
from qkv.masks.patterns import Lengths, window
from qkv.models.parts import PositionParts
from qkv.nn.blocks import TransformerBlock
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.values.rows import real_positions


@final
class SelfAttentionEncoder(nn.Module):
    """Transformer blocks over the source, for a recurrent decoder.

    Args:
        width: width of embeddings and states.
        heads: heads of every attention, a divisor of the width.
        layers: number of blocks.
        mechanism: score and normalizer of every attention.
        positions: how positions are encoded.
        reach: how many positions to either side an attention sees; None for all.
        dropout: on the embeddings and on the output of each sublayer.

    Source: Chen et al. 2018, "The Best of Both Worlds", section 5 (Transformer encoder, recurrent decoder).

    Example:
        >>> encoder = SelfAttentionEncoder(8, heads=2, layers=1, mechanism=MechanismConfig())
        >>> states, summary = encoder(torch.randn(3, 5, 8), torch.tensor([5, 2, 0]), None)
        >>> states.shape, summary.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]))
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int,
        mechanism: MechanismConfig,
        *,
        positions: Literal["sinusoidal", "rotary", "alibi", "relative", "none"] = "sinusoidal",
        reach: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        encoded = PositionParts(positions)
        self.positions = encoded.embedding(width)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                MultiHeadAttention(width, heads, score=mechanism, positions=encoded.attended(heads)),
                FeedForward(width, 4 * width, dropout),
                dropout=dropout,
                reach=reach,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(
        self, x_BSE: Tensor, lengths: Tensor, padded: Tensor | None, session: DecodingSession | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode embeddings.

        Args:
            x_BSE: embeddings (B, S, E) of about unit length.
            lengths: real positions (B,), int64.
            padded: the same; None if there is no padding.
            session: keeps packed weights for a decoding.

        Returns:
            States (B, S, E), arbitrary in the padding; and the mean of the real ones (B, E), 0 for an empty row.
        """
        x_BSE = x_BSE * x_BSE.shape[-1] ** 0.5
        x_BSE = self.dropout(x_BSE if self.positions is None else self.positions(x_BSE))
        states: Tensor = self.norm(encode(self.blocks, x_BSE, padded, session=session))
        real = real_positions(lengths, states.shape[1])
        total = torch.where(real[..., None], states, 0).sum(1)
        return states, total / lengths.clamp(min=1)[:, None]


def encode(
    blocks: nn.ModuleList,
    x_BSM: Tensor,
    lengths: Tensor | None,
    *,
    bias: Bias | Tensor | None = None,
    session: DecodingSession | None = None,
) -> Tensor:
    """Run the blocks of an encoder one after another.

    Args:
        blocks: of `qkv.nn.TransformerBlock`; one with a `reach` sees so many positions to either side.
        x_BSM: embeddings (B, S, M), with positions.
        lengths: (B,); None if there is no padding.
        bias: of all self-attentions' scores.
        session: keeps packed weights for a decoding.

    Returns:
        (B, S, M), arbitrary in the padding.
    """
    masks: dict[int | None, Mask | None] = {}  # by how far a block sees
    for block in blocks:
        reach: int | None = block.reach  # type: ignore[assignment]
        if reach not in masks:
            masks[reach] = self_attention_mask(lengths, reach)
        x_BSM = block(x_BSM, masks[reach], bias=bias, session=session)
    return x_BSM


def self_attention_mask(lengths: Tensor | None, reach: int | None) -> Mask | None:
    """Return the mask of self-attention over rows of some lengths, within a window.

    Args:
        lengths: (B,); None if there is no padding.
        reach: how many positions to either side are seen; None for all.

    Example:
        >>> self_attention_mask(None, None) is None, type(self_attention_mask(None, 1)).__name__
        (True, 'Window')
    """
    padding = None if lengths is None else Lengths(lengths)
    if reach is None:
        return padding
    return window(reach, reach) if padding is None else padding & window(reach, reach)
