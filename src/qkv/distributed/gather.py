"""Gathering: each process gets the keys and values of all, for normalizers whose weights depend on the whole row."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.distributed.blocks import Mechanism, arguments_of, compute_whole_rows, kept_factor, wide_type
from qkv.distributed.layout import Layout
from qkv.distributed.peers import Peers, Tensors
from qkv.distributed.placing import Block, visible_part
from qkv.engine.autograd import second_derivative_error, with_zero_gradients
from qkv.functional import attention_with_state_alone, attention_with_weights_alone
from qkv.masks.base import Grid
from qkv.normalizers.row_state import RowState
from qkv.shapes import Shape


def gather(peers: Peers, layout: Layout, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and values of all processes in the order of their positions.

    Args:
        peers: the processes.
        layout: of the keys.
        key, value: the part of this process.
    """
    gathered: tuple[Tensor, Tensor] = _Gather.apply(peers, layout, key, value)  # type: ignore[no-untyped-call]
    return gathered


def attend(
    peers: Peers,
    layouts: tuple[Layout, Layout],
    grid: Grid,
    mechanism: Mechanism,
    tensors: tuple[Tensor, Tensor, Tensor],
    also: str | None = None,
) -> Any:
    """Compute attention of this process's rows over the gathered keys and values.

    Args:
        peers, layouts, grid, mechanism, tensors: as `qkv.distributed.ring.attend` takes them; any normalizer.
        also: "state" or "weights" to return them too.
    """
    query = tensors[0]
    key, value = gather(peers, layouts[1], tensors[1], tensors[2])
    columns = range(grid.keys)
    parts = [
        compute_with(mechanism, query[..., rows, :], key, value, Block(at, columns, grid), also)
        for rows, at in mechanism.pieces(layouts[0], peers.rank) or [(slice(0, 0), range(0))]
    ]
    # A part of no rows, or of rows that see nothing, takes part in the exchange of gradients too.
    output = with_zero_gradients(torch.cat([part[0] for part in parts], -2), (key, value))
    if also is None:
        return output
    others = [part[1] for part in parts]
    if also == "weights":
        return output, torch.cat(others, -2)
    winners = [state.winner for state in others if state.winner is not None]
    state = torch.cat([state.value for state in others], -1)
    return output, RowState(
        others[0].kind,
        state,
        torch.cat(winners, -1) if winners else None,
        others[0].keys,
        others[0].sink,
        any(state.signed for state in others),
    )


def compute_with(
    mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, block: Block, also: str | None
) -> tuple[Tensor, Any]:
    """Compute a block of whole rows, and what `also` names: "weights", "state" or None."""
    if also is None:
        return compute_whole_rows(mechanism, query, key, value, block), None
    mask = None if mechanism.mask is None else visible_part(mechanism.mask, block)
    function: Any = attention_with_weights_alone if also == "weights" else attention_with_state_alone
    output, other = function(query, key, value, arguments_of(mechanism, block, mask), mechanism.backend)
    if not mechanism.dropout:
        return output, other
    output = compute_whole_rows(mechanism, query, key, value, block)
    return output, (other * kept_factor(mechanism, block)).to(output.dtype) if also == "weights" else other


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, peers: Peers, layout: Layout, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.peers, ctx.layout, ctx.dtype = peers, layout, tensors[0].dtype
        shapes = [[(*x.shape[:-2], count, x.shape[-1]) for x in tensors] for count in layout.counts]
        parts = _exchanged(peers, [[x.contiguous() for x in tensors]] * peers.size, shapes)
        whole = [x.new_empty(*x.shape[:-2], layout.length, x.shape[-1]) for x in tensors]
        for rank, part in enumerate(parts):
            for total, x in zip(whole, part, strict=True):
                for rows, run in layout.pieces(rank):
                    total[..., run.start : run.stop, :] = x[..., rows, :]
        return tuple(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise second_derivative_error("gathered keys and values")
        peers, layout, dtype = ctx.peers, ctx.layout, wide_type(ctx.dtype)
        parts = [[_part(x, layout, rank).to(dtype) for x in gradients] for rank in range(peers.size)]
        received = _exchanged(peers, parts, [[x.shape for x in parts[peers.rank]]] * peers.size)
        totals = [sum(xs[1:], start=xs[0]) for xs in zip(*received, strict=True)]
        return None, None, *(total.to(ctx.dtype) for total in totals)


def _part(x: Tensor, layout: Layout, rank: int) -> Tensor:
    """Return the rows of one process."""
    return torch.cat([x[..., :0, :], *(x[..., run.start : run.stop, :] for run in layout.runs(rank))], -2)


def _exchanged(peers: Peers, parts: Sequence[Tensors], shapes: Sequence[Sequence[Shape]]) -> list[Tensors]:
    """Send each process a part, and return what each sends to this one."""
    own = parts[peers.rank]
    received = [
        own if rank == peers.rank else [x.new_empty(shape) for x, shape in zip(own, shapes[rank], strict=True)]
        for rank in range(peers.size)
    ]
    others = [rank for rank in range(peers.size) if rank != peers.rank]
    peers.start({rank: parts[rank] for rank in others}, {rank: received[rank] for rank in others})()
    return received
