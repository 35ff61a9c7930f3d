"""The walk over tiles with one compiled pass per tile: a product, a pass over its rows, a product; and backward.

As in `tiled.stripes`, a tile holds whole rows, and the backward pass computes every tile again. Between the products is
one pass over each row (`weights_kernel`, `gradients_kernel`, `entmax_kernel`); the products themselves sum over tiles,
in place.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor

from qkv.algorithms.tiled.cores import resolve
from qkv.engine.mechanism import Gradients, Inputs, Mechanism, zero_gradients
from qkv.engine.tiles import Place, Size, Span, TileWalk, take
from qkv.linalg.buffers import Workspace
from qkv.linalg.matmul import batched, contiguous_rows, onednn_favored
from qkv.linalg.toeplitz import diagonal_sums, window
from qkv.masks.lower import Visibility
from qkv.scores.pointwise import BoxcarShape, EpanechnikovShape, rooted
from qkv.shapes import Shape

if TYPE_CHECKING:
    from qkv.algorithms.rowwise.row_passes import RowMechanism, Tile

SIZE = Size(pairs=1 << 19, tall=64)
"""Scores of a tile, and its fewest rows: products of fewer than 64 rows take three times as long."""

ALPHA = {"sparsemax": 2.0, "entmax15": 1.5}
"""The normalizers that have rows of their own, and their parameter; that of `entmax` is a tensor."""


class Middle(NamedTuple):
    """A tile after its pass."""

    products: Tensor
    weights: Tensor
    state: Any
    tile: "Tile"


@final
class RowTiles:
    """A problem on its tiles. Query and key may be wider (float64) than the values: products then have their type."""

    def __init__(self, recipe: Mechanism, inputs: Inputs, visibility: Visibility, rooms: Workspace) -> None:
        self.recipe, self.rooms = recipe, rooms
        self.inputs = inputs._replace(key=contiguous_rows(inputs.key), value=contiguous_rows(inputs.value))
        self.queries, self.keys = inputs.query.shape[-2], inputs.key.shape[-2]
        self.walk = TileWalk(recipe.leading, self.queries, self.keys, visibility, SIZE)
        items = (*recipe.leading, 1, 1)
        self.scale = _numbers(inputs.scale, recipe.factor, items)
        self.parameter = _numbers(inputs.parameter, ALPHA.get(recipe.normalizer, -torch.inf), items)
        self.number = torch.arange(prod(recipe.leading), device="cpu").view(recipe.leading) * self.queries
        self.mechanism = mechanism_of(recipe, inputs.seed)
        self.edges: dict[tuple[int, torch.Size], Any] = {}
        self.numbers: dict[int, tuple[Any, ...]] = {}

    def forward(self) -> tuple[Tensor, Tensor]:
        """The output (..., Q, V), and the row state (..., Q), empty where it is not wanted."""
        value = self.inputs.value
        output = value.new_empty(*self.recipe.leading, self.queries, value.shape[-1])
        state = value.new_empty(*self.recipe.leading, self.queries if self.recipe.state else 0)
        for span in self.walk.spans():
            lead, entmax, columns = span.place
            middle = self._middle(span, self.mechanism)
            take(output, lead, entmax).copy_(self._product("output", middle.weights, take(value, lead, columns)))
            if self.recipe.state:
                part = take(state, lead, entmax)
                part.copy_(torch.from_numpy(middle.state).view(part.shape))
        return output, state

    def backward(self, g_output: Tensor, g_state: Tensor | None, wanted: list[bool]) -> list[Tensor | None]:
        """The gradients of the inputs that are wanted, in the order of `Inputs`."""
        buffers = zero_gradients(self.inputs, wanted)
        for span in self.walk.spans():
            g = take(g_output, span.place.lead, span.place.rows)
            of_state = None if g_state is None else take(g_state, span.place.lead, span.place.rows)
            self._pull(buffers, span, g.contiguous(), of_state)
        return [None if buffer is None else buffer.contiguous() for buffer in buffers]

    def _pull(self, buffers: Gradients, span: Span, g: Tensor, of_state: Tensor | None) -> None:
        lead, entmax, columns = span.place
        learns = any(buffer is not None for buffer in (*buffers[:2], buffers.scale))
        flat = isinstance(self.recipe.pointwise, BoxcarShape)
        biased = buffers.bias is not None or buffers.diagonals is not None
        silent = not biased and buffers.parameter is None and (flat or not learns)
        middle = self._middle(span, self.mechanism if silent else replace(self.mechanism, drop=self.mechanism.drop[:0]))
        if not silent:
            g_weights = self._product("grads", g, take(self.inputs.value, lead, columns).mT)
            self._through(buffers, span.place, middle, g_weights, of_state)
        if buffers.value is not None:
            self._accumulate(take(buffers.value, lead, columns), middle.weights.mT, g)
        if learns and not flat:
            for buffer, left, right in (
                (buffers.query, middle.products, take(self.inputs.key, lead, columns)),
                (buffers.key, middle.products.mT, take(self.inputs.query, lead, entmax)),
            ):
                if buffer is not None:
                    own = entmax if buffer is buffers.query else columns
                    self._accumulate(take(buffer, lead, own), left, right)

    def _through(
        self, buffers: Gradients, place: Place, middle: Middle, g_weights: Tensor, of_state: Tensor | None
    ) -> None:
        """The pass over the rows, and what it says of the parameters."""
        from qkv.algorithms.rowwise import entmax, row_passes

        shape = middle.weights.shape
        pulled = (
            torch.empty(0, 0, dtype=torch.float64, device="cpu")
            if of_state is None
            else of_state.reshape(prod(shape[:-2]), shape[-2])
        )
        arrays = [_flat(x).numpy() for x in (middle.products, middle.weights, g_weights)]
        states = pulled.double().contiguous().numpy()
        d_alpha = None
        if self.mechanism.rule == "scores":
            d_alpha = entmax.project_back(
                arrays[1], arrays[2], middle.state, states, middle.tile.sink, buffers.parameter is not None
            )
            states = states[:0, :0]
        found = row_passes.unweigh(
            self.mechanism,
            middle.tile,
            arrays[0],
            arrays[1],
            middle.state,
            arrays[2],
            states,
            buffers.scale is not None,
        )
        self._pull_bias(buffers, place, g_weights)
        for buffer, own in (
            (buffers.scale, found.scale),
            (buffers.parameter, found.sink if d_alpha is None else d_alpha),
        ):
            if buffer is not None:
                part = take(buffer, place.lead)
                rows_of = torch.from_numpy(own).view(*shape[:-1], 1)
                part += rows_of.sum(-2, keepdim=True).sum_to_size(part.shape)

    def _pull_bias(self, buffers: Gradients, place: Place, g_scores: Tensor) -> None:
        lead, rows, columns = place
        if buffers.bias is not None:
            part = take(buffers.bias, lead, rows, columns)
            part += g_scores.sum_to_size(part.shape)
        if buffers.diagonals is not None:
            part = take(buffers.diagonals, lead)[..., window(rows, columns, self.queries)]
            part += diagonal_sums(g_scores).sum_to_size(part.shape)

    def _bias(self, place: Place, shape: torch.Size) -> Tensor:
        """What is added to the scores of a tile, or its diagonals."""
        lead, rows, columns = place
        bias, dtype = self.inputs.bias, self.inputs.value.dtype
        if self.inputs.diagonals is not None:
            own = take(self.inputs.diagonals, lead)[..., None, window(rows, columns, self.queries)]
            return _table(own, torch.Size((*shape[:-1], own.shape[-1])), dtype)
        return _table(None if bias is None else take(bias, lead, rows, columns), shape, dtype)

    def _middle(self, span: Span, mechanism: "RowMechanism") -> Middle:
        """Everything from operands to the weights."""
        from qkv.algorithms.rowwise import entmax, row_passes

        lead, own, columns = span.place
        products = self._product(
            "products", take(self.inputs.query, lead, own), take(self.inputs.key, lead, columns).mT
        )
        if rooted(self.recipe.pointwise):
            self._resolve(products, span.place)
        weights = self.rooms.take("weights", tuple(products.shape), self.inputs.value.dtype)
        tile = self._tile(span, products.shape)
        flat = _flat(weights).numpy()
        state = row_passes.weigh(mechanism, tile, _flat(products).numpy(), flat)
        if mechanism.rule == "scores":
            state = entmax.project(flat, tile.sink)
        return Middle(products, weights, state, tile)

    def _resolve(self, products: Tensor, place: Place) -> None:
        """Small distances anew, from the operands (−2q, ‖q‖², 1) and (k, 1, ‖k‖²)."""
        lead, entmax, columns = place
        query, key = take(self.inputs.query, lead, entmax), take(self.inputs.key, lead, columns)
        width = query.shape[-1] - 2
        resolve(products, query[..., :width] * -0.5, key[..., :width], query[..., width : width + 1])

    def _product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        return batched(left, right, lambda shape: self.rooms.take(name, shape, left.dtype))

    def _accumulate(self, buffer: Tensor, left: Tensor, right: Tensor) -> None:
        _accumulate(buffer, left, right, lambda shape: self.rooms.take("sum", shape, left.dtype))

    def _tile(self, span: Span, shape: torch.Size) -> "Tile":
        from qkv.algorithms.rowwise.row_passes import Tile

        lead, entmax, columns = span.place
        if id(lead) not in self.numbers:
            own = (take(x, lead).reshape(-1).numpy() for x in (self.scale, self.parameter, self.number))
            self.numbers[id(lead)] = tuple(own)
        scale, parameter, number = self.numbers[id(lead)]
        return Tile(
            scale,
            parameter,
            self._edge(span.first, 0, shape),
            self._edge(span.last, columns.stop, shape),
            _table(span.seen, shape, torch.bool).numpy(),
            self._bias(span.place, shape).numpy(),
            number + entmax.start,
            columns.start,
        )

    def _edge(self, bound: Tensor | None, otherwise: int, shape: torch.Size) -> Any:
        """(L, h) int32; the same where no row is bounded."""
        if bound is not None:
            return bound.expand(shape[:-1]).reshape(prod(shape[:-2]), shape[-2]).contiguous().numpy()
        key = (otherwise, shape[:-1])
        if key not in self.edges:
            self.edges[key] = torch.full(
                (prod(shape[:-2]), shape[-2]), otherwise, dtype=torch.int32, device="cpu"
            ).numpy()
        return self.edges[key]


def _numbers(x: Tensor | None, otherwise: float, items: tuple[int, ...]) -> Tensor:
    """One double for each item."""
    given = torch.tensor(otherwise, dtype=torch.float64, device="cpu") if x is None else x.detach()
    return given.double().expand(items).contiguous()


def numbers_of(recipe: Mechanism, queries: int) -> tuple[Any, Any, Any]:
    """Scale, parameter and number of the first row of each item (L), where no tensor says otherwise."""
    items = (*recipe.leading, 1, 1)
    scale = _numbers(None, recipe.factor, items)
    parameter = _numbers(None, ALPHA.get(recipe.normalizer, -torch.inf), items)
    first = torch.arange(prod(recipe.leading), device="cpu") * queries
    return scale.view(-1).numpy(), parameter.view(-1).numpy(), first.numpy()


def mechanism_of(recipe: Mechanism, seed: Tensor | None) -> "RowMechanism":
    """What happens to a row, as the compiled passes are told."""
    import numpy as np

    from qkv.algorithms.rowwise.row_passes import RULES, RowMechanism

    bits: list[int] = []
    if seed is not None:
        keep = np.array(1 / (1 - recipe.dropout)).view(np.uint64)
        bits = [int(seed) % 2**64, round(recipe.dropout * 2**32), int(keep)]
    power = recipe.pointwise.power if isinstance(recipe.pointwise, EpanechnikovShape) else 0.0
    rule = recipe.normalizer if recipe.normalizer in RULES else "scores"
    return RowMechanism(type(recipe.pointwise).__name__, float(power), rule, np.array(bits, np.uint64))


def _flat(x: Tensor) -> Tensor:
    """(..., h, c) to (L, h, c)."""
    return x.view(prod(x.shape[:-2]), *x.shape[-2:])


def _table(table: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """(1 or L, 1 or h, c), of size zero where there is none."""
    if table is None:
        return torch.empty(0, 0, 0, dtype=dtype, device="cpu")
    lead = table.shape[:-2]
    wide = table.expand(*((1,) * len(lead) if prod(lead) == 1 else shape[:-2]), table.shape[-2], shape[-1])
    return wide.reshape(prod(wide.shape[:-2]), *wide.shape[-2:]).contiguous()


def _accumulate(buffer: Tensor, left: Tensor, right: Tensor, room: Callable[[Shape], Tensor]) -> None:
    """buffer += left @ right, summed over what the buffer broadcasts."""
    single = buffer.numel() == buffer.shape[-2] * buffer.shape[-1] and prod(left.shape[:-2]) == 1
    if single and not onednn_favored(left, right):
        buffer.view(buffer.shape[-2:]).addmm_(left.reshape(left.shape[-2:]), right.reshape(right.shape[-2:]))
        return
    # Weights that lie column by column stand on the right, where they are read as they lie.
    turned = left.stride(-1) != 1
    g = batched(right.mT, left.mT, room).mT if turned else batched(left, right, room)
    buffer += g if g.shape == buffer.shape else g.sum_to_size(buffer.shape)
