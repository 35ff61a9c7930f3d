"""DTensors divided along batch or heads: each process computes its items alone, by the mechanism cut to them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils import _pytree

from qkv.distributed.blocks import Mechanism, mechanism_of
from qkv.distributed.gather import compute_with
from qkv.distributed.placing import Block, grid_of
from qkv.engine.autograd import with_zero_gradients
from qkv.engine.describe import Arguments, describe
from qkv.errors import UnsupportedError
from qkv.normalizers.row_state import RowState
from qkv.shapes import Shape, show
from qkv.values.parameters import with_items


class _Division(NamedTuple):
    """How the items of a call are divided among the processes of a mesh.

    Attributes:
        mesh: the processes.
        dims: for each dimension of the mesh, which leading dimension it divides, from the right: 1 is heads; None if
            all its processes compute the same.
    """

    mesh: DeviceMesh
    dims: tuple[int | None, ...]

    def placements(self, shape: Shape, trailing: int) -> list[Placement]:
        """Return how a tensor is divided: as the items, if it has them.

        Args:
            shape: (..., trailing dimensions), of which the leading ones broadcast to the items.
            trailing: how many dimensions an item has.
        """
        places = [None if dim is None else len(shape) - trailing - dim for dim in self.dims]
        return [Shard(x) if x is not None and x >= 0 and shape[x] != 1 else Replicate() for x in places]

    def gradients(self, placements: Sequence[Placement]) -> list[Placement]:
        """Return what its gradient is: in one process a summand, where others use it for other items."""
        return [
            Partial() if dim is not None and isinstance(x, Replicate) else x
            for dim, x in zip(self.dims, placements, strict=True)
        ]

    def local(self, x: Tensor, trailing: int | None = None) -> Tensor:
        """Return this process's part of a tensor that is whole, or of a DTensor; without `trailing`, all of it."""
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, self.mesh, [Replicate()] * self.mesh.ndim, run_check=False)
        whole: list[Placement] = [Replicate()] * self.mesh.ndim
        placements = whole if trailing is None else self.placements(tuple(x.shape), trailing)
        return x.redistribute(self.mesh, placements).to_local(grad_placements=self.gradients(placements))

    def whole(self, x: Tensor, leading: Shape) -> Tensor:
        """Return the DTensor of which this process has computed its items."""
        shape = torch.Size((*leading, *x.shape[len(leading) :]))
        placements = self.placements(tuple(shape), x.ndim - len(leading))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(x.contiguous(), self.mesh, placements, run_check=False, shape=shape, stride=stride)

    def items(self, leading: Shape) -> tuple[range, ...]:
        """Return this process's items in each leading dimension."""
        runs = [range(size) for size in leading]
        for mesh_dim, dim in enumerate(self.dims):
            if dim is not None and leading[-dim] != 1:
                run = runs[-dim]
                size = -(-len(run) // self.mesh.size(mesh_dim))  # as torch.chunk divides
                start = min(size * self.mesh.get_local_rank(mesh_dim), len(run))
                runs[-dim] = run[start : start + size]
        return tuple(runs)


@final
class Items:
    """Computes calls whose query, key or value are DTensors."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, arguments: Arguments, backend: str, also: str | None
    ) -> Any:
        """Compute this process's items of `qkv.attention`, or with `also` of a sibling, as DTensors of all.

        Args:
            query, key, value: DTensors, or tensors that every process has whole.
            arguments: the others; their tensors likewise.
            backend: by name.
            also: "weights", "state" or None.

        Raises:
            UnsupportedError: a DTensor is divided along its sequence or features, or not as the others are.
            QkvError: as `qkv.attention`.
        """
        tensors = query, key, value
        division = _division_of(tensors)
        mechanism = mechanism_of(arguments, query.device, backend, also)
        grid = grid_of(query, key, value, mechanism.enable_gqa, query.shape[-2], key.shape[-2])
        mechanism = _local_mechanism(mechanism, division)
        mathematics = mechanism.score, mechanism.normalizer, mechanism.mask, mechanism.bias
        q, k, v = (torch.empty(1, dtype=x.dtype, device=x.device).expand(x.shape) for x in tensors)
        describe(q, k, v, Arguments(*mathematics, *arguments[4:])._replace(generator=torch.Generator()))  # checks it
        items = division.items(grid.leading)
        key_leading = (*grid.leading[:-1], key.shape[-3]) if mechanism.enable_gqa else grid.leading
        key_items = division.items(key_leading)
        if mechanism.enable_gqa and len(items[-1]) * key.shape[-3] != len(key_items[-1]) * grid.leading[-1]:
            got = f"{key.shape[-3]} key heads divided as {grid.leading[-1]} query heads"
            hint = "Divide along the batch, or among as many processes as divide the key heads."
            raise UnsupportedError("key", "whole groups of heads in each process", got, hint)
        mechanism = replace(
            mechanism,
            score=with_items(mechanism.score, mechanism.score.parameters, items, key_items),
            normalizer=with_items(mechanism.normalizer, mechanism.normalizer.parameters, items, key_items),
        )
        block = Block(range(grid.queries), range(grid.keys), grid, items)
        q, k, v = (division.local(x, 2) for x in tensors)
        output, other = compute_with(mechanism, q, k, v, block, also)
        # A process without items must still join the reductions of gradients.
        learned = [mechanism.read(place) for place in mechanism.learned()]
        output = division.whole(with_zero_gradients(output, (q, k, v, *learned)), grid.leading)
        if also is None:
            return output
        if not isinstance(other, RowState):
            return output, division.whole(other, grid.leading)
        return output, other.map(lambda x: division.whole(x, grid.leading))

    def runs(self, count: int, x: Tensor) -> tuple[range, ...]:
        """Return all positions: the sequence is not divided."""
        return (range(count),)


def _division_of(tensors: Sequence[Tensor]) -> _Division:
    """Return how DTensors are divided, after a check that it is along items, and in one way."""
    divided = {name: x for name, x in zip(("query", "key", "value"), tensors, strict=True) if isinstance(x, DTensor)}
    mesh = next(iter(divided.values())).device_mesh
    dims: list[int | None] = [None] * mesh.ndim
    for name, x in divided.items():
        if x.device_mesh != mesh:
            hint = "Use DTensors of one mesh, or x.full_tensor()."
            raise UnsupportedError(name, f"the mesh of the others, {mesh}", f"{x.device_mesh}", hint)
        for mesh_dim, placement in enumerate(x.placements):
            if placement.is_replicate() or placement.is_partial():
                continue
            dim = x.ndim - 2 - placement.dim % x.ndim if type(placement) is Shard else 0
            if dim < 1 or dims[mesh_dim] not in (None, dim):
                got = f"{placement} of a tensor {show(tuple(x.shape))}"
                if dim >= 1:
                    hint = (
                        f"Redistribute query, key and value alike; another one has {dims[mesh_dim]} dimensions behind."
                    )
                else:
                    hint = "qkv.distributed.shard divides a sequence: pass it the local parts. Features stay whole."
                raise UnsupportedError(name, "a DTensor divided along batch or heads, in one way", got, hint)
            dims[mesh_dim] = dim
    return _Division(mesh, tuple(dims))


def _local_mechanism(mechanism: Mechanism, division: _Division) -> Mechanism:
    """Return a mechanism whose tensors are whole in each process, and whose gradients are summed over all."""
    if mechanism.seed is not None:
        for group in division.mesh.get_all_groups():  # that of the first process
            dist.broadcast(mechanism.seed, group=group, group_src=0)

    def local(x: object) -> object:
        return division.local(x) if isinstance(x, Tensor) and (isinstance(x, DTensor) or x.requires_grad) else x

    parts = {
        name: _pytree.tree_map(local, getattr(mechanism, name)) for name in ("score", "normalizer", "mask", "bias")
    }
    return replace(mechanism, **parts)
