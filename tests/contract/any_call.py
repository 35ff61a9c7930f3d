"""Random calls from a stored seed: any mechanism, mask, bias, dtype, size, memory layout, mode and thread count.

n.
Every mask is drawn together with its table, which is written here from the definition and shares no line with ours.

    python -m tests.contract.any_call --cases 1000 --seed 0 [--backend rowwise] [--aspect map]
"""

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from random import Random

import torch
from tests.contract.judge import legal
from tests.contract.mechanisms import (
    DTYPES,
    NORMALIZER,
    NORMALIZERS,
    ON_CPU,
    SCORES,
    NormalizerCase,
    ScoreCase,
)
from torch import Tensor

from qkv.biases import Bias, alibi, relative
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, dense, documents, lengths, span, window
from qkv.scores.kernels import Epanechnikov, squared_distance
from qkv.scores.products import Cosine

BACKENDS = (*ON_CPU, "auto")
ASPECTS = {"exact": 8, "weights": 2, "state": 2, "merge": 2, "map": 3, "again": 2, "offset": 1, "in place": 3, "bad": 4}
"""What to check of a call, with relative frequency: the answer itself, or one of its promises (`any_answer`)."""

LEADINGS: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3,), (2, 2), (2, 3), (1, 4), (2, 1, 3))
GROUPED: tuple[tuple[tuple[int, ...], int], ...] = (((4,), 2), ((2, 4), 2), ((1, 6), 3), ((2, 3), 1))
FEW, MANY = (1, 2, 3, 5, 7, 11, 15, 16, 17, 31, 33), (63, 64, 65, 128, 130)
WIDTHS, NEAR_WIDTHS = (1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33), (1, 1, 2, 3, 4, 9)
"""Widths of vectors, and of points: in many dimensions no two points are near."""
PAIRS = 40_000
"""The most pairwise numbers of a call, hidden layers included, except in calls judged by 4,096 outputs."""

LAYOUTS = ("plain", "columns", "heads inside", "first innermost", "every second", "every second row", "offset", "odd")
ALIASES = ("self", "same", "packed", "interleaved")


def _edge(h: float) -> Callable[[Tensor, Tensor, Mapping[str, Tensor]], Tensor]:
    return lambda query, key, p: squared_distance(query, key, h) - 1


MORE_SCORES = (
    ScoreCase("cosine_sharp", lambda p: Cosine(30.0)),
    ScoreCase("triangle_wide", lambda p: Epanechnikov(4.0, 1), bend=_edge(4.0)),
    ScoreCase("root_wide", lambda p: Epanechnikov(4.0, 0.5), bend=_edge(4.0)),
)
ALL_SCORES = (*SCORES, *MORE_SCORES)
_PRODUCTS = tuple(case.name for case in ALL_SCORES if case.name.startswith(("dot", "scaled", "cosine", "bilinear")))
_POINTS = tuple(case.name for case in ALL_SCORES if case.bend is not None and "concat" not in case.name) + tuple(
    case.name for case in ALL_SCORES if case.name.startswith(("squared", "gaussian"))
)
_WITHOUT_WIDTH = ("dot", "uniform", "gaussian", "squared_distance", "learned", "additive")


@dataclass(frozen=True)
class Wish:
    """What to draw from, so that a special-purpose backend supports it; empty means everything."""

    scores: tuple[str, ...] = ()
    normalizers: tuple[str, ...] = ()
    biases: tuple[str, ...] = ("none", "none", "none", "fixed", "learned", "alibi", "relative", "relative learned")
    masks: tuple[str, ...] = (
        "none",
        "none",
        "causal",
        "lengths",
        "span",
        "window",
        "documents",
        "dense",
        "&",
        "&",
        "|",
        "~",
    )
    width: int | None = None
    weights: dict[str, int] = field(default_factory=lambda: ASPECTS)


_NO_BIAS = ("none",)
WISHES = {
    "sdpa": Wish(_PRODUCTS, ("softmax", "softmax", "softmax_sink"), ("none", "none", "fixed", "alibi", "relative")),
    "linear": Wish((*_PRODUCTS, "uniform"), ("mean", "identity"), _NO_BIAS, ("none", "causal", "lengths", "span")),
    "lookup": Wish(normalizers=("hard",)),
    "sorted": Wish(
        ("concat", "concat_leaky_per_head", "boxcar", "epanechnikov", "triangle", "epanechnikov_per_head"),
        ("sum", "mean", "identity", "softmax"),
        _NO_BIAS,
        ("none", "lengths", "span"),
        width=1,
    ),
    "fused": Wish(("additive", "additive_per_head", "additive_projected")),
    "rowwise": Wish((*_PRODUCTS, *_POINTS)),
}


