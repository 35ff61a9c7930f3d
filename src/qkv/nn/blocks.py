"""The Transformer block: of encoders, decoders and language models, trained here or published."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.errors import ConfigError, MaskError, ShapeError, UnsupportedError
from qkv.linalg.session import DecodingSession
from qkv.masks.base import Inverse, Mask
from qkv.masks.patterns import causal, lengths, window
from qkv.nn.decoding.cache import MaskedMemory, Memory
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward, GatedFeedForward
from qkv.nn.inputs import expect_counts, expect_input, expect_integers, expect_sizes
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.norms import PRE_NORM, NormParts
from qkv.shapes import show
from qkv.values.checked import checked, explained
from qkv.values.hooks import through_hooks
from qkv.values.sharded import expect_whole, is_sharded

_SUM = "The output of a sublayer is added to its input, element by element."


@checked
@final
class Residual(nn.Module):
    """The residual connection, norms and dropout around a sublayer f.

    It computes x + f(norm(x)), norm(x + f(x)) or x + norm(f(norm(x))).

    Args:
        width: M.
        norms: which, and where.
        dropout: on the output of f, in training.

    Source: Vaswani et al. 2017, section 3.1 (after); Xiong et al. 2020, "On Layer Normalization in the Transformer
        Architecture" (before); Ding et al. 2021, "CogView", section 2.4 (both).

    Example:
        >>> residual, x = Residual(8, NormParts(place="both")), torch.randn(2, 5, 8)
        >>> residual.after(x, residual.before(x)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, width: int, norms: NormParts = PRE_NORM, dropout: float = 0.0) -> None:
        super().__init__()
        expect_sizes(width=width)
        self.width, self.place = width, norms.place
        self.norm = norms.build(width)
        self.end_norm = norms.build(width) if norms.place == "both" else None
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """Return the input of f.

        Raises:
            ShapeError, DtypeError: x does not fit the layer.
        """
        expect_input("x", x, None, self.width, rank=1)
        normed: Tensor = x if self.place == "after" else self.norm(x)
        return normed

    def after(self, x: Tensor, update: Tensor) -> Tensor:
        """Add the output of f to the residual stream.

        Raises:
            ShapeError, DtypeError: x or the update does not fit the layer.
        """
        expect_input("update", update, None, self.width, rank=1)
        if x.shape != update.shape or x.dtype != update.dtype:
            expect_input("x", x, None, self.width, rank=1)
        if x.shape != update.shape:
            raise ShapeError("update", f"shape {show(tuple(x.shape))}, that of x", show(tuple(update.shape)), _SUM)
        update = update if self.end_norm is None else self.end_norm(update)
        joined: Tensor = x + self.dropout(update)
        return self.norm(joined) if self.place == "after" else joined


@explained
@final
@dataclass(frozen=True, eq=False)
class BlockCache:
    """What a block keeps between two steps.

    Args:
        past: keys and values of the sequence so far; None initially.
        memory: keys and values of the source; None without one.
        second: those of a second source, if the block reads one.
    """

    past: Memory | None = None
    memory: Memory | None = None
    second: MaskedMemory | None = None

    def select(self, rows: Tensor) -> "BlockCache":
        """Select rows of the batch."""
        past, memory, second = (
            None if part is None else part.select(rows) for part in (self.past, self.memory, self.second)
        )
        return BlockCache(past, memory, second)  # type: ignore[arg-type]


_EMPTY = BlockCache()
_TAKE_SESSION = FeedForward, GatedFeedForward
"""A layer that a user put in their place takes one argument."""


