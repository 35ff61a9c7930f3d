"""Attention tile by tile: a matrix product, one compiled pass over the rows, a matrix product; forward and backward.

As in `tiled.stripes`, a tile holds whole rows, and the backward pass computes every tile again. The pass over the rows
of a tile is compiled (`weights_kernel`, `gradients_kernel`, `entmax_kernel`).
"""

from dataclasses import replace
from math import prod
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from qkv.algorithms.rowwise import row_passes
from qkv.algorithms.rowwise.row_passes import RULES, RowInputs, RowOperation
from qkv.algorithms.tiled.cores import recompute_small_distances
from qkv.algorithms.tiled.stripes import add_bias_gradients, add_gradient
from qkv.engine.dropout import threshold
from qkv.engine.mechanism import Gradients, Inputs, Mechanism, row_major, zero_gradients
from qkv.engine.tiles import Tile, TileSize, TileSlices, Tiling, take
from qkv.linalg.matmul import batched, contiguous_rows, onednn_favored
from qkv.linalg.memory_pool import Workspace, borrow_workspace
from qkv.linalg.toeplitz import window
from qkv.masks.lower import Visibility
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, rooted

SIZE = TileSize(scores=1 << 19, min_rows=64)
"""The size of a tile: products of fewer than 64 rows take three times as long."""

ALPHA = {"sparsemax": 2.0, "entmax15": 1.5}
"""α of the sparse normalizers with a fixed one; that of `entmax` is a tensor."""


class ForwardTile(NamedTuple):
    """What the forward pass computes of a tile.

    Attributes:
        products: products of queries and keys, (..., h, c).
        weights: (..., h, c).
        state: the row states, (L, h).
        row_inputs: what the pass over the rows was given.
    """

    products: Tensor
    weights: Tensor
    state: Any
    row_inputs: RowInputs