@dataclass(frozen=True, eq=False)
class Seen:
    """A mask, its table (broadcasts to (..., Q, K)), the tensors that it holds, and its description."""

    mask: Mask | Tensor | None
    table: Tensor
    tensors: tuple[Tensor, ...]
    says: str


@dataclass(frozen=True)
class Sizes:
    leading: tuple[int, ...]
    groups: int | None
    queries: int
    keys: int
    width: int
    key_width: int
    value_width: int

    @property
    def heads(self) -> int:
        return self.leading[-1] if self.leading else 1

    def __str__(self) -> str:
        grouped = "" if self.groups is None else f" on {self.groups}"
        return f"{self.leading}{grouped} {self.queries}×{self.keys} D{self.width} E{self.key_width} V{self.value_width}"


@dataclass(frozen=True, eq=False, repr=False)
class AnyCall:
    """A call and all its numbers, rounded to its dtype and stored in float64.

    Attributes:
        leaves: the tensors to differentiate; query, key and value may be views of one of them.
        laid: the memory layout in which each leaf is passed.
        shapes: the shape in which each leaf is passed, larger than the leaf if expanded (stride 0).
        wanted: the leaves that need a gradient.
    """

    backend: str
    seed: int
    aspect: str
    score: ScoreCase
    normalizer: NormalizerCase
    bias: str
    seen: Seen
    dtype: torch.dtype
    sizes: Sizes
    alias: str
    leaves: dict[str, Tensor]
    laid: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    wanted: tuple[str, ...]
    cotangent: Tensor
    cotangent_laid: str
    threads: int
    mode: str

    def __str__(self) -> str:
        laid = ", ".join(f"{name} {how}" for name, how in self.laid.items() if how != "plain")
        wide = ", ".join(f"{name} expanded" for name, x in self.leaves.items() if tuple(x.shape) != self.shapes[name])
        parts = (
            f"draw({self.backend!r}, {self.seed})  # {self.aspect}: {self.score.name} × {self.normalizer.name}",
            f"mask {self.seen.says}",
            f"bias {self.bias} {tuple(self.leaves['bias'].shape) if 'bias' in self.leaves else ''}".rstrip(),
            f"{str(self.dtype).removeprefix('torch.')} {self.sizes}",
            *(part for part in (self.alias, laid, wide) if part),
            f"cotangent {self.cotangent_laid}, {self.mode}, {self.threads} threads",
        )
        return "; ".join(parts)

    @property
    def low(self) -> torch.dtype:
        return torch.float32 if self.dtype == torch.float64 else self.dtype

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The names of the score's parameters."""
        others = {"query", "key", "value", "packed", "bias", "table", *self.normalizer.shapes}
        return tuple(name for name in self.leaves if name not in others)

    def arranged(self, leaves: Mapping[str, Tensor], laid: bool = True) -> dict[str, Tensor]:
        """The tensors to pass: every leaf expanded and in its layout, and the views that share memory with it."""
        out = {}
        for name, x in leaves.items():
            whole = x.expand(self.shapes[name])
            out[name] = lay(x, self.laid[name]).expand(self.shapes[name]) if laid else whole
        if self.alias == "self":
            out["key"] = out["query"]
        elif self.alias == "same":
            out["key"] = out["value"] = out["query"]
        elif self.alias == "packed":
            out["query"], out["key"], out["value"] = out.pop("packed").chunk(3, -1)
        elif self.alias == "interleaved":
            out["query"], out["key"], out["value"] = out.pop("packed").unflatten(-1, (-1, 3)).unbind(-1)
        return out

    def options(self, given: Mapping[str, Tensor]) -> dict[str, object]:
        """The keyword arguments of `attention`, except the backend."""
        bias: Tensor | Bias | None = given.get("bias")
        if self.bias == "alibi":
            bias = alibi(given["table"]) if "table" in given else alibi(0.3)
        elif self.bias.startswith("relative"):
            bias = relative(given["table"])
        return {
            "score": self.score.build({name: given[name] for name in self.own}),
            "normalizer": self.normalizer.build(given),
            "mask": self.seen.mask,
            "bias": bias,
            "enable_gqa": self.sizes.groups is not None,
        }


