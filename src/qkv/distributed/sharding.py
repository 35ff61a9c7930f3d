"""One sequence over several processes: `shard`, and what it computes for one process's part."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, final, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from qkv.argument_names import ATTENTION, explain_arguments
from qkv.distributed import gather, ring
from qkv.distributed.blocks import Mechanism, arguments_of, mechanism_of, row_counts, wide_type, with_counted_bias
from qkv.distributed.layout import Arrangement, Layout
from qkv.distributed.peers import Peers
from qkv.distributed.placing import Block, grid_of, placed_mask, visible_part
from qkv.engine.describe import Arguments, autocasts, describe
from qkv.errors import UnsupportedError, expect_name
from qkv.functional import attention, with_arguments_of
from qkv.masks.base import Grid
from qkv.normalizers.dense import Softmax, Sum
from qkv.normalizers.row_state import RowState, merge
from qkv.planner.plan import plan_for
from qkv.values.checked import checked
from qkv.values.parameters import expect_floats, spread
from qkv.values.sharded import ACTIVE

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Method = Literal["auto", "ring", "gather"]
Also = Literal["weights", "state"]
_BY_RING = ("softmax", "sum", "mean", "identity", "hard", "sigmoid")
"""The normalizers of which a process merges what it computes with the keys of one process at a time."""


class _Shared(NamedTuple):
    """A call whose sizes are known in all processes."""

    grid: Grid
    layouts: tuple[Layout, Layout]
    mechanism: Mechanism
    tensors: tuple[Tensor, Tensor, Tensor]


@final
@dataclass(frozen=True)
class ShardPlan:
    """How one process computes its part of a call, and what that costs.

    Attributes:
        method: "ring" or "gather".
        why: the reason, in a sentence.
        rank: the process.
        queries, keys: the positions of every process.
        sent: bytes of keys and values that this process sends in the forward pass.
        sent_backward: bytes of keys, values and their gradients that it sends in the backward pass.
        kept: the most bytes of other processes' keys and values that it holds at once, in the forward pass.
        blocks: how many pairs of runs it computes, and how many it skips because the mask hides them.
        backends: the backends that compute the blocks.

        mapped: bytes of keys that it sends, and those of others that it holds, for `qkv.attention_map` of its rows.
        recorded: the same of queries, keys and values for `qkv.record`, which gives each process the whole sequence;
            a layer's inputs and row states come on top.

    The sizes of a call travel too: 128 bytes to each process.
    """

    method: Literal["ring", "gather"]
    why: str
    rank: int
    queries: Layout
    keys: Layout
    sent: int
    sent_backward: int
    kept: int
    blocks: tuple[int, int]
    backends: tuple[str, ...]
    mapped: tuple[int, int]
    recorded: tuple[int, int]

    def __str__(self) -> str:
        """Return a few lines for people."""
        rows, keys = self.queries.counts[self.rank], self.keys.length
        return "\n".join(
            (
                f"{self.method}: {self.why}",
                f"process {self.rank} of {len(self.keys.counts)}, {self.queries.arrangement}: {rows:,} of "
                f"{self.queries.length:,} queries over {keys:,} keys",
                f"{self.blocks[0]} blocks by {', '.join(self.backends) or 'no backend'}; {self.blocks[1]} hidden",
                f"sends {self.sent:,} bytes forward and {self.sent_backward:,} backward; holds {self.kept:,} bytes of "
                "others' keys and values",
                f"a map of its rows sends {self.mapped[0]:,} bytes and holds {self.mapped[1]:,} of others; "
                f"a recording of all rows {self.recorded[0]:,} and {self.recorded[1]:,}",
            )
        )


@final
@dataclass(eq=False)
class Shard:
    """One process of those that share a sequence; `shard` makes it. As a context, it serves every attention.

    Attributes:
        peers: the processes.
        layout: "contiguous" or "zigzag".
        method: "auto", "ring" or "gather".
    """

    peers: Peers
    layout: Arrangement
    method: Method

    def __enter__(self) -> Self:
        ACTIVE.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ACTIVE.remove(self)

    @property
    def rank(self) -> int:
        """The number of this process in the group."""
        return self.peers.rank

    @property
    def size(self) -> int:
        """How many processes share the sequence."""
        return self.peers.size

    def split(self, x: Tensor, dim: int = -1) -> Tensor:
        """Return this process's part of a tensor that every process has whole, as even as possible.

        Args:
            x: for example token ids (B, T).
            dim: the dimension of the sequence.
        """
        layout = Layout.even(self.layout, x.shape[dim], self.size)
        return x.index_select(dim, layout.positions(self.rank, x.device))

    @torch.no_grad()
    def join(self, x: Tensor, dim: int = -2) -> Tensor:
        """Return the whole tensor from the parts of all processes, detached: for looking at, not for a loss.

        Args:
            x: the part of this process; parts differ in the dimension of the sequence alone.
            dim: the dimension of the sequence.

        Raises:
            TrainingError: the parts do not fit together.
        """
        moved = x.movedim(dim, 0).contiguous()
        facts = {"shape besides the sequence": f"{tuple(moved.shape[1:])}", "dtype": f"{x.dtype}"}
        rows = self.peers.agreed("a whole tensor, for a map or a recording", [moved.shape[0]], facts, x.device)
        layout = Layout(self.layout, tuple(row[0] for row in rows))
        whole = moved.new_empty(layout.length, *moved.shape[1:])
        shapes = [[(count, *moved.shape[1:])] for count in layout.counts]
        with self.peers.circulated([moved], shapes) as parts:
            for owner, (part,) in parts:
                for place, run in layout.pieces(owner):
                    whole[run.start : run.stop] = part[place]
        return whole.movedim(0, dim)

    def runs(self, count: int, x: Tensor) -> tuple[range, ...]:
        """Return the positions of this process's rows in the whole sequence, as runs; every process must call this.

        Args:
            count: how many rows this process has.
            x: a tensor on the device of the rows.
        """
        rows = self.peers.agreed("positions", [count], {}, x.device)
        return Layout(self.layout, tuple(row[0] for row in rows)).runs(self.rank)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str, also: str | None
    ) -> Any:
        """Compute what `qkv.attention`, or with `also` a sibling of it, asks for."""
        if also not in (None, *get_args(Also)):
            hint = 'Pass also="weights" or "state".'
            raise UnsupportedError("also", '"weights", "state" or None, in a shard', f"{also!r}", hint)
        return self._attend(query, key, value, arguments, backend, also)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str, also: str | None
    ) -> Any:
        call = self._shared(query, key, value, arguments, backend, also)
        method, _ = self._method(call.mechanism, also)
        # Gradients are summed over blocks in wide types: autocast is settled before.
        with torch.autocast(query.device.type, enabled=False) if autocasts(query.device.type) else nullcontext():
            if method == "gather":
                return gather.attend(self.peers, call.layouts, call.grid, call.mechanism, call.tensors, also)
            output, state = self._by_ring(call)
        output = output.to(call.tensors[0].dtype)
        return (output, state) if also == "state" else output

    def _by_ring(self, call: _Shared) -> tuple[Tensor, RowState]:
        grid, mechanism = call.grid, call.mechanism
        sink = mechanism.normalizer.sink if isinstance(mechanism.normalizer, Softmax) else None
        if sink is not None:
            mechanism = replace(mechanism, normalizer=Softmax())
        output, state = ring.attend(self.peers, call.layouts, grid, mechanism, call.tensors)
        if sink is not None:
            # The sink is a part of its own, with one key whose value is 0.
            spread_out = torch.as_tensor(spread(sink, by=1), dtype=torch.float64, device=output.device)
            own = RowState("softmax", spread_out.expand(state.value.shape), sink=True)
            output, state = merge([(output, state), (torch.zeros_like(output), own)])
        if mechanism.kind == "sigmoid":
            counts = row_counts(mechanism, call.layouts[0], self.rank, grid)
            state = RowState("sigmoid", counts.double().expand(state.value.shape))
        return output, state

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes; every process must call this."""
        return self.peers.total(x)

    @torch.no_grad()
    def map_inputs(self, query: Tensor, key: Tensor, arguments: Arguments) -> tuple[Tensor, Tensor, Arguments]:
        """Return the inputs of the attention map of this process's rows; every process must call this.

        Args:
            query, key: the parts of this process.
            arguments: the others.

        Returns:
            Query, the keys of all, and the arguments with mask and bias at this process's rows; all detached.
        """
        call = self._shared(query, key, key, arguments, "auto", "map")
        learned = {name: getattr(call.mechanism, name) for name in ("score", "normalizer", "mask", "bias")}
        mechanism = replace(call.mechanism, **tree_map_only(Tensor, Tensor.detach, learned))
        own, key = (x.detach() for x in call.tensors[:2])
        keys, _ = gather.gather(self.peers, call.layouts[1], key, key[..., :0])
        block = Block(call.layouts[0].rows(self.rank, query.device), range(call.grid.keys), call.grid)
        mask = None if mechanism.mask is None else placed_mask(mechanism.mask, block)
        return own, keys, arguments_of(mechanism, block, mask)

    def plan(self, query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str) -> ShardPlan:
        """Describe how this process would compute a call; every process must call this."""
        call = self._shared(query, key, value, arguments, backend, None)
        method, why = self._method(call.mechanism, None)
        queries, keys = call.layouts
        width = [prod(x.shape[:-2]) * x.shape[-1] for x in call.tensors[1:]]
        held, summed = sum(width) * key.dtype.itemsize, sum(width) * wide_type(call.tensors[0].dtype).itemsize
        own, after = keys.counts[self.rank], keys.counts[(self.rank + 1) % self.size]
        others = keys.length - own
        if method == "ring":
            sent = (keys.length - after) * held if self.size > 1 else 0
            backward = sent + others * summed
            passed = [0, *(keys.counts[(self.rank - hop) % self.size] for hop in range(1, self.size))]
            kept = max(map(sum, pairwise(passed)), default=0) * held
        else:
            sent, backward, kept = (self.size - 1) * own * held, others * summed, others * held
        of_key = prod(key.shape[:-2]) * key.shape[-1] * key.dtype.itemsize
        of_query = prod(query.shape[:-2]) * query.shape[-1] * query.dtype.itemsize
        mapped = (self.size - 1) * own * of_key, others * of_key
        joined = [
            (counts.length - counts.counts[(self.rank + 1) % self.size]) * each if self.size > 1 else 0
            for counts, each in ((queries, of_query), (keys, held))
        ]
        recorded = sum(joined), (queries.length - queries.counts[self.rank]) * of_query + others * held
        blocks, hidden, backends = self._blocks(call, method)
        run = (blocks, hidden), tuple(sorted(backends))
        return ShardPlan(method, why, self.rank, queries, keys, sent, backward, kept, *run, mapped, recorded)

    def _blocks(self, call: _Shared, method: str) -> tuple[int, int, set[str]]:
        """Return how many blocks this process computes and skips, and the backends that compute them."""
        mechanism, shift = with_counted_bias(call.mechanism, call.layouts[0], self.rank, call.grid)
        of_ring = ring.Ring(self.peers, *call.layouts, call.grid, mechanism, [], shift)
        query, key, value = (x.detach() for x in call.tensors)
        computed, hidden, backends = 0, 0, set()
        if method == "gather":
            keys = Layout("contiguous", (call.grid.keys,) + (0,) * (self.size - 1))
            of_ring = replace(of_ring, keys=keys)
            owners, key, value = [0], _rows_of(key, call.grid.keys), _rows_of(value, call.grid.keys)
        else:
            owners = list(range(self.size))
        for owner in owners:
            for _, rows, _, block in of_ring.blocks(owner):
                mask = None if mechanism.mask is None else visible_part(mechanism.mask, block)
                if mask is False and method == "ring":
                    hidden += 1
                    continue
                part = [_rows_of(x, len(block.columns)) for x in (key, value)]
                arguments = arguments_of(mechanism, block, mask, of_ring.shift_of(rows))
                problem, of_block, _ = describe(query[..., rows, :], part[0], part[1], arguments)
                backends.add(plan_for(problem, mechanism.backend).inspected(of_block).backend)
                computed += 1
        return computed, hidden, backends

    def _shared(
        self, query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str, also: str | None
    ) -> _Shared:
        """Check a call, and agree on its sizes with the other processes."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            expect_floats(name, x)
        kind = query.device.type
        if autocasts(kind) and query.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(kind)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        mechanism = mechanism_of(arguments, query.device, backend, also)
        seed = mechanism.seed
        numbers = [query.shape[-2], key.shape[-2], 0 if seed is None else int(seed)]
        facts = self._facts(mechanism, query, key, value, also)
        rows = self.peers.agreed("a map" if also == "map" else "attention", numbers, facts, query.device)
        queries, keys, seeds = zip(*rows, strict=True)
        tensors = query, key, value
        layouts = Layout(self.layout, queries), Layout(self.layout, keys)
        grid = grid_of(query, key, value, mechanism.enable_gqa, layouts[0].length, layouts[1].length)
        # Every process has the whole call checked, before anything is sent.
        whole = [_rows_of(x, count) for x, count in zip(tensors, (grid.queries, grid.keys, grid.keys), strict=True)]
        describe(whole[0], whole[1], whole[2], arguments._replace(generator=torch.Generator()))
        if seed is not None:
            mechanism = replace(mechanism, seed=torch.tensor(seeds[0], device=query.device))
        return _Shared(grid, layouts, mechanism, tensors)

    def _facts(
        self, mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, also: str | None
    ) -> dict[str, str]:
        """Return what must be the same in every process."""
        tensors = (query, key, value)
        grads = [torch.is_grad_enabled() and x.requires_grad for x in tensors]
        return {
            "shapes besides the sequence": f"{[(tuple(x.shape[:-2]), x.shape[-1]) for x in tensors]}",
            "dtype": f"{query.dtype}",
            "gradients": f"{grads}, {len(mechanism.learned()) if torch.is_grad_enabled() else 0} parameters",
            "score and normalizer": f"{type(mechanism.score).__name__} under {mechanism.kind}",
            "mask and bias": f"{_name(mechanism.mask)} and {_name(mechanism.bias)}",
            "options": f"{self.layout}, {self.method}, dropout {mechanism.dropout}, {mechanism.backend}, also {also}",
        }

    def _method(self, mechanism: Mechanism, also: str | None) -> tuple[Literal["ring", "gather"], str]:
        """Return how a call is computed, and why."""
        reason = None
        if mechanism.kind not in _BY_RING:
            reason = f"the weights of {mechanism.kind} depend on the whole row, so each process gets all keys"
        elif also == "weights":
            reason = "whole rows of weights are requested, so each process gets all keys"
        elif isinstance(mechanism.normalizer, Sum) and mechanism.bias is not None:
            reason = "a bias may make scores under a sum negative, so that totals of parts cancel"
        if reason is None:
            if self.method == "gather":
                return "gather", "it was requested"
            return "ring", f"parts of {mechanism.kind} can be merged, so keys travel and no process holds all"
        if self.method == "ring":
            hint = 'Pass method="auto" or "gather".'
            raise UnsupportedError("method", "a mechanism whose parts can be merged, for a ring", reason, hint)
        return "gather", reason


def _rows_of(x: Tensor, count: int) -> Tensor:
    """Return a tensor without memory of its own that has as many rows."""
    return x.new_zeros(1).expand(*x.shape[:-2], count, x.shape[-1])


def _name(value: object) -> str:
    """Return the kind of a mask or a bias."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)}"
    return "none" if value is None else f"{getattr(value, 'name', type(value).__name__)}"


