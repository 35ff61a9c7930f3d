"""Attention with any score function, in stripes of rows that are computed again in the backward pass."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.engine.autograd import differentiable_by
from qkv.engine.derivatives import COLUMNS, COMPLETE, ROWS, STATE, Cut, gradients_of
from qkv.engine.dropout import Kept
from qkv.engine.tiles import TileSize, TileSlices, Tiling
from qkv.engine.unchanged import Reads
from qkv.errors import DtypeError
from qkv.hub.flex.captures import Replaced, captured_by
from qkv.hub.flex.conditions import indices_on
from qkv.hub.flex.symbols import IndexByTensors
from qkv.linalg.heap import Release
from qkv.masks.base import Grid, Mask
from qkv.masks.lower import Visibility, lower
from qkv.normalizers.base import hide
from qkv.normalizers.dense import Softmax

SIZE = TileSize(1 << 19, 1, all_items=True)
"""The scores of a stripe: 2 MiB of float32."""

TRACED_ROWS = 128
"""The most rows of a stripe under PyTorch's compiler, whose graph repeats the operations of each."""

OnTile = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""A function of scores (B, H, h, K), and of indices that broadcast to them."""


class Results(NamedTuple):
    """The output (B, H, Q, V), and for each row log Σ e^s and the largest score, (B, H, Q); zeros if not wanted."""

    output: Tensor
    lse: Tensor
    largest: Tensor


class Positions(NamedTuple):
    """The positions of the queries (h,) and keys (c,) of a stripe."""

    rows: Tensor
    columns: Tensor

    @classmethod
    def of(cls, slices: TileSlices, device: torch.device) -> "Positions":
        """Return the positions that slices cover."""
        return cls(*(torch.arange(part.start, part.stop, device=device) for part in slices[1:]))


@final
@dataclass(frozen=True)
class Pairs:
    """What is computed of every pair.

    Attributes:
        scale: of the dot products.
        scored: from scaled dot products to scores.
        weighted: from weights to weights; None for the weights themselves.
        mask: which pairs are visible; None for all.
        kept: which weights dropout keeps; None without dropout.
        at_once: whether to compute all rows at once and store them, so that autograd has second derivatives.
        lse: whether log Σ e^s is wanted.
        largest: whether the largest scores are wanted.
    """

    scale: float
    scored: OnTile | None
    weighted: OnTile | None
    mask: Mask | None
    kept: Kept | None
    at_once: bool
    lse: bool
    largest: bool


def by_pair(function: Callable[..., Tensor], leads: bool) -> OnTile:
    """Return a function of one pair as a function of a tile, by `torch.vmap` over all four numbers.

    Args:
        function: of batch, head, query and key; and first a score, if `leads`.
        leads: whether it takes a score or weight.
    """
    name, called = "score_mod or post_mod" if leads else "mask_mod", function

    def checked(*numbers: Tensor) -> Tensor:
        result = called(*numbers)
        if not isinstance(result, Tensor) or result.ndim:
            got = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            hint = "PyTorch's flex_attention needs one too: for a constant, score * 0 + 1 or torch.full_like(score, 1)."
            raise DtypeError(name, "a function that returns a scalar tensor", got, hint)
        return result

    first, function = (0,) if leads else (), checked
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=(*first, *axes))
    names = ("batch", "head", "query", "key")

    def on_tile(x: Tensor, indices: Mapping[str, Tensor]) -> Tensor:
        numbers = [indices[name].flatten() for name in names]
        if not torch.compiler.is_compiling() and not all(len(positions) for positions in numbers):
            # vmap does not support every operator on an empty tensor, as in a tile whose keys are all hidden.
            return x.new_zeros([len(positions) for positions in numbers])
        # Under PyTorch's compiler a checkpoint cannot enter a mode: there `traced` enters it for all stripes.
        with nullcontext() if torch.compiler.is_compiling() else IndexByTensors():
            return function(*((x,) if leads else ()), *numbers)

    return on_tile


@final
@dataclass(frozen=True, eq=False)
class UserMask(Mask):
    """A mask function that cannot be traced, called on tiles."""

    function: Callable[..., Tensor]

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        """Call the function for every pair."""
        indices = indices_on(grid, rows_Q1, columns_K)
        return by_pair(self.function, False)(rows_Q1, indices).to(torch.bool)


def attend(query: Tensor, key: Tensor, value: Tensor, pairs: Pairs) -> Results:
    """Compute attention in stripes, in memory linear in queries and keys.

    Args:
        query: (B, H, Q, D).
        key: (B, H, K, D); dimensions of size 1 broadcast.
        value: (B, H, K, V); likewise.
        pairs: what is computed of every pair.
    """
    grid = Grid.of(query, key)
    visibility = lower(pairs.mask, grid, query.is_cpu)
    kind = torch.promote_types(query.dtype, torch.float32)
    wide = [x.to(kind) for x in (query, key, value)]
    size = TileSize(prod(grid.leading) * grid.queries * grid.keys, 1, all_items=True) if pairs.at_once else SIZE
    stripes = BatchStripes(pairs, grid, Tiling(grid.leading, grid.queries, grid.keys, visibility, size))
    if not torch.is_grad_enabled() or pairs.at_once:
        output, lse, largest = stripes.all(wide)
    else:
        output, lse, largest = _with_gradients(stripes, wide, visibility)
    return Results(output.to(query.dtype), lse, largest.detach())


def traced(query: Tensor, key: Tensor, value: Tensor, pairs: Pairs) -> Results:
    """Compute attention while PyTorch's compiler traces it: in stripes that have all keys, whatever the mask hides.

    Args:
        query, key, value, pairs: as `attend` takes them.
    """
    grid = Grid.of(query, key)
    kind = torch.promote_types(query.dtype, torch.float32)
    wide = [x.to(kind) for x in (query, key, value)]
    count = 1
    while not pairs.at_once and count * TRACED_ROWS < grid.queries:
        count *= 2  # only these comparisons depend on the number of rows, which may vary
    columns = torch.arange(grid.keys, device=grid.device)
    results = []
    with IndexByTensors():
        for index in range(count):
            start, stop = index * grid.queries // count, (index + 1) * grid.queries // count
            parts = [wide[0][..., start:stop, :], *wide[1:]]
            positions = Positions(torch.arange(start, stop, device=grid.device), columns)
            if torch.is_grad_enabled() and not pairs.at_once:
                results.append(checkpoint(_traced_stripe, parts, pairs, grid, positions, use_reentrant=False))
            else:
                results.append(_traced_stripe(parts, pairs, grid, positions))
    output, lse, largest = (torch.cat(x, 2) for x in zip(*results, strict=True))
    return Results(output.to(query.dtype), lse, largest.detach())


def _traced_stripe(parts: list[Tensor], pairs: Pairs, grid: Grid, positions: Positions) -> Results:
    visible = None if pairs.mask is None else pairs.mask.visible(grid, positions.rows[:, None], positions.columns)
    return _stripe(parts, pairs, grid, positions, visible)


def _with_gradients(stripes: "BatchStripes", inputs: list[Tensor], visibility: Visibility) -> Results:
    """Compute all stripes, so that the backward pass computes them again."""
    captured = captured_by(lambda: stripes.one_pair(inputs))
    reads = Reads([*inputs, *visibility.tensors()])
    with reads:
        if captured is None:
            # A compiled function, for example, does not show which tensors it reads.
            results = stripes.all(inputs, lambda run: checkpoint(run, use_reentrant=False))
        else:
            results = Results(*_Recomputed.apply(stripes, *inputs, *captured))  # type: ignore[no-untyped-call]
    reads.guard((results.output, results.lse))
    return results


@final
class BatchStripes:
    """A problem cut into stripes of whole rows, for all batch items and heads at once.

    Args:
        pairs: what is computed of every pair.
        grid: the sizes.
        tiling: the stripes.
    """

    def __init__(self, pairs: Pairs, grid: Grid, tiling: Tiling) -> None:
        self.pairs, self.grid, self.tiling, self.release = pairs, grid, tiling, Release()

    def all(
        self, inputs: list[Tensor], run: Callable[[Callable[[], Results]], Results] = lambda stripe: stripe()
    ) -> Results:
        """Compute all stripes and concatenate them.

        Args:
            inputs: query, key and value.
            run: computes a stripe.
        """
        stripes = [run(partial(self.stripe, inputs, slices, visible)) for slices, visible in self.tiling]
        return Results(*(torch.cat(x, 2) for x in zip(*stripes, strict=True)))

    def one_pair(self, inputs: list[Tensor]) -> Tensor:
        """Compute the first pair alone; its gradient reaches whatever the functions close over."""
        first = [x.detach()[:1, :1, :1] for x in inputs]
        pairs = replace(self.pairs, mask=None, kept=None, lse=True)
        grid = Grid((1, 1), 1, 1, self.grid.device)
        zero = torch.zeros(1, dtype=torch.int64, device=grid.device)
        output, lse, _ = _stripe(first, pairs, grid, Positions(zero, zero), None)
        return output.sum() + lse.sum()

    def stripe(self, inputs: list[Tensor], slices: TileSlices, visible: Tensor | None) -> Results:
        """Compute some rows."""
        return self.of_parts(_parts(inputs, slices), slices, visible)

    def of_parts(self, parts: list[Tensor], slices: TileSlices, visible: Tensor | None) -> Results:
        """Compute some rows from their parts of query, key and value."""
        w, lse, largest = self.weights(parts[:2], slices, visible)
        return Results(_product(w, parts[2]), lse, largest)

    def weights(self, parts: list[Tensor], slices: TileSlices, visible: Tensor | None) -> Results:
        """Compute the weights of some rows, in place of their output, from their parts of query and key."""
        self.release.after(prod(parts[0].shape[:-1]) * parts[1].shape[-2])
        return _weights(parts, self.pairs, self.grid, Positions.of(slices, self.grid.device), visible)

    def backward(
        self, inputs: list[Tensor], captured: Sequence[Tensor], g_output: Tensor, g_lse: Tensor
    ) -> list[Tensor]:
        """Return the gradients of query, key and value, and of captured tensors."""
        totals = [torch.zeros_like(x) for x in (*inputs, *captured)]
        # One captured tensor may have been computed from another, as its view: each gets its own part of the gradient.
        leaves_of_captured = [x.detach().requires_grad_() for x in captured]
        for slices, visible in self.tiling:
            *sides, value = _parts(inputs, slices)
            g = g_output[..., slices.rows, :]
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in sides]
                with Replaced(captured, leaves_of_captured):
                    w, lse, _ = self.weights(leaves, slices, visible)
                # One number, because PyTorch imports SymPy to compare the shapes of several.
                total = torch.dot(w.flatten(), _product(g, value.mT).expand(w.shape).flatten())
                if self.pairs.lse:
                    total = total + (lse * g_lse[..., slices.rows]).sum()
            # Not of the output: its product with the values need not be computed again.
            gradients = [*torch.autograd.grad(total, [*leaves, *leaves_of_captured], allow_unused=True)]
            gradients.insert(2, _product(w.detach().mT, g))
            for buffer, part in zip([*_parts(totals[:3], slices), *totals[3:]], gradients, strict=True):
                if part is not None:
                    buffer.add_(part.sum_to_size(buffer.shape))
        return totals


@final
@dataclass(frozen=True, eq=False)
class _DifferentiableStripes:
    """The stripes as a function that is differentiated any number of times, of query, key, value and captured tensors.

    Attributes:
        stripes: the problem.
        captured: the tensors that its functions close over.
    """

    stripes: BatchStripes
    captured: tuple[Tensor, ...]

    @property
    def inputs(self) -> tuple[Cut, ...]:
        """Which part of each input belongs to a tile."""
        return (ROWS, COLUMNS, COLUMNS, *(COMPLETE for _ in self.captured))

    @property
    def results(self) -> tuple[Cut, ...]:
        """Which part of output and log Σ e^s a tile computes."""
        return (ROWS, STATE) if self.stripes.pairs.lse else (ROWS,)

    @property
    def guarded(self) -> Sequence[Tensor]:
        """The tensors of the mask, which is evaluated again."""
        return self.stripes.tiling.visibility.tensors()

    def reading(self, guarded: Sequence[Tensor]) -> "_DifferentiableStripes":
        """Return the function itself: `torch.func` does not transform it, so that the tensors are the same."""
        return self

    def tiling(self, tensors: Sequence[Tensor]) -> Tiling:
        """Return the stripes."""
        return self.stripes.tiling

    def __call__(
        self, tensors: Sequence[Tensor], slices: TileSlices, visible: Tensor | None, queries: int
    ) -> Sequence[Tensor]:
        """Compute some rows."""
        with Replaced(self.captured, tensors[3:]):
            output, lse, _ = self.stripes.of_parts(list(tensors[:3]), slices, visible)
        return (output, lse) if self.stripes.pairs.lse else (output,)


def _gradients_with_graph(ctx: Any, g_output: Tensor, g_lse: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients with a graph."""
    needed, recomputed = ctx.needs_input_grad[1:], _DifferentiableStripes(ctx.stripes, ctx.captured)
    chosen = tuple(index for index, want in enumerate(needed) if want)
    cotangents = [g_output, g_lse][: len(recomputed.results)]
    gradients = iter(gradients_of(recomputed, ctx.saved_tensors, chosen, cotangents))
    return None, *(next(gradients) if want else None for want in needed)