@checked
@final
class TransformerBlock(nn.Module):
    """Self-attention, attention to a source if there is one, then a feed-forward layer.

    A call computes a block of an encoder, in which each position sees all; `step` a block of a decoder or a language
    model, in which each position sees itself and earlier ones.

    Args:
        attention: the self-attention, of width M.
        feed_forward: of width M.
        norms: which, and where.
        cross: the attention to the source; None for none.
        second: the attention to a second source; the outputs of both are added.
        dropout: on the output of each sublayer, in training.
        reach: how many earlier positions a position sees; None for all. The cache stores no more than that.

    Source: Vaswani et al. 2017, section 3.1; Radford et al. 2019, "Language Models are Unsupervised Multitask
        Learners", section 2.3 (no source); Beltagy et al. 2020, "Longformer", section 3.1 (window); two sources:
        Libovický et al. 2018, "Input Combination Strategies for Multi-Source Transformer Decoder", section 3,
        "parallel".

    Example:
        >>> encoder = TransformerBlock(MultiHeadAttention(16, 2), FeedForward(16, 32))
        >>> decoder = TransformerBlock(
        ...     MultiHeadAttention(16, 2), GatedFeedForward(16, 32), NormParts("rms"), cross=MultiHeadAttention(16, 2)
        ... )
        >>> memory = encoder(torch.randn(2, 7, 16))
        >>> out, cache = decoder.step(torch.randn(2, 5, 16), decoder.begin(memory))
        >>> out.shape, cache.past.length
        (torch.Size([2, 5, 16]), 5)
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward | GatedFeedForward,
        norms: NormParts = PRE_NORM,
        *,
        cross: MultiHeadAttention | None = None,
        second: MultiHeadAttention | None = None,
        dropout: float = 0.0,
        reach: int | None = None,
    ) -> None:
        super().__init__()
        if second is not None and cross is None:
            hint = "The outputs of both attentions are added: give cross= too."
            raise ConfigError("second", "an attention to a first source beside it", "none", hint)
        expect_counts(**({} if reach is None else {"reach": reach}))
        width, self.reach = attention.width, reach
        self.self_attention = attention
        self.second_attention = second
        self.cross_attention = cross
        self.feed_forward = feed_forward
        self.around_self = Residual(width, norms, dropout)
        self.around_cross = None if cross is None else Residual(width, norms, dropout)
        self.around_feed = Residual(width, norms, dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | Tensor | None = None,
        session: DecodingSession | None = None,
    ) -> Tensor:
        """Compute all positions, each of which sees all: (B, S, M) to (B, S, M).

        Args:
            x: (B, S, M).
            mask: hides padding.
            bias: of the self-attention's scores.
            session: keeps packed weights for a decoding.
        """
        update = self.self_attention(self.around_self.before(x), mask=mask, bias=bias, session=session)
        return self._after_attention(x, update, _EMPTY, None, session)

    def begin(
        self, memory: Tensor, session: DecodingSession | None = None, second: tuple[Tensor, Tensor] | None = None
    ) -> BlockCache:
        """Project the source once, for all steps.

        Args:
            memory: the source, (B, S, M).
            session: keeps packed weights.
            second: the second source (B, R, M), and which of its positions are visible, bool (B, R).

        Raises:
            UnsupportedError: the block attends to no source.
        """
        if self.cross_attention is None:
            raise UnsupportedError("memory", "a block that attends to a source", "one that does not", "Give it cross=.")
        source = self.cross_attention.project_memory(memory, session=session)
        if second is None:
            return BlockCache(None, source)
        if self.second_attention is None:
            got = "one that attends to one"
            raise UnsupportedError("second", "a block that attends to two sources", got, "Give it second=.")
        states, real = second
        expect_input("second", states, None, self.second_attention.projections.widths[1], rank=3)
        if not isinstance(real, Tensor) or real.dtype != torch.bool or real.shape != states.shape[:2]:
            got = (
                f"{real.dtype} of shape {show(tuple(real.shape))}" if isinstance(real, Tensor) else type(real).__name__
            )
            expected = f"states and a bool tensor of shape {show(tuple(states.shape[:2]))}"
            raise MaskError("second", expected, got, "True where a position may be seen.")
        other = self.second_attention.project_memory(second[0], session=session)
        return BlockCache(None, source, MaskedMemory(other, second[1]))

    def step(
        self,
        x: Tensor,
        cache: BlockCache = _EMPTY,
        memory_mask: Mask | None = None,
        visible: Tensor | None = None,
        session: DecodingSession | None = None,
        *,
        parted: int = 0,
        padding: Tensor | None = None,
        bias: Bias | Tensor | None = None,
    ) -> tuple[Tensor, BlockCache]:
        """Compute the newest positions, each of which sees itself and earlier ones, within the hooks of this block.

        Args:
            x: (B, N, M).
            cache: what was kept of the positions before.
            memory_mask: hides source padding.
            visible: which positions each new one sees, bool (B, N, K), K the kept positions and the N new ones; for new
                positions that are alternatives, as in a beam. None if they follow one another.
            session: keeps packed weights, and memory for keys and values.
            parted: with `visible`, the position from which the cache holds N keys per position, one per alternative.
            padding: positions of padding at the left of each row (B,), which nothing sees; None for none.
            bias: of the self-attention's scores.

        Returns:
            (B, N, M), and what a later position needs.
        """
        options = {"session": session, "parted": parted, "padding": padding, "bias": bias}
        return through_hooks(self, self._step, x, cache, memory_mask, visible, **options)

    def _step(
        self,
        x: Tensor,
        cache: BlockCache,
        memory_mask: Mask | None,
        visible: Tensor | None,
        session: DecodingSession | None,
        parted: int,
        padding: Tensor | None,
        bias: Bias | Tensor | None,
    ) -> tuple[Tensor, BlockCache]:
        attention, key_positions, newest = self.self_attention, None, None
        expect_input("x", x, None, self.around_self.width, rank=3)
        if visible is not None:
            _expect_visible(visible, x, cache)
        if padding is not None:
            expect_integers("padding", padding, (x.shape[0],), "(B,)")
        if visible is not None and attention.positions is not None:
            key_positions, newest = fork_positions(visible, parted)
        query, past = attention.extend(self.around_self.before(x), cache.past, session, newest)
        update = attention.attend(
            query,
            past,
            mask=self._visible(past, x.shape[1], visible, padding),
            bias=bias,
            session=session,
            indices=None if key_positions is None else key_positions[past.first :],
        )
        out = self._after_attention(x, update, cache, memory_mask, session)
        if self.reach is not None and visible is None:
            past = past.last(self.reach)
        return out, BlockCache(past, cache.memory, cache.second)

    def _after_attention(
        self,
        x: Tensor,
        update: Tensor,
        cache: BlockCache,
        memory_mask: Mask | None,
        session: DecodingSession | None,
    ) -> Tensor:
        """Return the block's output, from its input and that of the self-attention."""
        joined = self.around_self.after(x, update)
        joined = self._with_source(joined, cache, memory_mask, session)
        residual, layer = self.around_feed, self.feed_forward
        normed = residual.before(x if residual.place == "parallel" else joined)
        return residual.after(joined, layer(normed, session) if isinstance(layer, _TAKE_SESSION) else layer(normed))

    def _with_source(
        self, x: Tensor, cache: BlockCache, memory_mask: Mask | None, session: DecodingSession | None
    ) -> Tensor:
        """Add the output of the attention to the source, if there is one."""
        residual, attention, memory = self.around_cross, self.cross_attention, cache.memory
        if residual is None or attention is None or memory is None:
            return x
        normed = residual.before(x)
        query = attention.project_query(normed, session)
        update = attention.attend(query, memory, mask=memory_mask, session=session)
        other, second = self.second_attention, cache.second
        if other is not None and second is not None:
            query = other.project_query(normed, session)
            update = update + other.attend(query, second.memory, mask=second.mask, session=session)
        return residual.after(x, update)

    def _visible(
        self, past: Memory, count: int, visible: Tensor | None, padding: Tensor | None
    ) -> Mask | Tensor | None:
        """Return the mask of the newest positions over all keys that are kept."""
        expect_whole("cache", past.length == count and visible is None and padding is None, "a cache or padding")
        if visible is not None:
            visible = visible[..., past.first :]
            # The keys that a position sees are in order of time, so the last ones are the nearest.
            recent = (
                visible if self.reach is None else visible & (visible.flip(-1).cumsum(-1).flip(-1) <= self.reach + 1)
            )
            return recent[:, None]
        mask: Mask | None = None
        if self.reach is not None and (past.length > self.reach + 1 or is_sharded()):
            mask = window(self.reach, 0, offset=past.length - count)
        elif count > 1 or is_sharded():
            # A single newest position sees everything, unless other processes have later ones.
            mask = causal(offset=past.length - count)
        if padding is None:
            return mask
        # The first positions that are computed can all be padding.
        real = Inverse(lengths((padding - past.first).clamp(0, past.length)))
        return real if mask is None else mask & real


