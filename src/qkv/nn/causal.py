"""A causal Transformer block: all positions at once, or a few at a time with a cache."""

from typing import final

from torch import Tensor, nn

from qkv.masks.base import Mask
from qkv.masks.patterns import causal, window
from qkv.nn.blocks import Activation, FeedForward, Residual
from qkv.nn.decoding.cache import Memory
from qkv.nn.multihead import MultiHeadAttention


@final
class CausalBlock(nn.Module):
    """Masked self-attention, then a feed-forward layer, each after a norm.

    Args:
        width: M.
        attention: of width M; with any positions, grouped heads, score and normalizer.
        hidden: width of the feed-forward layer.
        reach: how many earlier positions a position sees; None for all. The cache stores no more than that.
        dropout: on the output of each sublayer, in training.
        activation: activation of the feed-forward layer.
        bias: whether the feed-forward layer has biases.

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
        """Compute all positions at once: (B, T, M) to (B, T, M)."""
        return self.step(x, None)[0]

    def step(self, x: Tensor, past: Memory | None) -> tuple[Tensor, Memory]:
        """Compute the newest positions, each of which sees itself and earlier ones.

        Args:
            x: (B, N, M).
            past: keys and values of earlier positions; None initially.

        Returns:
            (B, N, M), and the keys and values that a later position can see.
        """
        query, memory = self.self_attention.extend(self.around_self.before(x), past)
        update = self.self_attention.attend(query, memory, mask=self._mask(x.shape[1], memory.length))
        out: Tensor = self.around_feed(self.around_self.after(x, update), self.feed_forward)
        return out, memory if self.reach is None else memory.last(self.reach)

    def _mask(self, new: int, known: int) -> Mask | None:
        """Return the mask of the new positions, which are the last of all cached ones."""
        if self.reach is not None and known > self.reach + 1:
            return window(self.reach, 0, offset=known - new)
        # A single newest position sees everything.
        return causal(offset=known - new) if new > 1 else None