def lay(x: Tensor, how: str) -> Tensor:  # noqa: PLR0911 - a line for each layout
    """The same numbers in another memory layout; the gaps between them are NaN."""
    junk = x.new_full((), torch.nan)
    if how == "columns" and x.ndim > 1:
        return x.mT.contiguous().mT
    if how == "heads inside" and x.ndim > 2:
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if how == "first innermost" and x.ndim > 1:
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if how == "every second" and x.ndim:
        return torch.stack([x, junk.expand_as(x)], -1).flatten(-2)[..., ::2]
    if how == "every second row" and x.ndim > 1:
        return torch.stack([x, junk.expand_as(x)], -2).flatten(-3, -2)[..., ::2, :]
    if how in ("offset", "offset 64"):
        before = 3 if how == "offset" else 64
        return torch.cat([junk.expand(before), x.flatten()])[before:].view(x.shape)
    if how == "odd" and 1 in x.shape and x.numel():
        whole = x.contiguous()
        strides = [7777 if size == 1 else stride for size, stride in zip(whole.shape, whole.stride(), strict=True)]
        return whole.as_strided(whole.shape, strides)
    return x.clone(memory_format=torch.contiguous_format)


def draw(backend: str, seed: int, aspect: str | None = None) -> AnyCall:
    """Draw one call; its backend may or may not support it."""
    r = Random(f"{backend}/{seed}")
    g = torch.Generator().manual_seed(zlib.crc32(f"{backend}/{seed}".encode()))
    wish = WISHES.get(backend, Wish())
    asked = r.choices(list(wish.weights), list(wish.weights.values()))[0]
    asked = aspect or asked
    score, normalizer, bias = _mechanism(r, wish)
    dtype = r.choice((torch.float32, *DTYPES))
    apart = asked in ("bad", "in place", "offset")  # a tensor that shares memory cannot be changed or moved alone
    alias = r.choice(ALIASES) if r.random() < 0.2 and not apart else ""
    sizes = _sizes(r, score, wish, alias)
    seen = _mask(r, g, sizes, r.choice(wish.masks))
    leaves, shapes = _leaves(r, g, score, normalizer, bias, sizes, alias, expand=not apart)
    names = list(leaves)
    strange = asked != "offset" and r.random() < 0.75
    laid = {name: r.choice(LAYOUTS) if strange else "plain" for name in names}
    fixed = {"table"} if bias in ("alibi", "relative") else {"bias"} if bias == "fixed" else set()
    free = [name for name in names if name not in fixed]
    wanted = tuple(free if r.random() < 0.7 else [name for name in free if r.random() < 0.5])
    shape = (*sizes.leading, sizes.queries, sizes.value_width)
    one = r.random() < 0.15
    cotangent = torch.randn((1,) * len(shape) if one else shape, generator=g)
    held = torch.float32 if dtype == torch.float64 else dtype
    return AnyCall(
        backend=backend,
        seed=seed,
        aspect=asked,
        score=score,
        normalizer=normalizer,
        bias=bias,
        seen=seen,
        dtype=dtype,
        sizes=sizes,
        alias=alias,
        leaves={name: x.to(held).double() for name, x in leaves.items()},
        laid=laid,
        shapes=shapes,
        wanted=wanted,
        cotangent=cotangent.to(held).double().expand(shape),
        cotangent_laid="expanded" if one else r.choice(LAYOUTS),
        threads=r.choice((1, 1, 1, 2)),
        mode=r.choice(("grad", "grad", "grad", "no_grad", "inference")),
    )


def _mechanism(r: Random, wish: Wish) -> tuple[ScoreCase, NormalizerCase, str]:
    while True:
        score = r.choice([case for case in ALL_SCORES if not wish.scores or case.name in wish.scores])
        fit = [case for case in NORMALIZERS if not wish.normalizers or case.name in wish.normalizers]
        own = NORMALIZER["sum"] if legal(score, NORMALIZER["sum"]) else NORMALIZER["softmax"]
        normalizer = own if own in fit and r.random() < 0.4 else r.choice(fit)
        if legal(score, normalizer):
            # A bias can make a score negative, but Sum requires nonnegative scores.
            bias = "none" if normalizer.needs_non_negative else r.choice(wish.biases)
            return score, normalizer, bias