def _expect_visible(visible: Tensor, x: Tensor, cache: BlockCache) -> None:
    """Check which positions each of the newest ones sees."""
    shape = (*x.shape[:2], x.shape[1] + (0 if cache.past is None else cache.past.end))
    if (
        not isinstance(visible, Tensor)
        or visible.dtype != torch.bool
        or visible.ndim != 3
        or visible.shape[1:] != shape[1:]
    ):
        got = (
            f"{visible.dtype} of shape {show(tuple(visible.shape))}"
            if isinstance(visible, Tensor)
            else type(visible).__name__
        )
        hint = "It has a column for each position that was kept, and for each new one."
        raise MaskError("visible", f"bool of shape (B, N, K), here {show(shape)}", got, hint)


def fork_positions(seen_BNK: Tensor, parted: int) -> tuple[Tensor, int]:
    """Return the position of each key (K,) and the newest position, where each position from `parted` on has N keys.

    Args:
        seen_BNK: as for `TransformerBlock.step`.
        parted: the first position of which N keys are kept.

    Example:
        >>> fork_positions(torch.ones(1, 2, 5, dtype=torch.bool), 1)
        (tensor([0, 1, 1, 2, 2]), 2)
    """
    _, count, keys = seen_BNK.shape
    index = torch.arange(keys, device=seen_BNK.device)
    after = parted + torch.div(index - parted, count, rounding_mode="floor")
    return torch.where(index < parted, index, after), parted + (keys - 1 - parted) // count