@final
class RowTiles:
    """A problem cut into tiles, which are computed one after another.

    Query and key may be float64 beside float32 values; the products then are float64 too.
    """

    def __init__(self, mechanism: Mechanism, inputs: Inputs, visibility: Visibility) -> None:
        self.mechanism = mechanism
        self.inputs = inputs._replace(key=contiguous_rows(inputs.key), value=contiguous_rows(inputs.value))
        self.queries, self.keys = inputs.query.shape[-2], inputs.key.shape[-2]
        self.tiling = Tiling(mechanism.leading, self.queries, self.keys, visibility, SIZE)
        shape = (*mechanism.leading, 1, 1)
        self.scale = _per_item(inputs.scale, mechanism.factor, shape)
        self.parameter = _per_item(inputs.parameter, ALPHA.get(mechanism.normalizer, -torch.inf), shape)
        self.row_offset = torch.arange(prod(mechanism.leading), device="cpu").view(mechanism.leading) * self.queries
        self.operation = row_operation(mechanism, inputs.seed)
        self.constant_bounds: dict[tuple[int, torch.Size], Any] = {}
        self.item_parameters: dict[int, tuple[Any, ...]] = {}
        self.workspace: Workspace  # of the thread, lent for each pass

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the output (..., Q, V) and the row state (..., Q), which is empty if not requested."""
        value = self.inputs.value
        output = value.new_empty(*self.mechanism.leading, self.queries, value.shape[-1])
        states = self.queries if self.mechanism.state else 0
        state = value.new_empty(*self.mechanism.leading, states, dtype=torch.float64)
        with borrow_workspace() as self.workspace:
            for tile in self.tiling.widest_first():
                items, rows, columns = tile.slices
                forward = self._forward_tile(tile, self.operation)
                take(output, items, rows).copy_(self._product("output", forward.weights, take(value, items, columns)))
                if self.mechanism.state:
                    part = take(state, items, rows)
                    part.copy_(torch.from_numpy(forward.state).view(part.shape))
        return output, state

    def backward(self, g_output: Tensor, g_state: Tensor | None, needs_grad: list[bool]) -> list[Tensor | None]:
        """Return the requested gradients of the inputs, in the order of `Inputs`."""
        buffers = zero_gradients(self.inputs, needs_grad)
        with borrow_workspace() as self.workspace:
            for tile in self.tiling.widest_first():
                items, rows, _ = tile.slices
                g, g_state_rows = take(g_output, items, rows), None if g_state is None else take(g_state, items, rows)
                self._backward_tile(buffers, tile, g.contiguous(), g_state_rows)
        remaining = list(buffers)
        del buffers
        return row_major(remaining)

    def _backward_tile(self, buffers: Gradients, tile: Tile, g: Tensor, g_state: Tensor | None) -> None:
        """Add the gradients of a tile; g is the gradient of its output."""
        items, rows, columns = tile.slices
        has_slope = not isinstance(self.mechanism.pointwise, BoxcarShape)
        needs_products = has_slope and any(buffer is not None for buffer in (*buffers[:2], buffers.scale))
        needs_scores = buffers.bias is not None or buffers.diagonals is not None or buffers.parameter is not None
        needs_rows = needs_products or needs_scores
        # The backward pass over the rows needs the weights without dropout, and applies it.
        forward = self._forward_tile(
            tile, replace(self.operation, drop=self.operation.drop[:0]) if needs_rows else self.operation
        )
        if needs_rows:
            g_weights = self._product("grads", g, take(self.inputs.value, items, columns).mT)
            self._backward_rows(buffers, tile.slices, forward, g_weights, g_state)
        if buffers.value is not None:
            self._accumulate(take(buffers.value, items, columns), forward.weights.mT, g)
        if has_slope and buffers.query is not None:
            self._accumulate(take(buffers.query, items, rows), forward.products, take(self.inputs.key, items, columns))
        if has_slope and buffers.key is not None:
            self._accumulate(
                take(buffers.key, items, columns), forward.products.mT, take(self.inputs.query, items, rows)
            )

    def _backward_rows(
        self, buffers: Gradients, slices: TileSlices, forward: ForwardTile, g_weights: Tensor, g_state: Tensor | None
    ) -> None:
        """Turn products and weights into their gradients, in place, and add the gradients of the parameters."""
        shape = forward.weights.shape
        if g_state is None:
            g_state = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        else:
            g_state = g_state.reshape(prod(shape[:-2]), shape[-2])
        products, weights, grads = (_as_3d(x).numpy() for x in (forward.products, forward.weights, g_weights))
        of_state = g_state.double().contiguous().numpy()
        d_alpha = None
        if self.operation.rule == "scores":
            d_alpha = row_passes.project_back(
                weights, grads, forward.state, of_state, forward.row_inputs.sink, buffers.parameter is not None
            )
            of_state = of_state[:0, :0]
        gradients = row_passes.rows_backward(
            self.operation,
            forward.row_inputs,
            products,
            weights,
            forward.state,
            grads,
            of_state,
            buffers.scale is not None,
        )
        add_bias_gradients(buffers, slices, g_weights, self.queries)
        for buffer, per_row in (
            (buffers.scale, gradients.scale),
            (buffers.parameter, gradients.sink if d_alpha is None else d_alpha),
        ):
            if buffer is not None:
                gradient = torch.from_numpy(per_row).view(*shape[:-1], 1)
                add_gradient(take(buffer, slices.items), gradient.sum(-2, keepdim=True))

    def _bias(self, slices: TileSlices, shape: torch.Size) -> Tensor:
        """Return the bias of a tile's scores, or its diagonals."""
        items, rows, columns = slices
        bias, dtype = self.inputs.bias, self.inputs.value.dtype
        if self.inputs.diagonals is not None:
            diagonals = take(self.inputs.diagonals, items)[..., None, window(rows, columns, self.queries)]
            return _as_table(diagonals, torch.Size((*shape[:-1], diagonals.shape[-1])), dtype)
        return _as_table(None if bias is None else take(bias, items, rows, columns), shape, dtype)

    def _forward_tile(self, tile: Tile, operation: RowOperation) -> ForwardTile:
        """Compute products and weights of a tile."""
        items, rows, columns = tile.slices
        products = self._product(
            "products", take(self.inputs.query, items, rows), take(self.inputs.key, items, columns).mT
        )
        if rooted(self.mechanism.pointwise):
            self._recompute_small_distances(products, tile.slices)
        weights = self.workspace.take("weights", tuple(products.shape), self.inputs.value.dtype)
        row_inputs = self._row_inputs(tile, products.shape)
        state = row_passes.rows_forward(operation, row_inputs, _as_3d(products).numpy(), _as_3d(weights).numpy())
        if operation.rule == "scores":
            state = row_passes.project(_as_3d(weights).numpy(), row_inputs.sink)
        return ForwardTile(products, weights, state, row_inputs)

    def _recompute_small_distances(self, products: Tensor, slices: TileSlices) -> None:
        """Compute small distances again by subtraction, from the operands (−2q, ‖q‖², 1) and (k, 1, ‖k‖²)."""
        items, rows, columns = slices
        query, key = take(self.inputs.query, items, rows), take(self.inputs.key, items, columns)
        width = query.shape[-1] - 2
        recompute_small_distances(products, query[..., :width] * -0.5, key[..., :width], query[..., width : width + 1])

    def _product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        return batched(left, right, lambda shape: self.workspace.take(name, shape, left.dtype))

    def _accumulate(self, buffer: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left @ right to a buffer, summed over the dimensions that the buffer broadcasts."""
        single = buffer.numel() == buffer.shape[-2] * buffer.shape[-1] and prod(left.shape[:-2]) == 1
        if single and not onednn_favored(left, right):
            buffer.view(buffer.shape[-2:]).addmm_(left.reshape(left.shape[-2:]), right.reshape(right.shape[-2:]))
            return
        # A column-major left operand is passed as the right one, transposed, and so read in memory order.
        transposed = left.stride(-1) != 1
        g = self._product("sum", right.mT, left.mT).mT if transposed else self._product("sum", left, right)
        add_gradient(buffer, g)

    def _row_inputs(self, tile: Tile, shape: torch.Size) -> RowInputs:
        items, rows, columns = tile.slices
        if id(items) not in self.item_parameters:
            arrays = (take(x, items).reshape(-1).numpy() for x in (self.scale, self.parameter, self.row_offset))
            self.item_parameters[id(items)] = tuple(arrays)
        scale, parameter, row_offset = self.item_parameters[id(items)]
        return RowInputs(
            scale,
            parameter,
            self._bounds(tile.first, 0, shape),
            self._bounds(tile.last, columns.stop, shape),
            _as_table(tile.mask, shape, torch.bool).numpy(),
            self._bias(tile.slices, shape).numpy(),
            row_offset + rows.start,
            columns.start,
        )

    def _bounds(self, bounds: Tensor | None, default: int, shape: torch.Size) -> Any:
        """Return the bounds of a tile's rows as int32 (L, h); without bounds all rows share one cached array."""
        if bounds is not None:
            return bounds.expand(shape[:-1]).reshape(prod(shape[:-2]), shape[-2]).contiguous().numpy()
        key = (default, shape[:-1])
        if key not in self.constant_bounds:
            self.constant_bounds[key] = torch.full(
                (prod(shape[:-2]), shape[-2]), default, dtype=torch.int32, device="cpu"
            ).numpy()
        return self.constant_bounds[key]


def _per_item(x: Tensor | None, default: float, shape: tuple[int, ...]) -> Tensor:
    """Expand a parameter to one float64 number per item."""
    x = torch.tensor(default, dtype=torch.float64, device="cpu") if x is None else x.detach()
    return x.double().expand(shape).contiguous().resolve_neg()


def row_operation(mechanism: Mechanism, seed: Tensor | None) -> RowOperation:
    """Describe a mechanism for the compiled passes over rows."""
    bits: list[int] = []
    if seed is not None:
        keep = np.array(1 / (1 - mechanism.dropout)).view(np.uint64)
        bits = [int(seed) % 2**64, threshold(mechanism.dropout), int(keep)]
    power = mechanism.pointwise.power if isinstance(mechanism.pointwise, EpanechnikovShape) else 0.0
    rule = mechanism.normalizer if mechanism.normalizer in RULES else "scores"
    return RowOperation(type(mechanism.pointwise).__name__, float(power), rule, np.array(bits, np.uint64))


def _as_3d(x: Tensor) -> Tensor:
    """Reshape (..., h, c) to (L, h, c)."""
    return x.view(prod(x.shape[:-2]), *x.shape[-2:])


def _as_table(table: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Reshape a mask or bias to (1 or L, 1 or h, c); None becomes a tensor of size zero."""
    if table is None:
        return torch.empty(0, 0, 0, dtype=dtype, device="cpu")
    leading = table.shape[:-2]
    table = table.expand(*((1,) * len(leading) if prod(leading) == 1 else shape[:-2]), table.shape[-2], shape[-1])
    return table.reshape(prod(table.shape[:-2]), *table.shape[-2:]).contiguous()