def _sizes(r: Random, score: ScoreCase, wish: Wish, alias: str) -> Sizes:
    judged_plainly = r.random() < 0.04
    leading, groups = r.choice(LEADINGS), None
    if alias == "" and r.random() < 0.15:
        leading, groups = r.choice(GROUPED)
    if "per_head" in score.name and not leading:
        leading = (2,)
    queries, keys = (r.choice(MANY if r.random() < 0.12 else FEW) for _ in range(2))
    queries, keys = ((0 if r.random() < 0.02 else count) for count in (queries, keys))
    points = score.name in _POINTS
    width = r.choice(NEAR_WIDTHS if points else WIDTHS)
    if wish.width is not None and points:
        width = wish.width
    elif score.name in _WITHOUT_WIDTH and r.random() < 0.02:
        width = 0
    key_width = width
    if alias == "" and score.name in ("bilinear", "bilinear_per_head", "additive", "additive_per_head", "concat"):
        key_width = r.choice(WIDTHS)
    value_width = 0 if r.random() < 0.02 else r.choice(WIDTHS)
    if alias:
        queries = keys
        value_width = value_width if alias == "self" else width
    if judged_plainly:
        leading, groups, queries = (2, 2), None, 64 if alias else r.choice((64, 65))
        keys, value_width = (queries if alias else keys), (value_width if alias in ALIASES[1:] else 17)
    elif prod(leading) * queries * keys * max(width, 8) > 8 * PAIRS:
        leading, groups = ((1,) if "per_head" in score.name else ()), None
    return Sizes(leading, groups, queries, keys, width, key_width, value_width)


def _leaves(
    r: Random,
    g: torch.Generator,
    score: ScoreCase,
    normalizer: NormalizerCase,
    bias: str,
    sizes: Sizes,
    alias: str,
    expand: bool,
) -> tuple[dict[str, Tensor], dict[str, tuple[int, ...]]]:
    """The numbers, and the shapes to which they are expanded."""
    lead, near = sizes.leading, sizes.leading if sizes.groups is None else (*sizes.leading[:-1], sizes.groups)
    shapes: dict[str, tuple[int, ...]] = {"query": (*lead, sizes.queries, sizes.width)}
    if alias in ("packed", "interleaved"):
        shapes = {"packed": (*lead, sizes.queries, 3 * sizes.width)}
    elif not alias:
        shapes["key"] = (*_broadcast(r, near, sizes), sizes.keys, sizes.key_width)
    if alias in ("", "self"):
        shapes["value"] = (*_broadcast(r, near, sizes), sizes.keys, sizes.value_width)
    small = score.shapes(sizes.width, sizes.key_width)
    for name, shape in small.items():
        heads = near[-1:] if name.startswith("key_") else lead[-1:]
        shapes[name] = (*heads, *shape[1:]) if "per_head" in score.name else shape
    for name in normalizer.shapes:
        shapes[name] = (sizes.heads,) if lead else ()
    if bias in ("fixed", "learned"):
        whole = (*lead, sizes.queries, sizes.keys)
        cut = whole[r.randrange(len(whole) + 1) :]
        shapes["bias"] = tuple(1 if r.random() < 0.3 else size for size in cut)
    elif bias.startswith("relative"):
        shapes["table"] = (*((sizes.heads,) if lead and r.random() < 0.5 else ()), r.choice((1, 5, 9)))
    elif bias == "alibi" and lead and r.random() < 0.5:
        shapes["table"] = (sizes.heads,)
    held = {name: _thinned(r, shape) if expand else shape for name, shape in shapes.items()}
    return {name: _numbers(name, shape, score, normalizer, g) for name, shape in held.items()}, shapes


