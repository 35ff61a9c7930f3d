"""The walk over tiles: stripes of whole rows, small enough for the cache, forward and backward.

A stripe holds `h` rows for some leading indices over all the columns that its rows may see, so that each row is
normalized at once: no normalizer needs an online form, and columns that no row of the stripe may see are never
computed. Backward makes every stripe again from query and key. Nothing of size Q×K exists at any time.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.algorithms.tiled import position_tiles
from qkv.algorithms.tiled.cores import CORES, CoreGradients, CoreInputs, center, subtraction_is_faster
from qkv.algorithms.tiled.position_tiles import PositionTiles
from qkv.algorithms.tiled.row_rules import RULES, Pull, Row, pointwise_gradient
from qkv.engine.mechanism import DIFFERENTIABLE, Gradients, Inputs, Mechanism, zero_gradients
from qkv.engine.tiles import Place, TileWalk, dropout_factors, take
from qkv.linalg.matmul import batched, contiguous_rows
from qkv.linalg.toeplitz import diagonal_sums, toeplitz, window
from qkv.masks.lower import Visibility
from qkv.scores.pointwise import GaussianShape, Softcap, rooted, steepness

SAVED = len(Inputs._fields)
"""Of what a function saves, the first so many are the inputs; what the mask holds follows."""


@final
class Tiles:
    """A problem on its tiles: each stripe is made from its inputs, and can be made again.

    Half precision is computed in float32.

    Args:
        recipe, inputs: the problem.
        visibility: the lowered mask.
        added: a bias from positions that is no function of j − i.
    """

    def __init__(
        self, recipe: Mechanism, inputs: Inputs, visibility: Visibility, added: PositionTiles | None = None
    ) -> None:
        self.recipe, self.added = recipe, added
        self.dtype = torch.float64 if inputs.query.dtype == torch.float64 else torch.float32
        # A number without dimensions stays a double: it does not widen what it meets.
        wide = [None if x is None else x.to(self.dtype) if x.ndim else x for x in inputs[:DIFFERENTIABLE]]
        self.inputs = Inputs(*wide, inputs.seed)  # type: ignore[arg-type, call-arg]
        self.inputs = self.inputs._replace(
            key=contiguous_rows(self.inputs.key), value=contiguous_rows(self.inputs.value)
        )
        self.queries, self.keys = inputs.query.shape[-2], inputs.key.shape[-2]
        size = None if added is None else position_tiles.SIZE
        self.walk = TileWalk(recipe.leading, self.queries, self.keys, visibility, size)
        self.core, self.rule = CORES[recipe.core], RULES[recipe.normalizer]
        scale, steep = _factor(self.inputs.scale, recipe.factor), steepness(recipe.pointwise)
        centered = recipe.core == "distance" and not subtraction_is_faster(self.inputs.query)
        self.center = center(*self.inputs[:2], scale, steep) if centered else None

    def forward(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The output (..., Q, V), and the row state (..., Q), empty where it is not wanted."""
        query, value = self.inputs.query, self.inputs.value
        output = query.new_empty(*self.recipe.leading, self.queries, value.shape[-1], dtype=dtype)
        state = query.new_empty(*self.recipe.leading, self.queries if self.recipe.state else 0)
        for place, visible in self.walk:
            stripe = self.stripe(place, visible)
            take(output, place.lead, place.rows).copy_(batched(stripe.applied, take(value, place.lead, place.columns)))
            if self.recipe.state:
                take(state, place.lead, place.rows).copy_(self.rule.state(stripe.row, stripe.weights))
        return output, state

    def backward(self, g_output: Tensor, g_state: Tensor | None, wanted: list[bool]) -> list[Tensor | None]:
        """The gradients of the inputs that are wanted, in the order of `Inputs`."""
        buffers = zero_gradients(self.inputs, wanted)
        for place, visible in self.walk:
            g = take(g_output, place.lead, place.rows).to(self.dtype)
            g_row = None if g_state is None else take(g_state, place.lead, place.rows)
            self._pull(buffers, place, self.stripe(place, visible), g, g_row)
        return [None if buffer is None else buffer.contiguous() for buffer in buffers]

    def stripe(self, place: Place, visible: Tensor | None) -> "Stripe":
        """Everything from operands to the weights that are applied."""
        recipe, inputs, lead = self.recipe, self.inputs, place.lead
        sides = self._sides(place)
        core = self.core.forward(sides)
        scale = None if inputs.scale is None else take(inputs.scale, lead)
        x = core.mul_(recipe.factor) if scale is None else core * scale
        bent = recipe.pointwise(x)
        # Those two derivatives are taken from the result; elsewhere what follows may write over it.
        s = bent.clone() if isinstance(recipe.pointwise, (GaussianShape, Softcap)) else bent
        biased = self._add_bias(s, place)
        if visible is not None:
            s.masked_fill_(~visible, self.rule.hidden)
        if visible is None and biased:
            # A bias may hide a whole row by -inf, as a mask does.
            visible = torch.ones((1, 1), dtype=torch.bool, device=s.device)
        row = Row(s, visible, None if inputs.parameter is None else take(inputs.parameter, lead))
        w = self.rule.weights(row)
        seed = inputs.seed
        share = None
        if seed is not None:
            share = dropout_factors(seed, place, recipe.leading, self.queries, recipe.dropout, w.dtype)
        return Stripe(sides, core, scale, x, bent, row, w, share)

    def _add_bias(self, s: Tensor, place: Place) -> bool:
        """Add what is added to the scores; whether anything is."""
        lead, rows, columns = place
        if self.inputs.bias is not None:
            s += take(self.inputs.bias, lead, rows, columns)
        if self.inputs.diagonals is not None:
            own = take(self.inputs.diagonals, lead)[..., window(rows, columns, self.queries)]
            s += toeplitz(own, rows.stop - rows.start)
        if self.added is not None:
            s += self.added.tile(place)
        return self.inputs.biased or self.added is not None

    def _sides(self, place: Place) -> CoreInputs:
        inputs, lead = self.inputs, place.lead
        return CoreInputs(
            take(inputs.query, lead, place.rows),
            take(inputs.key, lead, place.columns),
            None if inputs.vector is None else take(inputs.vector, lead),
            None if self.center is None else take(self.center, lead),
            rooted(self.recipe.pointwise),
        )

    def _pull(self, buffers: Gradients, place: Place, stripe: "Stripe", g: Tensor, g_state: Tensor | None) -> None:
        """Add a stripe's share to the gradients."""
        lead = place.lead
        if buffers.value is not None:
            _add(take(buffers.value, lead, place.columns), batched(g.mT, stripe.applied).mT)
        g_weights = batched(g, take(self.inputs.value, lead, place.columns).mT)
        if stripe.share is not None:
            g_weights *= stripe.share
        g_scores, g_parameter = self.rule.backward(stripe.row, stripe.weights, Pull(g_weights, g_state))
        if buffers.parameter is not None and g_parameter is not None:
            _add(take(buffers.parameter, lead), g_parameter)
        if g_scores is None:
            return
        if stripe.row.visible is not None:
            g_scores.masked_fill_(~stripe.row.visible, 0)
        self._pull_bias(buffers, place, g_scores)
        g_x = pointwise_gradient(self.recipe.pointwise, stripe.x, stripe.bent, g_scores)
        if g_x is not None and any(
            buffer is not None for buffer in (buffers.query, buffers.key, buffers.scale, buffers.vector)
        ):
            self._pull_core(buffers, place, stripe, g_x)

    def _pull_bias(self, buffers: Gradients, place: Place, g_scores: Tensor) -> None:
        lead, rows, columns = place
        if buffers.bias is not None:
            _add(take(buffers.bias, lead, rows, columns), g_scores)
        if buffers.diagonals is not None:
            _add(take(buffers.diagonals, lead)[..., window(rows, columns, self.queries)], diagonal_sums(g_scores))
        if self.added is not None and self.added.learns:
            self.added.add_gradient(place, g_scores)

    def _pull_core(self, buffers: Gradients, place: Place, stripe: "Stripe", g_x: Tensor) -> None:
        lead = place.lead
        if buffers.scale is not None:
            _add(take(buffers.scale, lead), (g_x * stripe.core).sum((-2, -1), keepdim=True))
        g_core = g_x * _factor(stripe.scale, self.recipe.factor)
        slopes: CoreGradients = self.core.backward(stripe.sides, g_core)
        if buffers.query is not None:
            _add(take(buffers.query, lead, place.rows), slopes.query)
        if buffers.key is not None:
            _add(take(buffers.key, lead, place.columns), slopes.key)
        if buffers.vector is not None and slopes.vector is not None:
            _add(take(buffers.vector, lead), slopes.vector)


class Stripe(NamedTuple):
    """What a stripe's backward pass needs: the values on the way from operands to weights."""

    sides: CoreInputs
    core: Tensor
    scale: Tensor | None
    x: Tensor
    bent: Tensor
    row: Row
    weights: Tensor
    share: Tensor | None

    @property
    def applied(self) -> Tensor:
        """The weights after dropout."""
        return self.weights if self.share is None else self.weights * self.share


def _factor(scale: Tensor | None, factor: float) -> Tensor | float:
    return factor if scale is None else scale


def _add(buffer: Tensor, g: Tensor) -> None:
    """Add, summing over what the buffer broadcasts."""
    buffer += g if g.shape == buffer.shape else g.sum_to_size(buffer.shape)
