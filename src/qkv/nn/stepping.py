"""A decoder block's step in as few calls as it takes: a product with what follows it, a compiled pass, a norm.

The general way asks at each of some hundred calls what it is given. Where rows are few the asking takes as long as the
products; here it is asked once in a decoding, and seen at each step that nothing has changed since.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.backends import tanh_operators
from qkv.backends.step import LEAST, MOST, laid
from qkv.keeping import kept
from qkv.kernels.laid import Laid
from qkv.masks.patterns import Lengths
from qkv.nn.attention import Attention
from qkv.nn.blocks import DecoderBlock, DecoderCache, FeedForward, Residual
from qkv.nn.cache import Memory
from qkv.nn.dropout import Dropout
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.projections import Given, Projections
from qkv.nn.scores import DotScore, ScaledDotScore
from qkv.products import Linear, followed, laid_out, served

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


def step(
    block: DecoderBlock, x: Tensor, cache: DecoderCache, lengths: Tensor | None, seen: Tensor | None = None
) -> tuple[Tensor, DecoderCache]:
    """The newest positions of a decoder block, each seeing itself and those before: as `block.step`.

    Args:
        block: whose.
        x: (B, N, M).
        cache: what was kept of the positions before.
        lengths: real source positions (B,); None where there is no padding.
        seen: which positions each sees, bool (B, N, K) with K those kept and N more, where they are no sequence.

    Returns:
        (B, N, M), and the cache that includes them.
    """
    direct = _prepared(block, x, cache)
    if direct is None or (seen is None and x.shape[1] > 1):
        return block.step(x, cache, None if lengths is None else Lengths(lengths), seen)
    return direct(x, cache, lengths, seen)


class _Affine(NamedTuple):
    """W as oneDNN reads it, and b."""

    weight: Tensor
    bias: Tensor | None


class _Slot(NamedTuple):
    """Where a parameter was found: in a module's table, by name, at a place of memory, so often changed."""

    table: Mapping[str, Tensor | None]
    name: str
    parameter: Tensor
    place: int
    version: int


