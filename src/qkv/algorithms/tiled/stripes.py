"""Attention by stripes, tiles of whole rows that fit the cache, forward and backward.

A stripe holds h rows for some leading indices over all the columns that its rows may see. So each row is normalized at
once, no normalizer needs an online form, and columns that no row of the stripe may see are never computed. The backward
pass computes every stripe again from query and key. No tensor of size Q×K exists at any time.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.algorithms.tiled import position_tiles
from qkv.algorithms.tiled.cores import CORES, CoreGradients, CoreInputs, subtraction_is_faster
from qkv.algorithms.tiled.position_tiles import PositionTiles
from qkv.algorithms.tiled.row_rules import RULES, ScoreRows, Upstream, apply_pointwise, pointwise_gradient
from qkv.engine.dropout import Kept
from qkv.engine.mechanism import Gradients, Inputs, Mechanism, row_major, zero_gradients
from qkv.engine.ties import shared
from qkv.engine.tiles import TileSlices, Tiling, take
from qkv.linalg.centering import center
from qkv.linalg.matmul import batched, contiguous_rows
from qkv.linalg.toeplitz import diagonal_sums, toeplitz, window
from qkv.masks.lower import Visibility
from qkv.scores.pointwise import GaussianShape, Softcap, rooted, steepness
from qkv.values.execution import on_host


@final
class Stripes:
    """A problem cut into stripes, which are computed one after another from its inputs.

    Half precision is computed in float32. The output has the dtype of the values, also where a score computed wider
    operands.

    Args:
        mechanism, inputs: the problem.
        visibility: the lowered mask.
        bias_tiles: a position bias that is not a function of j − i.
    """

    def __init__(
        self, mechanism: Mechanism, inputs: Inputs, visibility: Visibility, bias_tiles: PositionTiles | None = None
    ) -> None:
        self.mechanism, self.bias_tiles, self.output_dtype = mechanism, bias_tiles, inputs.value.dtype
        self.dtype = torch.float64 if inputs.query.dtype == torch.float64 else torch.float32
        cast = inputs.cast(self.dtype)
        self.inputs = cast._replace(key=contiguous_rows(cast.key), value=contiguous_rows(cast.value))
        self.queries, self.keys = inputs.query.shape[-2], inputs.key.shape[-2]
        size = None if bias_tiles is None or not on_host(inputs.query.device) else position_tiles.SIZE
        self.tiling = Tiling(mechanism.leading, self.queries, self.keys, visibility, size)
        self.core, self.rule = CORES[mechanism.core], RULES[mechanism.normalizer]
        scale, slope = _factor(self.inputs.scale, mechanism.factor), steepness(mechanism.pointwise)
        centered = mechanism.core == "distance" and not subtraction_is_faster(self.inputs.query)
        self.center = center(*self.inputs[:2], scale, slope) if centered else None
        sizes = mechanism.leading, self.queries, self.keys
        self.kept = None if inputs.seed is None else Kept(inputs.seed, *sizes, mechanism.dropout)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the output (..., Q, V) and the row state (..., Q), float64, which is empty if not requested."""
        query, value = self.inputs.query, self.inputs.value
        output = query.new_empty(*self.mechanism.leading, self.queries, value.shape[-1], dtype=self.output_dtype)
        rows = self.queries if self.mechanism.state else 0
        state = query.new_empty(*self.mechanism.leading, rows, dtype=torch.float64)
        for tile in self.tiling.widest_first():
            slices, stripe = tile.slices, self.stripe(tile.slices, self.tiling.visible(tile))
            take(output, slices.items, slices.rows).copy_(
                batched(stripe.applied, take(value, slices.items, slices.columns))
            )
            if self.mechanism.state:
                take(state, slices.items, slices.rows).copy_(self.rule.state(stripe.row, stripe.weights))
        return output, state

    def backward(self, g_output: Tensor, g_state: Tensor | None, needs_grad: list[bool]) -> list[Tensor | None]:
        """Return the requested gradients of the inputs, in the order of `Inputs`."""
        buffers = zero_gradients(self.inputs, needs_grad)
        for tile in self.tiling.widest_first():
            slices = tile.slices
            g = take(g_output, slices.items, slices.rows).to(self.dtype)
            g_state_rows = None if g_state is None else take(g_state, slices.items, slices.rows).to(self.dtype)
            self._backward_stripe(buffers, slices, self.stripe(slices, self.tiling.visible(tile)), g, g_state_rows)
        remaining = list(buffers)
        del buffers
        return row_major(remaining)

    def stripe(self, slices: TileSlices, visible: Tensor | None) -> "Stripe":
        """Compute a stripe from its operands to its weights."""
        mechanism, inputs, items = self.mechanism, self.inputs, slices.items
        operands = self._operands(slices)
        core = self.core.forward(operands)
        scale = None if inputs.scale is None else take(inputs.scale, items)
        x = core.mul_(mechanism.factor) if scale is None else core * scale
        y = apply_pointwise(mechanism.pointwise, x)
        # The derivatives of these two are computed from their results, which must not be overwritten.
        needs_result = isinstance(mechanism.pointwise, (GaussianShape, Softcap))
        untouched = visible is None and not inputs.biased and self.bias_tiles is None and self.rule is RULES["softmax"]
        s = y.clone() if needs_result and not untouched else y
        if inputs.ties is not None:
            s = shared(s, take(inputs.ties, items, slices.columns), slices.columns.start)
        biased = self._add_bias(s, slices)
        if visible is not None:
            s.masked_fill_(~visible, self.rule.hidden)
        if visible is None and biased:
            # A bias may mask a whole row by -inf.
            visible = torch.ones((1, 1), dtype=torch.bool, device=s.device)
        row = ScoreRows(s, visible, None if inputs.parameter is None else take(inputs.parameter, items))
        w = self.rule.weights(row)
        factors = None if self.kept is None else self.kept.factors(w.dtype, *slices)
        return Stripe(operands, core, scale, x, y, row, w, factors)

    def _add_bias(self, s: Tensor, slices: TileSlices) -> bool:
        """Add all biases to the scores in place; return whether there are any."""
        items, rows, columns = slices
        if self.inputs.bias is not None:
            s += take(self.inputs.bias, items, rows, columns)
        if self.inputs.diagonals is not None:
            diagonals = take(self.inputs.diagonals, items)[..., window(rows, columns, self.queries)]
            s += toeplitz(diagonals, rows.stop - rows.start)
        if self.bias_tiles is not None:
            s += self.bias_tiles.tile(slices)
        return self.inputs.biased or self.bias_tiles is not None

    def _operands(self, slices: TileSlices) -> CoreInputs:
        inputs, items = self.inputs, slices.items
        return CoreInputs(
            take(inputs.query, items, slices.rows),
            take(inputs.key, items, slices.columns),
            None if inputs.vector is None else take(inputs.vector, items),
            None if self.center is None else take(self.center, items),
            rooted(self.mechanism.pointwise),
        )

    def _backward_stripe(
        self, buffers: Gradients, slices: TileSlices, stripe: "Stripe", g: Tensor, g_state: Tensor | None
    ) -> None:
        """Add a stripe's share to the gradients."""
        items = slices.items
        if buffers.value is not None:
            add_gradient(take(buffers.value, items, slices.columns), batched(g.mT, stripe.applied).mT)
        g_weights = batched(g, take(self.inputs.value, items, slices.columns).mT)
        if stripe.dropout_factors is not None:
            g_weights *= stripe.dropout_factors
        g_scores, g_parameter = self.rule.backward(stripe.row, stripe.weights, Upstream(g_weights, g_state))
        if buffers.parameter is not None and g_parameter is not None:
            add_gradient(take(buffers.parameter, items), g_parameter)
        if g_scores is None:
            return
        if stripe.row.visible is not None:
            g_scores.masked_fill_(~stripe.row.visible, 0)
        add_bias_gradients(buffers, slices, g_scores, self.queries)
        if self.bias_tiles is not None and self.bias_tiles.learns:
            self.bias_tiles.add_gradient(slices, g_scores)
        g_x = pointwise_gradient(self.mechanism.pointwise, stripe.x, stripe.y, g_scores)
        if g_x is not None and any(
            buffer is not None for buffer in (buffers.query, buffers.key, buffers.scale, buffers.vector)
        ):
            self._backward_core(buffers, slices, stripe, g_x)

    def _backward_core(self, buffers: Gradients, slices: TileSlices, stripe: "Stripe", g_x: Tensor) -> None:
        items = slices.items
        if buffers.scale is not None:
            add_gradient(take(buffers.scale, items), (g_x * stripe.core).sum((-2, -1), keepdim=True))
        g_core = g_x * _factor(stripe.scale, self.mechanism.factor)
        gradients: CoreGradients = self.core.backward(stripe.operands, g_core)
        if buffers.query is not None:
            add_gradient(take(buffers.query, items, slices.rows), gradients.query)
        if buffers.key is not None:
            add_gradient(take(buffers.key, items, slices.columns), gradients.key)
        if buffers.vector is not None and gradients.vector is not None:
            add_gradient(take(buffers.vector, items), gradients.vector)


