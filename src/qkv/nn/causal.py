"""A block whose positions see themselves and what came before: all at once, or a few at a time with a cache."""

from typing import final

from torch import Tensor, nn

from qkv.masks.base import Mask
from qkv.masks.patterns import causal, window
from qkv.nn.blocks import Activation, FeedForward, Residual
from qkv.nn.decoding.cache import Memory
from qkv.nn.multihead import MultiHeadAttention


@final
class CausalBlock(nn.Module):
    """Masked self-attention, then a feed-forward layer, each behind a norm.

    Args:
        width: M.
        attention: of width M; it may have positions of its own, grouped heads, any score and normalizer.
        hidden: of the feed-forward layer.
        reach: how many positions back a position sees, itself not counted; None for all. A cache keeps no more.
        dropout: on what each part gives, in training.
        activation: of the feed-forward layer.
        bias: whether the feed-forward layer adds biases.

    Source: Vaswani et al. 2017, section 3.1, without the attention over an encoder; Radford et al. 2019, "Language
        Models are Unsupervised Multitask Learners", section 2.3 (norms first); Beltagy et al. 2020, "Longformer",
        section 3.1 (window).

    Example:
        >>> import torch
        >>> block = CausalBlock(16, MultiHeadAttention(16, 2), 32).eval()
        >>> x = torch.randn(2, 5, 16)
        >>> _, past = block.step(x[:, :3], None)
        >>> torch.allclose(block.step(x[:, 3:], past)[0], block(x)[:, 3:], atol=1e-6)
        True
    """

    def __init__(
        self,
        width: int,
        attention: MultiHeadAttention,
        hidden: int,
        *,
        reach: int | None = None,
        dropout: float = 0.0,
        activation: Activation = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.reach = reach
        self.self_attention = attention
        self.feed_forward = FeedForward(width, hidden, dropout, activation=activation, bias=bias)
        self.around_self = Residual(width, dropout)
        self.around_feed = Residual(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """All positions at once: (B, T, M) to (B, T, M)."""
        return self.step(x, None)[0]

    def step(self, x: Tensor, past: Memory | None) -> tuple[Tensor, Memory]:
        """The newest positions, each seeing itself and those before.

        Args:
            x: (B, N, M).
            past: keys and values of the positions before; None at the start.

        Returns:
            (B, N, M), and the keys and values that a later position may see.
        """
        query, memory = self.self_attention.extend(self.around_self.before(x), past)
        update = self.self_attention.attend(query, memory, mask=self._mask(x.shape[1], memory.length))
        out: Tensor = self.around_feed(self.around_self.after(x, update), self.feed_forward)
        return out, memory if self.reach is None else memory.last(self.reach)

    def _mask(self, new: int, known: int) -> Mask | None:
        """The new positions are the last of those that are known."""
        if self.reach is not None and known > self.reach + 1:
            return window(self.reach, 0, offset=known - new)
        # A single newest position sees everything there is.
        return causal(offset=known - new) if new > 1 else None