@checked
def shard(group: "ProcessGroup | None" = None, *, layout: Arrangement = "contiguous", method: Method = "auto") -> Shard:
    """Share a sequence among the processes of a group: each has a part of its queries, keys and values.

    Inside `with shard(...)`, `qkv.attention` and every `nn.Attention` attend to the keys of all processes, and every
    position (sinusoidal, rotary, learned) counts from the start of the whole sequence. Masks and biases are those
    of the whole sequence. Parameters get this process's part of their gradient: sum it over the group. Forward and
    backward must both run inside, in every process, also in one whose part is empty.

    Args:
        group: of `torch.distributed`; None for all processes.
        layout: which positions a process has: "contiguous", one run; or "zigzag", one run from the start and one from
            the end, so that causal masks leave as much work to each.
        method: "ring" lets keys travel from process to process; "gather" gives all of them to each; "auto" takes the
            ring where results can be merged, and gathers for sparsemax, entmax and user-defined normalizers.

    Returns:
        The context, in which `qkv.attention` and its siblings, models and maps attend to the keys of all processes;
        its methods split and join tensors.

    Raises:
        ConfigError: an argument is not one of these, or no group is initialized.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context".

    Example:
        >>> import torch.distributed as dist
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> with shard(layout="zigzag") as part:
        ...     part.split(torch.arange(5))
        tensor([0, 1, 2, 3, 4])
        >>> dist.destroy_process_group()
    """
    expect_name("layout", layout, get_args(Arrangement))
    expect_name("method", method, get_args(Method))
    return Shard(Peers(group), layout, method)


@explain_arguments(ATTENTION)
@with_arguments_of(attention)
def explain(query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str) -> ShardPlan:
    """Describe how this process would compute `qkv.attention` in the shard that is open; every process must call this.

    Args:
        query, key, value: the parts of this process.
        score, normalizer, mask, bias, dropout, generator, enable_gqa, backend: as `qkv.attention`.

    Returns:
        The plan: ring or gather, and why; bytes sent and held; text when printed.

    Raises:
        UnsupportedError: no shard is open.
        QkvError: as `qkv.attention`.

    Example:
        >>> import torch.distributed as dist
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> with shard():
        ...     explain(*torch.randn(3, 2, 5, 8).unbind()).method
        'ring'
        >>> dist.destroy_process_group()
    """
    part = ACTIVE[-1] if ACTIVE else None
    if not isinstance(part, Shard):
        hint = "Call it inside of `with qkv.distributed.shard(...)`; qkv.explain describes calls of one process."
        raise UnsupportedError("explain", "a call inside of a shard", "a call of one process", hint)
    # With its own generator, as looking at a plan must not change what is drawn next.
    return part.plan(query, key, value, arguments._replace(generator=torch.Generator()), backend)
