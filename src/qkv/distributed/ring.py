"""The ring: keys and values travel from process to process, and each merges its rows with what arrives.

A process holds its own part, the one that it computes with, and the next one, which arrives meanwhile. In the backward
pass keys and values travel again, and the sums of their gradients with them, which end at home. Each block of pairs is
then computed a second time, and differentiated with what the merged result passes to it: for an output
o = Σ c_i o_i, merged of blocks with outputs o_i and states s_i,

| normalizer | gradient of o_i | gradient of s_i |
|---|---|---|
| softmax | c_i g, c_i = exp(s_i − s) | c_i g·(o_i − o) |
| sum | c_i g, c_i = s_i / s | g·(o_i − o) / s |
| mean | c_i g, c_i = s_i / s | none |
| identity, sigmoid | g | none |
| hard | g where the winning key is in the block | none |

Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers"; Milakov and Gimelshein 2018, "Online normalizer
calculation for softmax", section 3 (the merge).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from qkv.distributed.blocks import Mechanism, compute, empty_part, wide_type, with_counted_bias
from qkv.distributed.fused import fused_gradients, fused_scale
from qkv.distributed.layout import Layout
from qkv.distributed.peers import Peers, Tensors
from qkv.distributed.placing import Block, visible_part
from qkv.engine.autograd import second_derivative_error
from qkv.masks.base import Grid, Mask
from qkv.masks.patterns import is_plain_causal
from qkv.normalizers.row_state import RowState, merge
from qkv.shapes import Shape

_ADDED = ("identity", "sigmoid")
"""The normalizers whose outputs over disjoint sets of keys are added."""


@final
@dataclass(frozen=True, eq=False)
class Ring:
    """A call over a group of processes.

    Attributes:
        peers: the processes.
        queries, keys: which positions each has.
        grid: the sizes of the whole matrix.
        mechanism: the call; a softmax has no sink here.
        places: where the mechanism has tensors that need a gradient.
        shift: added to the scores of each row of this process, (..., Q); None for nothing.
    """

    peers: Peers
    queries: Layout
    keys: Layout
    grid: Grid
    mechanism: Mechanism
    places: list[tuple[str, str]]
    shift: Tensor | None

    def shapes(self, key: Tensor, value: Tensor) -> list[list[Shape]]:
        """Return the shapes of the key and the value of each process, from those of this one."""
        return [[(*x.shape[:-2], count, x.shape[-1]) for x in (key, value)] for count in self.keys.counts]

    def rows(self) -> tuple[tuple[slice, range], ...]:
        """Return the rows of this process that are computed together, with their positions."""
        return self.mechanism.pieces(self.queries, self.peers.rank)

    def blocks(self, owner: int) -> Iterator[tuple[int, slice, slice, Block]]:
        """Yield index of the rows, rows, columns and block of each pair of pieces of this process and another."""
        for index, (rows, at) in enumerate(self.rows()):
            for columns, where in self.mechanism.pieces(self.keys, owner):
                yield index, rows, columns, Block(at, where, self.grid)

    def shift_of(self, rows: slice) -> Tensor | None:
        """Return what is added to the scores of some rows."""
        return None if self.shift is None else self.shift[..., rows]


def attend(
    peers: Peers,
    layouts: tuple[Layout, Layout],
    grid: Grid,
    mechanism: Mechanism,
    tensors: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, RowState]:
    """Compute attention by the ring: output, in at least float32, and row state of this process's rows.

    Args:
        peers: the processes.
        layouts: of the queries and of the keys.
        grid: the sizes of the whole matrix.
        mechanism: the call; its normalizer can be merged, and has no sink.
        tensors: query, key and value of this process.
    """
    places = mechanism.learned()
    learned = [mechanism.read(place) for place in places]
    closed = mechanism.closed_over(tensors[0], tensors[1])
    counted, shift = with_counted_bias(mechanism, layouts[0], peers.rank, grid)
    ring = Ring(peers, *layouts, grid, counted, places, shift)
    output, value, winner = _Attend.apply(ring, *tensors, *learned, *closed)  # type: ignore[no-untyped-call]
    hard = mechanism.kind == "hard"
    state = RowState(mechanism.kind, value, winner if hard else None, grid.keys if hard else None)  # type: ignore[arg-type]
    return output, state


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ring: Ring, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor) -> Any:
        wide = wide_type(query.dtype)
        merged: list[tuple[Tensor, RowState] | None] = [None] * len(ring.rows())
        # Contiguous, so that no view keeps a larger tensor, such as the projection of all three, for the backward pass.
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        with ring.peers.circulated([key, value], ring.shapes(key, value)) as parts:
            for owner, (keys, values) in parts:
                for index, rows, columns, block in ring.blocks(owner):
                    inputs = query[..., rows, :], keys[..., columns, :], values[..., columns, :]
                    part = compute(ring.mechanism, *inputs, block, ring.shift_of(rows))
                    if part is not None:
                        merged[index] = _merged(merged[index], part, block.columns.start, wide)
        width = value.shape[-1]
        results = [
            empty_part(ring.mechanism, ring.grid, len(at), width, wide) if part is None else part
            for part, (_, at) in zip(merged, ring.rows(), strict=True)
        ] or [empty_part(ring.mechanism, ring.grid, 0, width, wide)]
        output = torch.cat([part for part, _ in results], -2)
        state = torch.cat([state.value for _, state in results], -1)
        winners = [state.winner for _, state in results if state.winner is not None]
        winner = torch.cat(winners, -1) if winners else torch.empty(0, dtype=torch.int64, device=query.device)
        ctx.ring, ctx.count = ring, len(learned)
        ctx.save_for_backward(query, key, value, *learned, output, state, winner)
        ctx.mark_non_differentiable(winner)
        ctx.set_materialize_grads(False)
        return output, state, winner

    @staticmethod
    def backward(ctx: Any, from_output: Tensor | None, from_state: Tensor | None, _: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise second_derivative_error("a ring of processes")
        ring, (query, key, value, *learned, output, state, winner) = ctx.ring, ctx.saved_tensors
        if from_output is None:
            from_output = torch.zeros_like(output)
        result = _Result(output, state, winner, from_output, from_state)
        sums = _Sums(ring, query, key, value, learned)
        shapes, rank, size = ring.shapes(key, value), ring.peers.rank, ring.peers.size
        arriving: Callable[[Tensors], None] = _nothing_arrives
        with ring.peers.circulated([key, value], shapes) as parts:
            for owner, tensors in parts:
                if owner == rank:
                    continue  # last, while the gradients of the others travel: until then nothing of them is held
                gradients = [output.new_zeros(shape) for shape in shapes[owner]]
                sums.add(owner, tensors, gradients, result)
                arriving(gradients)
                # On to the next process, which computes with these keys in the next hop, or whose own they are.
                arriving = _pass_on(ring.peers, gradients, shapes[(owner - 1) % size])
        own = [output.new_zeros(shape) for shape in shapes[rank]]
        sums.add(rank, (key, value), own, result)
        arriving(own)
        totals = [sums.query, *own, *sums.learned]
        return None, *(total.to(x.dtype) for total, x in zip(totals, (query, key, value, *learned), strict=True))


def _nothing_arrives(totals: Tensors) -> None:
    """Add nothing: the first gradients have no sum to be added to."""


def _pass_on(peers: Peers, gradients: Tensors, arriving: Sequence[Shape]) -> Callable[[Tensors], None]:
    """Begin to send gradients to the next process; return what adds those of the process before to sums."""
    incoming = [x.new_empty(shape) for x, shape in zip(gradients, arriving, strict=True)]
    after, before = (peers.rank + 1) % peers.size, (peers.rank - 1) % peers.size
    wait = peers.start({after: gradients}, {before: incoming}, tag=1)

    def add(totals: Tensors) -> None:
        wait()
        for total, x in zip(totals, incoming, strict=True):
            total.add_(x)

    return add


@dataclass(eq=False)
class _Result:
    """What the forward pass returned, and the gradients that came back."""

    output: Tensor
    state: Tensor
    winner: Tensor
    from_output: Tensor
    from_state: Tensor | None

    @cached_property
    def finite(self) -> bool:
        """Whether every row sees a key, and all its scores are finite."""
        return bool(self.state.isfinite().all())


class _Sums:
    """The sums of the gradients over all blocks of this process."""

    def __init__(self, ring: Ring, query: Tensor, key: Tensor, value: Tensor, learned: Sequence[Tensor]) -> None:
        self.ring, self._query = ring, query
        wide = wide_type(query.dtype)
        self.query = torch.zeros(query.shape, dtype=wide, device=query.device)
        self._placed = [x.detach().requires_grad_() for x in learned[: len(ring.places)]]
        self._closed = list(learned[len(ring.places) :])
        self.learned = [torch.zeros(x.shape, dtype=wide_type(x.dtype), device=x.device) for x in learned]
        self._mechanism = ring.mechanism.replaced(ring.places, self._placed)

    def add(self, owner: int, tensors: Sequence[Tensor], into: Sequence[Tensor], result: _Result) -> None:
        """Add the gradients of this process's rows and the keys and values of another, `into` its sums."""
        for _, rows, columns, block in self.ring.blocks(owner):
            key, value = tensors
            inputs = self._query[..., rows, :], key[..., columns, :], value[..., columns, :]
            sums = [self.query[..., rows, :], *(x[..., columns, :] for x in into), *self.learned]
            fused = self._fused(inputs, rows, block, result)
            if fused is not None:
                for total, summand in zip(sums, fused, strict=True):
                    total.add_(summand)
                continue
            leaves = [x.detach().requires_grad_() for x in inputs]
            with torch.enable_grad():
                part = compute(self._mechanism, leaves[0], leaves[1], leaves[2], block, self.ring.shift_of(rows))
            if part is None:
                continue
            gradients = self._gradients(part, [*leaves, *self._placed, *self._closed], rows, block, result)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)

    def _fused(
        self, inputs: tuple[Tensor, Tensor, Tensor], rows: slice, block: Block, result: _Result
    ) -> tuple[Tensor, ...] | None:
        """Return the gradients of query, key and value by PyTorch's kernel, if it computes them; None if not."""
        if not result.finite or result.from_state is not None or self.learned:
            return None
        scale = fused_scale(self._mechanism, inputs)
        mask = None if self._mechanism.mask is None else visible_part(self._mechanism.mask, block)
        if scale is None or not (mask is None or (isinstance(mask, Mask) and is_plain_causal(mask))):
            return None
        g, output, state = result.from_output[..., rows, :], result.output[..., rows, :], result.state[..., rows]
        return fused_gradients(inputs, g, output, state, mask is not None, scale)

    def _gradients(
        self, part: tuple[Tensor, RowState], inputs: list[Tensor], rows: slice, block: Block, result: _Result
    ) -> Sequence[Tensor | None]:
        output, state = part
        passed = _passed(part, rows, block, result)
        pairs = [
            (x, gradient.to(x.dtype))
            for x, gradient in zip((output, state.value), passed, strict=True)
            if gradient is not None and x.requires_grad
        ]
        if not pairs:
            return [None] * len(inputs)
        outputs, gradients = zip(*pairs, strict=True)
        found: Sequence[Tensor | None] = torch.autograd.grad(
            outputs, inputs, gradients, allow_unused=True, retain_graph=bool(self._closed)
        )
        return found