@final
class _Direct:
    """The operands of a block's step, and the modules and parameters that they were taken from."""

    def __init__(self, block: DecoderBlock) -> None:
        own, other, feed = block.self_attention, block.cross_attention, block.feed_forward
        self.project = _affine(own.projections.layers[0])
        weight, bias = other.projections.part(0)
        assert weight is not None
        self.project_query = _Affine(laid_out(weight), bias)
        self.mix, self.mix_memory = _affine(own.output), _affine(other.output)
        self.expand, self.contract = _affine(feed.expand), _affine(feed.contract)
        self.smallest = weight
        self.norms = tuple(around.norm for around in (block.around_self, block.around_cross, block.around_feed))
        self.norm_first = block.around_self.norm_first
        self.heads, self.width = own.heads, own.width
        self.scales = _scale(own), _scale(other)
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

    def __call__(
        self, x: Tensor, cache: DecoderCache, lengths: Tensor | None, seen: Tensor | None
    ) -> tuple[Tensor, DecoderCache]:
        shape = batch, new, width = x.shape
        rows = x.reshape(-1, width)
        update, past = self._self_attention(self._before(0, rows), cache, shape, seen)
        rows = self._after(0, self.mix, update, rows)
        query = followed(self._before(1, rows), *self.project_query).view(-1).numpy()
        mask = None if lengths is None else _real(lengths, cache.memory.length)
        update = self._attend(Laid(query, (new * width, width)), cache.memory, shape, mask, self.scales[1])
        rows = self._after(1, self.mix_memory, update, rows)
        hidden = followed(self._before(2, rows), *self.expand, relu=True)
        rows = self._after(2, self.contract, hidden, rows)
        return rows.view(batch, new, width), DecoderCache(past, cache.memory)

    def _self_attention(
        self, rows: Tensor, cache: DecoderCache, shape: torch.Size, seen: Tensor | None
    ) -> tuple[Tensor, Memory]:
        from qkv.kernels.few_rows import append

        assert cache.past is not None
        batch, new, width = shape
        fresh = Laid(followed(rows, *self.project).view(-1).numpy(), (new * 3 * width, 3 * width))
        past = cache.past.grow(new)
        key, value = (Laid(x.numbers, (x.strides[0], x.strides[2])) for x in past.laid)
        append((batch, new, past.length, width, width), fresh, key, value)
        mask = None if seen is None else Laid(laid(seen).numbers, seen.stride())
        return self._attend(fresh, past, shape, mask, self.scales[0]), past

    def _attend(self, query: Laid, memory: Memory, shape: torch.Size, mask: Laid | None, scale: float) -> Tensor:
        """(B·N, M) from queries of all heads beside each other."""
        from qkv.kernels.few_rows import attend

        batch, new, width = shape
        head = width // self.heads
        out = memory.value.new_empty(batch * new, width)
        by_head = Laid(query.numbers, (query.strides[0], head, query.strides[1]))
        sizes = (batch, self.heads, new, memory.length, head, head)
        attend(sizes, scale, by_head, *memory.laid, mask, out.view(-1).numpy())
        return out

    def _before(self, part: int, rows: Tensor) -> Tensor:
        return self._normed(part, rows) if self.norm_first else rows

    def _after(self, part: int, affine: _Affine, update: Tensor, rows: Tensor) -> Tensor:
        joined = followed(update, *affine, added=rows)
        return joined if self.norm_first else self._normed(part, joined)

    def _normed(self, part: int, rows: Tensor) -> Tensor:
        norm = self.norms[part]
        return torch.layer_norm(rows, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


@final
class _Steps(dict[int, tuple[DecoderBlock, _Direct | None]]):
    """Blocks met in a decoding, and their operands where they have the form for it."""


def _prepared(block: DecoderBlock, x: Tensor, cache: DecoderCache) -> _Direct | None:
    """The block's operands, where its step can be taken by them."""
    steps = kept(_Steps)
    if steps is None or torch.is_grad_enabled() or not _suits(block, x, cache):
        return None
    met = steps.get(id(block))
    if met is None or (met[1] is not None and not met[1].unchanged()):
        if not _unwatched(block.modules()) or not served(x, block.feed_forward.expand.weight):
            return None
        met = steps[id(block)] = (block, _Direct(block) if _has_form(block) else None)
    return met[1] if met[1] is not None and served(x, met[1].smallest) else None


def _suits(block: DecoderBlock, x: Tensor, cache: DecoderCache) -> bool:
    """Whether a step is for compiled passes, and what it reads lies as they need it."""
    batch, new, _ = x.shape
    past, memory = cache.past, cache.memory
    return (
        torch._C._get_tracing_state() is None
        and past is not None
        and 0 < new <= MOST
        and batch * block.self_attention.heads >= LEAST
        and memory.length > 0
        and all(_lies(part, batch) for part in (past.key, past.value, memory.key, memory.value))
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


def _lies(part: Tensor, batch: int) -> bool:
    return part.ndim == 4 and part.shape[0] == batch and part.dtype == torch.float32 and part.stride(3) == 1


def _has_form(block: DecoderBlock) -> bool:
    """Whether a block is what `_Direct` computes: nothing replaced, nothing of its own."""
    return (
        all(type(m) in _KNOWN and "forward" not in m.__dict__ for m in block.modules())
        and not any(p.is_inference() or p.dtype != torch.float32 for p in block.parameters())
        and block.feed_forward.activation == "relu"
        and all(map(_plain, (block.self_attention, block.cross_attention)))
        and tanh_operators.trouble() is None
    )


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


def _affine(layer: nn.Module | None) -> _Affine:
    assert isinstance(layer, Linear)
    return _Affine(laid_out(layer.weight), layer.bias)


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


def _real(lengths: Tensor, keys: int) -> Laid:
    """As `Lengths`, for all queries of a row alike."""
    real = kept(_Real)
    assert real is not None
    mask = real.of(lengths, keys)
    return Laid(mask.view(-1).numpy(), (keys, 0, 1))