def _broadcast(r: Random, near: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
    """Leading dimensions of keys or values, sometimes fewer than the query's."""
    if sizes.groups is not None or r.random() > 0.15:
        return near
    return tuple(1 if r.random() < 0.5 else size for size in near)[r.randrange(2) :]


def _thinned(r: Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The stored shape of a tensor, sometimes with one dimension left to expand with stride 0."""
    if not shape or r.random() > 0.08:
        return shape
    place = r.randrange(len(shape))
    return tuple(1 if at == place and size else size for at, size in enumerate(shape))


def _numbers(
    name: str, shape: tuple[int, ...], score: ScoreCase, normalizer: NormalizerCase, g: torch.Generator
) -> Tensor:
    x = torch.randn(shape, generator=g)
    if score.grid and name in ("query", "key", "packed"):
        return x.mul(2).round().clamp(-2, 2) / 2  # no lattice pair is near the kernel's edge
    if name in normalizer.shapes:
        return x if normalizer.at_least is None else normalizer.at_least + x.sigmoid() / 2
    if name in score.positive:
        return (x * 0.3).exp() * 1.5
    if name.endswith("weight") and len(shape) > 1:
        return x * max(shape[-1], 1) ** -0.5
    return x.abs() / 4 if name == "table" else x


def _mask(r: Random, g: torch.Generator, sizes: Sizes, kind: str) -> Seen:  # noqa: PLR0911 - a line for each kind
    if kind in ("&", "|"):
        one, other = (_mask(r, g, sizes, _leaf(r)) for _ in range(2))
        both = one.mask & other.mask if kind == "&" else one.mask | other.mask  # type: ignore[operator]
        table = one.table & other.table if kind == "&" else one.table | other.table
        return Seen(both, table, one.tensors + other.tensors, f"({one.says} {kind} {other.says})")
    if kind == "~":
        inner = _mask(r, g, sizes, r.choice((_leaf(r), "&", "|")))
        return Seen(~inner.mask, ~inner.table, inner.tensors, f"~{inner.says}")  # type: ignore[operator]
    if kind == "dense":
        return _dense(r, g, sizes)
    if kind == "documents":
        return _documents(r, g, sizes)
    if kind == "lengths":
        return _lengths(r, g, sizes)
    if kind == "span":
        return _span(r, g, sizes)
    if kind == "causal":
        return _causal(r, g, sizes)
    if kind == "window":
        return _window(r, g, sizes)
    return Seen(None, torch.ones((), dtype=torch.bool), (), "none")


def _leaf(r: Random) -> str:
    return r.choice(("causal", "lengths", "span", "window", "documents", "dense"))


def _lengths(r: Random, g: torch.Generator, sizes: Sizes) -> Seen:
    rows, columns = torch.arange(sizes.queries)[:, None], torch.arange(sizes.keys)
    seen_keys = _item(r, g, sizes, 0, sizes.keys + 1)
    real = r.random() < 0.3
    queries = _item(r, g, sizes, 0, sizes.queries + 1) if real else None
    table = columns < _column(seen_keys, sizes)
    table = table if queries is None else table & (rows < _column(queries, sizes))
    return Seen(lengths(seen_keys, queries), table, _tensors(seen_keys, queries), f"lengths({_say(seen_keys)})")


def _span(r: Random, g: torch.Generator, sizes: Sizes) -> Seen:
    columns = torch.arange(sizes.keys)
    first = _item(r, g, sizes, -2, sizes.keys // 2 + 2)
    last = _item(r, g, sizes, sizes.keys // 4, sizes.keys + 2) if r.random() < 0.6 else None
    table = columns >= _column(first, sizes)
    table = table if last is None else table & (columns < _column(last, sizes))
    return Seen(
        span(first, last),
        table,
        _tensors(first, last),
        f"span({_say(first)}, {_say(sizes.keys if last is None else last)})",
    )


def _window(r: Random, g: torch.Generator, sizes: Sizes) -> Seen:
    rows, columns = torch.arange(sizes.queries)[:, None], torch.arange(sizes.keys)
    left, right = (None if r.random() < 0.2 else r.randrange(6) for _ in range(2))
    offset = _item(r, g, sizes, -3, 6) if r.random() < 0.4 else 0
    distance = columns - rows - _column(offset, sizes)
    table = torch.ones((), dtype=torch.bool)
    table = table if left is None else table & (distance >= -left)
    table = table if right is None else table & (distance <= right)
    mask = window(left, right, offset=offset)
    return Seen(mask, table, _tensors(offset), f"window({left}, {right}, {_say(offset)})")


def _causal(r: Random, g: torch.Generator, sizes: Sizes) -> Seen:
    rows, columns = torch.arange(sizes.queries)[:, None], torch.arange(sizes.keys)
    offset = r.choice((0, 0, _item(r, g, sizes, -3, 8), sys.maxsize if r.random() < 0.08 else 2))
    align = r.choice(("start", "start", "end"))
    ahead = sizes.keys - sizes.queries if align == "end" else 0
    if isinstance(offset, int):
        table = columns <= rows + min(offset, 1 << 32) + ahead
    else:
        table = columns <= rows + _column(offset, sizes) + ahead
    return Seen(causal(offset, align=align), table, _tensors(offset), f"causal({_say(offset)}, {align})")


def _documents(r: Random, g: torch.Generator, sizes: Sizes) -> Seen:
    lead = sizes.leading[: r.randrange(len(sizes.leading) + 1)]

    def ids(count: int) -> Tensor:
        x = torch.randint(3, (*lead, count), generator=g)
        return x.sort(-1).values if r.random() < 0.5 else x

    one = ids(sizes.queries)
    other = None if sizes.queries == sizes.keys and r.random() < 0.6 else ids(sizes.keys)
    both = (one, one if other is None else other)
    a, b = (x.reshape(*lead, *(1,) * (len(sizes.leading) - len(lead)), x.shape[-1]) if lead else x for x in both)
    says = f"documents({tuple(one.shape)}{'' if other is None else ', keys'})"
    return Seen(documents(one, other), a[..., :, None] == b[..., None, :], _tensors(one, other), says)


def _dense(r: Random, g: torch.Generator, sizes: Sizes) -> Seen:
    whole = (*sizes.leading, sizes.queries, sizes.keys)
    cut = whole[r.randrange(len(whole)) :]
    shape = tuple(1 if r.random() < 0.3 else size for size in cut)
    how = r.choice(LAYOUTS)
    table = torch.rand(shape, generator=g) < r.choice((0.3, 0.6, 0.9))
    given = _laid_bool(table, how)
    return Seen(dense(given), table, (given,), f"dense({shape} {how})")


def _laid_bool(table: Tensor, how: str) -> Tensor:
    """Like `lay`; the gaps hold the negated table, so that reading them would show."""
    if how == "columns" and table.ndim > 1:
        return table.mT.contiguous().mT
    if how == "every second":
        return torch.stack([table, ~table], -1).flatten(-2)[..., ::2]
    return table.clone()


def _item(r: Random, g: torch.Generator, sizes: Sizes, low: int, high: int) -> int | Tensor:
    """A number, or one per item: shaped like a prefix of the leading shape."""
    if not sizes.leading or r.random() < 0.4:
        return r.randrange(low, high)
    lead = sizes.leading[: 1 + r.randrange(len(sizes.leading))]
    kinds = (torch.int64, torch.int64, torch.int32, torch.uint8 if low >= 0 else torch.int8)
    return torch.randint(low, high, lead, generator=g).to(r.choice(kinds))


def _column(item: int | Tensor, sizes: Sizes) -> int | Tensor:
    if isinstance(item, int):
        return item
    return item.long().reshape(*item.shape, *(1,) * (len(sizes.leading) - item.ndim), 1, 1)


def _tensors(*items: object) -> tuple[Tensor, ...]:
    return tuple(x for x in items if isinstance(x, Tensor))


def _say(item: int | Tensor) -> str:
    if isinstance(item, int):
        return str(item)
    return f"{item.tolist()} {str(item.dtype).removeprefix('torch.')}"


@dataclass
class Tally:
    """The findings for one backend."""

    served: int = 0
    worst: float = 0.0
    where: str = ""
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def campaign(backend: str, cases: int, seed: int = 0, aspect: str | None = None) -> Tally:
    """Draw until `cases` calls were judged, or three times as many were drawn."""
    from tests.contract.any_answer import judge

    tally, start = Tally(), time.process_time()
    for place in range(3 * cases):
        call = draw(backend, seed * 1_000_000 + place, aspect)
        verdict = judge(call)
        if verdict is None:
            continue
        tally.served += 1
        if verdict.ratio > tally.worst:
            tally.worst, tally.where = verdict.ratio, str(call)
        if verdict.wrong:
            tally.wrong.append(f"{call}: {verdict.wrong}")
        if tally.served == cases:
            break
    return replace(tally, seconds=time.process_time() - start)


def main() -> None:
    """Judge random calls, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=400, help="for each backend")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other calls")
    parser.add_argument("--backend", choices=BACKENDS, help="one instead of all")
    parser.add_argument("--aspect", choices=ASPECTS, help="one instead of all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for backend in BACKENDS if given.backend is None else (given.backend,):
        tally = campaign(backend, given.cases, given.seed, given.aspect)
        line = f"{backend:<10} {tally.served:6,} cases {tally.seconds:7.1f} s  worst {tally.worst:.2f} of the bound"
        print(f"{line}  {len(tally.wrong)} wrong  {tally.where}")  # noqa: T201
        for wrong in tally.wrong:
            print(f"  {wrong}")  # noqa: T201


if __name__ == "__main__":
    main()
