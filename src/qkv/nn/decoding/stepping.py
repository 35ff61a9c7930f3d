"""A decoder block's step in as few calls as it takes: a product with what follows it, a compiled pass, a norm.

The general way asks at each of some hundred calls what it is given. Where rows are few the asking takes as long as the
products; here it is asked once in a decoding, and seen at each step that nothing has changed since.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from qkv.algorithms.sdpa.few_queries import LEAST, MOST
from qkv.compiled import available
from qkv.compiled.strided import StridedArray, as_strided_array
from qkv.linalg.matmul import Linear, onednn_serves
from qkv.linalg.session import session_value
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.blocks import DecoderBlock, DecoderCache, FeedForward, Residual
from qkv.nn.dropout import Dropout
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.projections import Given, Projections
from qkv.nn.scores import DotScore, ScaledDotScore

if TYPE_CHECKING:
    from qkv.linalg.packed import Affine, Norm

_KNOWN = (
    DecoderBlock,
    MultiHeadAttention,
    Attention,
    Projections,
    Given,
    nn.ModuleList,
    ScaledDotScore,
    DotScore,
    FeedForward,
    Residual,
    Linear,
    nn.LayerNorm,
    Dropout,
)


def steps(
    blocks: Sequence[DecoderBlock],
    x: Tensor,
    caches: Sequence[DecoderCache],
    lengths: Tensor | None,
    seen: Tensor | None = None,
) -> tuple[Tensor, tuple[DecoderCache, ...]]:
    """The newest positions of decoder blocks, one after another, each seeing itself and those before: as `block.step`.

    Args:
        blocks: whose.
        x: (B, N, M).
        caches: what was kept of the positions before, by each block.
        lengths: real source positions (B,); None where there is no padding.
        seen: which positions each sees, bool (B, N, K) with K those kept and N more, where they are no sequence.

    Returns:
        (B, N, M), and the caches that include them.
    """
    prepared = _prepared(blocks, x, caches)
    # Asked last: a program that is traced must not be cut to the size that is asked about.
    if prepared is not None and (seen is not None or x.shape[1] == 1):
        return _directly(prepared, x, caches, lengths, seen)
    mask, grown = None if lengths is None else Lengths(lengths), []
    for block, cache in zip(blocks, caches, strict=True):
        x, after = block.step(x, cache, mask, seen)
        grown.append(after)
    return x, tuple(grown)


class _Slot(NamedTuple):
    """Where a parameter was found: in a module's table, by name, at a place of memory, so often changed."""

    table: Mapping[str, Tensor | None]
    name: str
    parameter: Tensor
    place: int
    version: int


@final
class _Direct:
    """A block's parameters as its step reads them, and the modules that they were taken from."""

    def __init__(self, block: DecoderBlock) -> None:
        from qkv.linalg.packed import Affine, pack
        from qkv.nn.decoding.block import Weights

        own, other, feed = block.self_attention, block.cross_attention, block.feed_forward
        weight, bias = other.projections.part(0)
        assert weight is not None
        parts = (
            *(_affine(own.projections.layers[0]), _norm(block.around_self), _affine(own.output)),
            *(Affine(weight.detach(), bias), _norm(block.around_cross), _affine(other.output)),
            *(_affine(feed.expand), _norm(block.around_feed), _affine(feed.contract)),
        )
        scales = np.array([_scale(own), _scale(other)], np.float32)
        hidden, first = feed.expand.out_features, block.around_self.norm_first
        self.weights = Weights(*pack(parts), scales, own.width, hidden, own.heads, first)
        self.widest = feed.expand.weight
        self._modules = list(block.modules())
        self._slots = [
            _Slot(m._parameters, name, parameter, parameter.data_ptr(), parameter._version)
            for m in self._modules
            for name, parameter in m._parameters.items()
            if parameter is not None
        ]
        # Held, so that nothing else comes to lie in their places.
        self._memory = [slot.parameter.detach() for slot in self._slots]

    def unchanged(self) -> bool:
        """Whether parameters and mode are those that this was made for, and nobody looks on."""
        # Asked at each step of each block: a loop takes a third of what a generator with calls does.
        for table, name, parameter, place, version in self._slots:
            if table.get(name) is not parameter or parameter._version != version or parameter.data_ptr() != place:
                return False
        return _unwatched(self._modules)


def _directly(
    prepared: Sequence[_Direct],
    x: Tensor,
    caches: Sequence[DecoderCache],
    lengths: Tensor | None,
    seen: Tensor | None,
) -> tuple[Tensor, tuple[DecoderCache, ...]]:
    from qkv.nn.decoding.block import Block, run

    batch, new, _ = x.shape
    after, blocks = [], []
    for direct, cache in zip(prepared, caches, strict=True):
        assert cache.past is not None
        past, memory = cache.past.grow(new), cache.memory
        own, other = past.laid, memory.laid
        assert own is not None
        assert other is not None
        blocks.append(Block(direct.weights, own, past.length, other, memory.length))
        after.append(DecoderCache(past, memory))
    out = x.new_empty(x.shape)
    mask = None if seen is None else StridedArray(as_strided_array(seen).numbers, seen.stride())
    real = None if lengths is None else _real(lengths, caches[0].memory.length)
    run(blocks, (batch, new), x.detach().contiguous().view(-1).numpy(), mask, real, out.view(-1).numpy())
    return out, tuple(after)


