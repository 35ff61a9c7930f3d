"""Decoder blocks one step at a time: fused into one compiled call per block, or by the modules themselves.

The modules check their arguments in about a hundred calls per block. With few rows those checks take as long as the
products. The fused step checks a block once per session, and at each step only that nothing has changed since.
"""

from collections.abc import Sequence
from operator import attrgetter, is_, methodcaller
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from qkv.algorithms.sdpa.few_queries import MOST
from qkv.biases import Bias
from qkv.compiled import available
from qkv.compiled.strided import StridedArray, as_strided_array
from qkv.linalg.matmul import packed_serves
from qkv.linalg.session import DecodingSession
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.blocks import BlockCache, Residual, TransformerBlock
from qkv.nn.decoding.cache import Memory
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.projections import ProjectionInputs, Projections
from qkv.nn.scores import DotScore, ScaledDotScore
from qkv.values.execution import readable
from qkv.values.plain_modules import are_plain_in_evaluation
from qkv.values.rows import real_positions

if TYPE_CHECKING:
    from qkv.linalg.packed import Affine, Norm

_VERSION, _ADDRESS = attrgetter("_version"), methodcaller("data_ptr")
_FUSED_MODULES = (
    TransformerBlock,
    MultiHeadAttention,
    Attention,
    Projections,
    ProjectionInputs,
    nn.ModuleList,
    ScaledDotScore,
    DotScore,
    FeedForward,
    Residual,
    nn.Linear,
    nn.LayerNorm,
    Dropout,
)


def steps(
    blocks: Sequence[TransformerBlock],
    x: Tensor,
    caches: Sequence[BlockCache],
    lengths: Tensor | None,
    visible: Tensor | None = None,
    session: DecodingSession | None = None,
    parted: int = 0,
    *,
    bias: Bias | Tensor | None = None,
) -> tuple[Tensor, tuple[BlockCache, ...]]:
    """Run decoder blocks one after another on the newest positions, as `block.step` does.

    Args:
        blocks: the stack.
        x: (B, N, M).
        caches: what each block kept of the positions before.
        lengths: real source positions (B,); None if there is no padding.
        visible: the positions that each new one sees, bool (B, N, K), K the cached ones and the N new ones; None if
            each sees itself and all before it.
        session: keeps packed weights. Without one the modules run.
        parted: with `visible`, the position from which the caches hold N keys per position.
        bias: of the self-attentions' scores.

    Returns:
        (B, N, M), and the caches that include the new positions.
    """
    packed = None if session is None or bias is not None else _packed(blocks, x, caches, lengths, visible, session)
    # The width is tested last: the test would tie a traced program to this size.
    if session is not None and packed is not None and (visible is not None or x.shape[1] == 1):
        return _fused(packed, x, caches, lengths, visible, session)
    mask, new_caches = None if lengths is None else Lengths(lengths), []
    for block, cache in zip(blocks, caches, strict=True):
        x, new_cache = block.step(x, cache, mask, visible, session, parted=parted, bias=bias)
        new_caches.append(new_cache)
    return x, tuple(new_caches)


@final
class _PackedBlock:
    """The parameters of a block in the layout of its fused step, and the modules that they were copied from."""

    def __init__(self, block: TransformerBlock) -> None:
        from qkv.linalg.packed import Affine, pack
        from qkv.nn.decoding.block import BlockWeights

        attention, cross, feed = block.self_attention, block.cross_attention, block.feed_forward
        assert cross is not None
        weight, bias = cross.projections.part(0)
        assert weight is not None
        parts = (
            *(_affine(attention.projections.layers[0]), _norm(block.around_self), _affine(attention.output)),
            *(Affine(weight.detach(), bias), _norm(block.around_cross), _affine(cross.output)),
            *(_affine(feed.expand), _norm(block.around_feed), _affine(feed.contract)),
        )
        scales = np.array([_scale(attention), _scale(cross)], np.float32)
        hidden, first = feed.expand.out_features, block.around_self.place == "before"
        self.weights = BlockWeights(*pack(parts), scales, attention.width, hidden, attention.heads, first)
        self._modules = list(block.modules())
        tables: list[dict[str, Any]] = [
            table for module in self._modules for table in (module._parameters, module._modules)
        ]
        self._tables = [table for table in tables for _ in table]
        self._names = [name for table in tables for name in table]
        self._values = [value for table in tables for value in table.values()]
        self._weights = list(block.parameters())
        self._versions = [*map(_VERSION, self._weights)]
        # The views keep the memory allocated, so that no other parameter can get its address.
        self._views = [parameter.detach() for parameter in self._weights]
        self._addresses = [*map(_ADDRESS, self._views)]

    def unchanged(self) -> bool:
        """Return whether the block still has these plain modules and numbers, and only evaluates."""
        # Maps of functions in C: this runs for each block of each step.
        return (
            all(map(is_, map(dict.get, self._tables, self._names), self._values))
            and [*map(_VERSION, self._weights)] == self._versions
            and [*map(_ADDRESS, self._weights)] == self._addresses
            and are_plain_in_evaluation(self._modules)
        )


@final
class _CachedBlock:
    """A block in a session: packed when its fused step first runs, and again after a change."""

    def __init__(self) -> None:
        self._is_fusable: bool | None = None
        self._packed: _PackedBlock | None = None

    def packed(self, block: TransformerBlock) -> _PackedBlock | None:
        """Return the packed parameters; None if the modules must run."""
        if self._packed is not None and self._packed.unchanged():
            return self._packed
        if self._is_fusable is False or not are_plain_in_evaluation(block.modules()):
            return None
        self._is_fusable = _is_fusable(block)
        self._packed = _PackedBlock(block) if self._is_fusable else None
        return self._packed