@final
class _Recomputed(torch.autograd.Function):
    """All stripes as one function, of query, key, value and captured tensors."""

    @staticmethod
    def forward(ctx: Any, stripes: BatchStripes, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.stripes = stripes
        ctx.captured = tensors[3:]
        ctx.save_for_backward(*tensors)
        results = stripes.all(list(tensors[:3]))
        ctx.mark_non_differentiable(results.largest)
        return results

    @staticmethod
    @differentiable_by(_gradients_with_graph)
    def backward(ctx: Any, g_output: Tensor, g_lse: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        # Saved tensors may be copies, as under an outer checkpoint; the functions read the captured ones themselves.
        gradients = ctx.stripes.backward(list(ctx.saved_tensors[:3]), ctx.captured, g_output, g_lse)
        pairs = zip(gradients, ctx.needs_input_grad[1:], strict=True)
        return None, *(g if needed else None for g, needed in pairs)


def _parts(inputs: list[Tensor], slices: TileSlices) -> list[Tensor]:
    """Return some rows of query, and the keys and values that any of them sees."""
    query, key, value = inputs
    return [query[..., slices.rows, :], key[..., slices.columns, :], value[..., slices.columns, :]]


def _stripe(parts: list[Tensor], pairs: Pairs, grid: Grid, positions: Positions, visible: Tensor | None) -> Results:
    """Return the results of some rows from their parts of query, key and value."""
    w, lse, largest = _weights(parts[:2], pairs, grid, positions, visible)
    return Results(_product(w, parts[2]), lse, largest)


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Return a product in the type of its operands, under autocast too."""
    with torch.autocast(one.device.type, enabled=False):
        return one @ other


def _weights(parts: list[Tensor], pairs: Pairs, grid: Grid, positions: Positions, visible: Tensor | None) -> Results:
    """Return the weights of some rows, in place of their output, from their parts of query and key."""
    q, k = parts
    rows, columns = positions
    device = grid.device
    indices = indices_on(grid, rows[:, None], columns)
    with torch.autocast(device.type, enabled=False):
        s = (q @ k.mT) * pairs.scale
        if pairs.scored is not None:
            s = pairs.scored(s, indices).to(s.dtype).expand(s.shape)
        # Also without a mask, a score of −∞ hides a pair, and may leave a row empty.
        visible_part = torch.ones((1, 1), dtype=torch.bool, device=device) if visible is None else visible
        w = Softmax()(s, visible_part)
        nothing = s.new_zeros(s.shape[:-1])
        lse = Softmax().state(s, visible) if pairs.lse else nothing
        largest = _largest(hide(s.detach(), visible, -torch.inf)) if pairs.largest else nothing
        if pairs.weighted is not None:
            changed = pairs.weighted(w, indices).to(w.dtype).expand(w.shape)
            w = torch.where(visible_part & (s.detach() != -torch.inf), changed, 0.0)
        if pairs.kept is not None:
            w = w * pairs.kept.factors(w.dtype, rows=rows, columns=columns)
        return Results(w, lse, largest)


def _largest(s: Tensor) -> Tensor:
    """Return each row's largest score, −∞ where there is none."""
    return s.amax(-1) if s.shape[-1] else s.new_full(s.shape[:-1], -torch.inf)