class Stripe(NamedTuple):
    """The intermediate results of a stripe, which its backward pass needs.

    Attributes:
        operands: of the core.
        core: the core's result, (..., h, c).
        scale: multiplies it, None for the mechanism's factor.
        x: the scaled result, the input of the pointwise function.
        y: the output of the pointwise function.
        row: the scores, with bias and mask.
        weights: before dropout.
        dropout_factors: 0 or 1/(1 − p) for each weight, None without dropout.
    """

    operands: CoreInputs
    core: Tensor
    scale: Tensor | None
    x: Tensor
    y: Tensor
    row: ScoreRows
    weights: Tensor
    dropout_factors: Tensor | None

    @property
    def applied(self) -> Tensor:
        """The weights after dropout."""
        return self.weights if self.dropout_factors is None else self.weights * self.dropout_factors


def _factor(scale: Tensor | None, factor: float) -> Tensor | float:
    return factor if scale is None else scale


def add_gradient(buffer: Tensor, g: Tensor) -> None:
    """Add a gradient to a buffer, summed over the dimensions that the buffer broadcasts."""
    buffer += g if g.shape == buffer.shape else g.sum_to_size(buffer.shape)


def add_bias_gradients(buffers: Gradients, slices: TileSlices, g_scores: Tensor, queries: int) -> None:
    """Add the gradients of a tile's scores to those of a bias or of its diagonals."""
    items, rows, columns = slices
    if buffers.bias is not None:
        add_gradient(take(buffers.bias, items, rows, columns), g_scores)
    if buffers.diagonals is not None:
        part = take(buffers.diagonals, items)[..., window(rows, columns, queries)]
        add_gradient(part, diagonal_sums(g_scores))