@final
class _Steps(dict[int, tuple[DecoderBlock, _Direct | None]]):
    """Blocks met in a decoding, and their operands where they have the form for it."""


def _prepared(blocks: Sequence[DecoderBlock], x: Tensor, caches: Sequence[DecoderCache]) -> list[_Direct] | None:
    """The blocks' operands, where their steps can be taken by them."""
    steps = session_value(_Steps)
    if steps is None or torch.is_grad_enabled() or not _suits(blocks, x, caches):
        return None
    found = []
    for block in blocks:
        met = steps.get(id(block))
        if met is None or (met[1] is not None and not met[1].unchanged()):
            if not _unwatched(block.modules()) or not onednn_serves(x, block.feed_forward.expand.weight):
                return None
            met = steps[id(block)] = (block, _Direct(block) if _has_form(block) else None)
        if met[1] is None:
            return None
        found.append(met[1])
    widest = max((direct.widest for direct in found), key=len)
    return found if onednn_serves(x, widest) else None


def _suits(blocks: Sequence[DecoderBlock], x: Tensor, caches: Sequence[DecoderCache]) -> bool:
    """Whether a step is for compiled passes, and what it reads lies as they need it."""
    batch, new, _ = x.shape
    if torch._C._get_tracing_state() is not None or not 0 < new <= MOST or not blocks:
        return False
    size = caches[0].memory.length
    return size > 0 and all(
        cache.past is not None
        and batch * block.self_attention.heads >= LEAST
        and batch == cache.past.key.shape[0] == cache.memory.key.shape[0]
        and cache.memory.length == size
        and cache.past.laid is not None
        and cache.memory.laid is not None
        for block, cache in zip(blocks, caches, strict=True)
    )


def _unwatched(modules: Iterable[nn.Module]) -> bool:
    """Whether modules only evaluate, and no hook wants to be called."""
    everywhere: bool = nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    if everywhere:
        return False
    for module in modules:  # noqa: SIM110 - as above
        if module.training or module._forward_hooks or module._forward_pre_hooks:
            return False
    return True


def _has_form(block: DecoderBlock) -> bool:
    """Whether a block is what `_Direct` computes: nothing replaced, nothing of its own."""
    return (
        all(type(m) in _KNOWN and "forward" not in m.__dict__ for m in block.modules())
        and not any(p.is_inference() or p.dtype != torch.float32 for p in block.parameters())
        and block.feed_forward.activation == "relu"
        and all(map(_plain, (block.self_attention, block.cross_attention)))
        and available.why_unavailable() is None
        and _linked()
    )


def _linked() -> bool:
    """Whether passes can be compiled that PyTorch's threads share."""
    from qkv.compiled.openmp import linked

    return linked()


def _plain(layer: MultiHeadAttention) -> bool:
    """Whether heads attend by dot products under softmax, each with keys of its own."""
    score, attention = layer.score, layer.attention
    return (
        (type(score) is DotScore or (type(score) is ScaledDotScore and score.softcap is None))
        and all(part is None for part in (layer.normalizer, attention.normalizer, attention.score, attention.also))
        and attention.backend == "auto"
        and layer.key_heads == layer.heads
        and layer.projections.one
        and len(set(layer.projections.sizes)) == 1
        and layer.output is not None
    )


def _affine(layer: nn.Module | None) -> "Affine":
    from qkv.linalg.packed import Affine

    assert isinstance(layer, Linear)
    return Affine(layer.weight.detach(), layer.bias)


def _norm(around: Residual) -> "Norm":
    from qkv.linalg.packed import Norm

    norm = around.norm
    gain = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight.detach()
    return Norm(gain, torch.zeros_like(gain) if norm.bias is None else norm.bias, norm.eps)


def _scale(layer: MultiHeadAttention) -> float:
    score = layer.score
    if not isinstance(score, ScaledDotScore):
        return 1.0
    return (layer.width // layer.heads) ** -0.5 if score.scale is None else score.scale


@final
class _Real:
    """Which source positions are real, of the lengths that were asked about last."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor] | None = None

    def of(self, lengths: Tensor, keys: int) -> Tensor:
        """(B, K), True where real."""
        last = self._last  # read once: other threads ask too
        if last is None or last[0] is not lengths or last[1].shape[1] != keys:
            last = self._last = lengths, torch.arange(keys, device=lengths.device) < lengths[:, None]
        return last[1]


def _real(lengths: Tensor, keys: int) -> StridedArray:
    """As `Lengths`, for all queries of a row alike."""
    real = session_value(_Real)
    assert real is not None
    mask = real.of(lengths, keys)
    return StridedArray(mask.view(-1).numpy(), (keys, 0, 1))
