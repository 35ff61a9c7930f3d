"""A Transformer block with the choices of published models: norms, gates, windows, and an optional second attention."""

from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor, nn

from qkv.biases import Bias
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Mask
from qkv.nn.blocks import FeedForward
from qkv.nn.decoding.cache import Memory
from qkv.nn.dropout import Dropout
from qkv.nn.gated import GatedFeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.norms import Norm, build_norm

Place = Literal["before", "after", "both", "parallel"]


@final
@dataclass(frozen=True)
class NormParts:
    """Where norms are, and which.

    Args:
        kind: "layer", "rms", or "rms_plus_one" for a gain that is stored less one.
        eps: ε.
        place: "before" or "after" each sublayer, or "both"; "parallel" is before both sublayers of a block, which then
            read the same input.
        final: whether a norm ends the stack.
        heads: whether each head's queries and keys are normed.
        embedding: whether a norm follows the embeddings.

    Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture" (before, after); Ding et al.
        2021, "CogView", section 2.4 (both: "sandwich"); Wang and Komatsuzaki 2021, "GPT-J" (parallel); Henry et al.
        2020, "Query-Key Normalization for Transformers" (heads).
    """

    kind: Norm = "layer"
    eps: float = 1e-5
    place: Place = "before"
    final: bool = True
    heads: bool = False
    embedding: bool = False

    def build(self, width: int) -> nn.Module:
        """Create one of these norms."""
        return build_norm(self.kind, width, self.eps)


@final
class SublayerResidual(nn.Module):
    """What surrounds a sublayer: norms, dropout and the sum.

    Args:
        width: M.
        norms: where norms are.
        dropout: on the output of the sublayer, in training.

    Example:
        >>> import torch
        >>> around, x = SublayerResidual(8, NormParts(place="both")), torch.randn(2, 5, 8)
        >>> around.after(x, around.before(x)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, norms: NormParts, dropout: float = 0.0) -> None:
        super().__init__()
        self.place = norms.place
        self.norm = norms.build(width)
        self.end_norm = norms.build(width) if norms.place == "both" else None
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer."""
        given: Tensor = x if self.place == "after" else self.norm(x)
        return given

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        """Add the output of the sublayer to the stream."""
        update = update if self.end_norm is None else self.end_norm(update)
        joined: Tensor = x + self.dropout(update)
        return self.norm(joined) if self.place == "after" else joined


@final
class StackBlock(nn.Module):
    """Self-attention, attention to a source if there is one, then a feed-forward layer.

    Args:
        width: M.
        attention: the self-attention, of width M.
        feed_forward: of width M.
        norms: where norms are.
        cross: the attention to the source; None for none.
        dropout: on the output of each sublayer, in training.
        reach: how many earlier positions a position sees; None for all. The cache stores no more than that.

    Source: Vaswani et al. 2017, section 3.1.

    Example:
        >>> import torch
        >>> block = StackBlock(16, MultiHeadAttention(16, 2), GatedFeedForward(16, 32), NormParts("rms"))
        >>> block.step(torch.randn(2, 5, 16), None)[0].shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        attention: MultiHeadAttention,
        feed_forward: FeedForward | GatedFeedForward,
        norms: NormParts,
        *,
        cross: MultiHeadAttention | None = None,
        dropout: float = 0.0,
        reach: int | None = None,
    ) -> None:
        super().__init__()
        self.reach = reach
        self.self_attention = attention
        self.around_self = SublayerResidual(width, norms, dropout)
        if cross is not None:
            self.cross_attention = cross
            self.around_cross = SublayerResidual(width, norms, dropout)
        self.feed_forward = feed_forward
        self.around_feed = SublayerResidual(width, norms, dropout)

    def step(
        self,
        x: Tensor,
        past: Memory | None,
        mask: Mask | Tensor | None = None,
        *,
        bias: Bias | Tensor | None = None,
        source: Memory | None = None,
        source_mask: Mask | None = None,
        session: DecodingSession | None = None,
    ) -> tuple[Tensor, Memory]:
        """Compute the newest positions.

        Args:
            x: (B, N, M).
            past: keys and values of earlier positions; None initially.
            mask: which of all positions each new one sees.
            bias: of the self-attention's scores.
            source: keys and values of the source, from `cross_attention.project_memory`.
            source_mask: hides the source's padding.
            session: keeps packed weights for a decoding.

        Returns:
            (B, N, M), and the keys and values that a later position can see.
        """
        query, memory = self.self_attention.extend(self.around_self.before(x), past, session)
        update = self.self_attention.attend(query, memory, mask=mask, bias=bias, session=session)
        read = x
        x = self.around_self.after(x, update)
        if source is not None:
            query = self.cross_attention.project_query(self.around_cross.before(x), session)
            x = self.around_cross.after(
                x, self.cross_attention.attend(query, source, mask=source_mask, session=session)
            )
        given = self.around_feed.before(read if self.around_feed.place == "parallel" else x)
        out = self.around_feed.after(x, self.feed_forward(given, session))
        return out, memory if self.reach is None else memory.last(self.reach)