def _packed(
    blocks: Sequence[TransformerBlock],
    x: Tensor,
    caches: Sequence[BlockCache],
    lengths: Tensor | None,
    visible: Tensor | None,
    session: DecodingSession,
) -> list[_PackedBlock] | None:
    """Return the packed blocks if all of them can take fused steps."""
    if torch.is_grad_enabled() or not packed_serves(x):
        return None
    if not _are_fusable_sizes(blocks, x, caches, lengths, visible):
        return None
    stack = []
    for block in blocks:
        packed = session.keep(block, _CachedBlock).packed(block)
        if packed is None or packed.weights.width != x.shape[-1]:
            return None
        stack.append(packed)
    return stack


def _fused(
    packed: Sequence[_PackedBlock],
    x: Tensor,
    caches: Sequence[BlockCache],
    lengths: Tensor | None,
    visible: Tensor | None,
    session: DecodingSession,
) -> tuple[Tensor, tuple[BlockCache, ...]]:
    from qkv.nn.decoding.block import Block, run

    batch, new, _ = x.shape
    new_caches, blocks = [], []
    for block, cache in zip(packed, caches, strict=True):
        assert cache.past is not None
        assert cache.memory is not None
        past, memory = cache.past.grow(new, session), cache.memory
        target, source = past.arrays, memory.arrays
        assert target is not None
        assert source is not None
        blocks.append(Block(block.weights, target, past.length, source, memory.length))
        new_caches.append(BlockCache(past, memory))
    out = x.new_empty(x.shape)
    mask = None if visible is None else StridedArray(as_strided_array(visible).numbers, visible.stride())
    real = None if lengths is None else _real(lengths, blocks[0].size)
    inputs = x.detach().contiguous().view(-1).numpy()
    run(blocks, (batch, new), inputs, mask, real, out.view(-1).numpy(), session.memory)
    return out, tuple(new_caches)


def _are_fusable_sizes(
    blocks: Sequence[TransformerBlock],
    x: Tensor,
    caches: Sequence[BlockCache],
    lengths: Tensor | None,
    visible: Tensor | None,
) -> bool:
    """Return whether fused steps serve these sizes, and can read the caches; the modules name what does not fit."""
    batch, new, width = x.shape
    if torch._C._get_tracing_state() is not None or not 0 < new <= MOST or not blocks:
        return False
    past, memory = caches[0].past, caches[0].memory
    if past is None or memory is None or memory.length == 0:
        return False
    if lengths is not None and lengths.shape != (batch,):
        return False
    if visible is not None and (visible.shape != (batch, new, past.length + new) or visible.dtype != torch.bool):
        return False
    return all(
        _reads(cache.past, batch, block.self_attention.heads, past.length, width)
        and _reads(cache.memory, batch, block.self_attention.heads, memory.length, width)
        for block, cache in zip(blocks, caches, strict=True)
    )


def _reads(memory: Memory | None, batch: int, heads: int, length: int, width: int) -> bool:
    """Return whether keys and values have the sizes of a block, and a kernel can read them."""
    if memory is None or memory.arrays is None:
        return False
    shape = (batch, heads, length, width // heads)
    return memory.key.shape == shape and memory.value.shape == shape


def _is_fusable(block: TransformerBlock) -> bool:
    """Return whether a block computes what the fused step computes: no part replaced, no other option chosen."""
    return (
        block.cross_attention is not None
        and all(type(m) in _FUSED_MODULES for m in block.modules())
        and block.around_self.place in ("before", "after")
        and all(p.dtype == torch.float32 and readable(p) and not p.is_inference() for p in block.parameters())
        and isinstance(block.feed_forward, FeedForward)
        and block.feed_forward.activation == "relu"
        and block.reach is None
        and block.second_attention is None
        and _is_plain_attention(block.self_attention)
        and _is_plain_attention(block.cross_attention)
        and available.why_unavailable() is None
    )


def _is_plain_attention(layer: MultiHeadAttention) -> bool:
    """Return whether heads attend by dot products under softmax, and each has its own keys."""
    score, attention = layer.score, layer.attention
    return (
        (type(score) is DotScore or (type(score) is ScaledDotScore and score.softcap is None))
        and all(part is None for part in (layer.normalizer, attention.normalizer, attention.score, attention.also))
        and attention.backend == "auto"
        and layer.key_heads == layer.heads
        and layer.projections.one
        and set(layer.projections.sizes) == {layer.width}
        and layer.query_norm is None
        and layer.output is not None
    )


def _affine(layer: nn.Module | None) -> "Affine":
    from qkv.linalg.packed import Affine

    assert isinstance(layer, nn.Linear)
    return Affine(layer.weight.detach(), layer.bias)


def _norm(around: Residual | None) -> "Norm":
    from qkv.linalg.packed import Norm

    assert around is not None
    norm = around.norm
    assert isinstance(norm, nn.LayerNorm)
    gain = torch.ones(norm.normalized_shape, device="cpu") if norm.weight is None else norm.weight.detach()
    return Norm(gain, torch.zeros_like(gain) if norm.bias is None else norm.bias, norm.eps)


def _scale(layer: MultiHeadAttention) -> float:
    score = layer.score
    if not isinstance(score, ScaledDotScore):
        return 1.0
    return (layer.width // layer.heads) ** -0.5 if score.scale is None else score.scale


def _real(lengths: Tensor, keys: int) -> StridedArray:
    """Return which source positions are real, the same for all queries of a row."""
    mask = real_positions(lengths, keys)
    return StridedArray(mask.view(-1).numpy(), (keys, 0, 1))