def _merged(
    total: tuple[Tensor, RowState] | None, part: tuple[Tensor, RowState], start: int, dtype: torch.dtype
) -> tuple[Tensor, RowState]:
    """Merge a block, whose keys begin at `start`, with those before it."""
    output, state = part
    if state.kind in _ADDED:
        state = RowState("identity", torch.zeros_like(state.value))
    part = output.to(dtype), state
    return merge([part], [start]) if total is None else merge([total, part], [0, start])


def _passed(part: tuple[Tensor, RowState], rows: slice, block: Block, result: _Result) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the output and the state of a block, from those of the merged result."""
    output, state = part[0].detach(), part[1].value.detach()
    g, merged, total = result.from_output[..., rows, :], result.output[..., rows, :], result.state[..., rows]
    from_state = None if result.from_state is None else result.from_state[..., rows]
    match part[1].kind:
        case "softmax":
            share = torch.exp(torch.where(state == -torch.inf, state, state - torch.where(total.isinf(), 0.0, total)))
            change = (g.double() * (output.double() - merged.double())).sum(-1)
            return g * share[..., None], share * (change if from_state is None else change + from_state)
        case "sum":
            divisor = torch.where(total == 0, 1.0, total)
            change = (g.double() * (output.double() - merged.double())).sum(-1) / divisor
            return g * (state / divisor)[..., None], change if from_state is None else change + from_state
        case "mean":
            return g * (state / torch.where(total == 0, 1.0, total))[..., None], None
        case "hard":
            winner, columns = result.winner[..., rows], block.columns
            won = (winner >= columns.start) & (winner < columns.stop)
            return torch.where(won[..., None], g, torch.zeros_like(g)), None
    return g, None
