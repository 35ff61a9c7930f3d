"""The walk over tiles: stripes of whole rows, small enough for the cache, forward and backward.

A stripe holds `h` rows for some leading indices over all the columns that its rows may see, so that each row is
normalized at once: no normalizer needs an online form, and columns that no row of the stripe may see are never
computed. Backward makes every stripe again from query and key. Nothing of size Q×K exists at any time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import isqrt, prod
from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.backends.cores import CORES, Sides, Slopes, center
from qkv.backends.dropout import kept
from qkv.backends.heap import Release
from qkv.backends.weighing import RULES, Pull, Row, unbend
from qkv.masks.base import Bounds
from qkv.masks.lower import Visibility
from qkv.products import batched, plain
from qkv.scores.pointwise import Bell, Pointwise, Softcap, rooted, steepness
from qkv.shapes import Shape


class Size(NamedTuple):
    """How large a stripe is.

    Attributes:
        pairs: how many scores it holds where its rows are short.
        tall: its fewest rows while it stays under `LONG` scores: keys are read once per stripe.
        whole: whether it holds all leading indices, so that `pairs` are shared out among them.
    """

    pairs: int
    tall: int
    whole: bool = False


CACHED = Size(1 << 18, 32)
"""One MiB of float32, which stays in the cache."""

LONG = 1 << 22
"""The most scores of a stripe of more than one row."""


@final
@dataclass(frozen=True)
class Recipe:
    """What is computed, without tensors.

    Attributes:
        core: the function on pairs.
        pointwise: what follows it.
        normalizer: a name of `weighing.RULES`.
        factor: multiplies the core's result, where no tensor does.
        dropout: the probability of dropping a weight.
        state: whether the row state is wanted.
        leading: the leading shape.
    """

    core: str
    pointwise: Pointwise
    normalizer: str
    factor: float
    dropout: float
    state: bool
    leading: Shape


class Inputs(NamedTuple):
    """The tensors, each with as many leading dimensions as the problem; those of size 1 broadcast.

    Attributes:
        query: (..., Q, F), all leading dimensions.
        key, value: (..., K, F), (..., K, V).
        scale: (..., 1, 1).
        vector: (..., F), of `tanh_sum`.
        parameter: sink, alpha or bias of the normalizer, (..., 1, 1); a double without dimensions for a number.
        bias: (..., Q or 1, K or 1).
        seed: int64, of dropout.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: Tensor | None
    vector: Tensor | None
    parameter: Tensor | None
    bias: Tensor | None
    seed: Tensor | None


class Buffers(NamedTuple):
    """The gradients of the inputs that may have one, as they add up; None where not wanted."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    scale: Tensor | None
    vector: Tensor | None
    parameter: Tensor | None
    bias: Tensor | None


DIFFERENTIABLE = len(Buffers._fields)
"""The first so many inputs may have gradients."""
SAVED = len(Inputs._fields)
"""Of what a function saves, the first so many are the inputs; what the mask holds follows."""


class Place(NamedTuple):
    """Where a tile lies: slices of the leading dimensions, rows and columns."""

    lead: tuple[slice, ...]
    rows: slice
    columns: slice


class Span(NamedTuple):
    """A tile: its place, bounds (..., h or 1) of its rows and a mask (..., h, c) beside them, None for all."""

    place: Place
    first: Tensor | None
    last: Tensor | None
    seen: Tensor | None


def take(x: Tensor, lead: tuple[slice, ...], *own: slice) -> Tensor:
    """A view of a part; dimensions of size 1 stay."""
    index = (*lead, *own)
    return x[tuple(slice(None) if size == 1 else part for size, part in zip(x.shape, index, strict=False))]


def _cut(size: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _lead_parts(leading: Shape, count: int) -> list[list[slice]]:
    """Cut the leading dimensions into boxes of about `count` indices: trailing ones whole, one cut, others single."""
    inner, steps = 1, []
    for size in reversed(leading):
        step = max(1, min(size, count // inner))
        steps.append(_cut(size, step))
        inner *= step
        count = inner if step < size else count
    return steps[::-1]


def _widest(visibility: Visibility, keys: int) -> int:
    """The most columns that a row may see."""
    first, last = visibility.bounds or (None, None)
    if first is None and last is None:
        return keys
    widths = (keys if last is None else last) - (0 if first is None else first)
    assert isinstance(widths, Tensor)
    return int(widths.max()) if widths.numel() else 0


def _height(queries: int, keys: int, widest: int, pairs: int, tall: int) -> int:
    columns = max(1, min(keys, widest + isqrt(pairs)))
    return max(1, min(queries, max(pairs // columns, min(tall, LONG // columns))))


class Walk:
    """The tiles of a problem, each with its place and what its rows may see.

    Tiles of a `whole` size cut rows alone: a function of the caller's own may close over parameters for each head, so
    that it must see all heads at once.
    """

    def __init__(
        self, leading: Shape, queries: int, keys: int, visibility: Visibility, size: Size | None = None
    ) -> None:
        size = CACHED if size is None else size
        items = prod(leading) if size.whole else 1
        pairs = max(1, size.pairs // max(1, items))
        self.keys = keys
        self.visibility = visibility
        self.release = Release()
        self.rank = len(leading)
        bounds = visibility.bounds or Bounds(None, None)
        self.bounds = Bounds(*(None if x is None else full_rank(x, self.rank + 1) for x in bounds))
        self.dense = None if visibility.dense is None else full_rank(visibility.dense, self.rank + 2)
        height = _height(queries, keys, _widest(visibility, keys), pairs, size.tall)
        self.rows = _cut(queries, height)
        count = items if size.whole else max(1, pairs // max(1, height * keys))
        self.parts = _lead_parts(leading, max(1, count))
        self.lead = list(product(*self.parts))

    def __iter__(self) -> Iterator[tuple[Place, Tensor | None]]:
        return ((span.place, self._visible(span)) for span in self.spans())

    def spans(self) -> Iterator[Span]:
        """The tiles with their bounds as they are."""
        for rows in self.rows:
            whole = self._predicate(rows)
            for lead in self.lead:
                if whole is not None:
                    yield Span(Place(lead, rows, slice(0, self.keys)), None, None, take(whole, lead))
                else:
                    yield self._span(lead, rows)

    def _predicate(self, rows: slice) -> Tensor | None:
        """A mask that is asked about tiles is asked once for all leading indices."""
        if self.visibility.mask is None:
            return None
        seen = self.visibility.tile(rows, slice(None))
        assert seen is not None
        if not torch.compiler.is_compiling():
            self.release.after(seen.numel())
        return full_rank(seen, self.rank + 2)

    def _span(self, lead: tuple[slice, ...], rows: slice) -> Span:
        first, last = (None if x is None else take(x, lead, rows) for x in self.bounds)
        start = 0 if first is None else _ends(first)[0]
        stop = self.keys if last is None else _ends(last)[1]
        if self.keys == 1:
            # A single key stays where a part is taken, seen or not: so it belongs to every tile.
            start, stop = 0, 1
        place = Place(lead, rows, slice(start, max(start, stop)))
        return Span(place, first, last, None if self.dense is None else take(self.dense, lead, rows, place.columns))

    def _visible(self, span: Span) -> Tensor | None:
        """The bounds and the mask of a tile as one table; None where all is seen."""
        place, first, last, seen = span
        latest = 0 if first is None else _ends(first)[1]
        earliest = self.keys if last is None else _ends(last)[0]
        if latest > place.columns.start or earliest < place.columns.stop:
            inside = self._between(first, last, place.columns)
            seen = inside if seen is None else seen & inside
        return seen

    def _between(self, first: Tensor | None, last: Tensor | None, columns: slice) -> Tensor:
        device = self.visibility.grid.device
        j = torch.arange(columns.start, columns.stop, device=device, dtype=torch.int32)
        after = None if first is None else j >= first.unsqueeze(-1)
        if last is None:
            assert after is not None
            return after
        before = j < last.unsqueeze(-1)
        return before if after is None else after & before


def empty_buffers(inputs: Inputs, wanted: list[bool]) -> Buffers:
    """Zeros like what learns: column by column, where products with weights add up fastest; a bias as its tiles lie."""
    pairs = zip(inputs[:DIFFERENTIABLE], wanted, strict=True)
    return Buffers(*(None if x is None or not want else _zeros(x, x is not inputs.bias) for x, want in pairs))


def _zeros(x: Tensor, columns: bool) -> Tensor:
    if columns and x.ndim > 1:
        return torch.zeros(x.mT.shape, dtype=x.dtype, device=x.device).mT
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)


def full_rank(x: Tensor, rank: int) -> Tensor:
    """A view with leading dimensions of size 1, so that its rank is `rank`."""
    return x if x.ndim == rank else x.reshape(*(1,) * (rank - x.ndim), *x.shape)


def _ends(bound: Tensor) -> tuple[int, int]:
    low, high = bound.aminmax()
    return int(low), int(high)


def shares(seed: Tensor, place: Place, leading: Shape, queries: int, dropout: float, dtype: torch.dtype) -> Tensor:
    """What each weight of a tile is multiplied by under dropout: 0, or 1/(1 − dropout)."""
    lead, rows, columns = place
    problems = torch.arange(prod(leading), device=seed.device).view(leading)[lead]
    row_numbers = problems.unsqueeze(-1) * queries + torch.arange(rows.start, rows.stop, device=seed.device)
    keep = kept(seed, row_numbers, torch.arange(columns.start, columns.stop, device=seed.device), dropout)
    return keep.to(dtype).div_(1 - dropout)


@final
class Tiles:
    """A problem on its tiles: each stripe is made from its inputs, and can be made again.

    Half precision is computed in float32.
    """

    def __init__(self, recipe: Recipe, inputs: Inputs, visibility: Visibility) -> None:
        self.recipe = recipe
        self.dtype = torch.float64 if inputs.query.dtype == torch.float64 else torch.float32
        # A number without dimensions stays a double: it does not widen what it meets.
        wide = [None if x is None else x.to(self.dtype) if x.ndim else x for x in inputs[:DIFFERENTIABLE]]
        self.inputs = Inputs(*wide, inputs.seed)  # type: ignore[arg-type, call-arg]
        self.inputs = self.inputs._replace(key=plain(self.inputs.key), value=plain(self.inputs.value))
        self.queries, self.keys = inputs.query.shape[-2], inputs.key.shape[-2]
        self.walk = Walk(recipe.leading, self.queries, self.keys, visibility)
        self.core, self.rule = CORES[recipe.core], RULES[recipe.normalizer]
        scale, steep = _factor(self.inputs.scale, recipe.factor), steepness(recipe.pointwise)
        self.center = center(*self.inputs[:2], scale, steep) if recipe.core == "distance" else None

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
        buffers = empty_buffers(self.inputs, wanted)
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
        s = bent.clone() if isinstance(recipe.pointwise, (Bell, Softcap)) else bent
        if inputs.bias is not None:
            s += take(inputs.bias, lead, place.rows, place.columns)
        if visible is not None:
            s.masked_fill_(~visible, self.rule.hidden)
        if visible is None and inputs.bias is not None:
            # A bias may hide a whole row by -inf, as a mask does.
            visible = torch.ones((1, 1), dtype=torch.bool, device=s.device)
        row = Row(s, visible, None if inputs.parameter is None else take(inputs.parameter, lead))
        w = self.rule.weights(row)
        seed = inputs.seed
        share = None
        if seed is not None:
            share = shares(seed, place, recipe.leading, self.queries, recipe.dropout, w.dtype)
        return Stripe(sides, core, scale, x, bent, row, w, share)

    def _sides(self, place: Place) -> Sides:
        inputs, lead = self.inputs, place.lead
        return Sides(
            take(inputs.query, lead, place.rows),
            take(inputs.key, lead, place.columns),
            None if inputs.vector is None else take(inputs.vector, lead),
            None if self.center is None else take(self.center, lead),
            rooted(self.recipe.pointwise),
        )

    def _pull(self, buffers: Buffers, place: Place, stripe: "Stripe", g: Tensor, g_state: Tensor | None) -> None:
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
        if buffers.bias is not None:
            _add(take(buffers.bias, lead, place.rows, place.columns), g_scores)
        g_x = unbend(self.recipe.pointwise, stripe.x, stripe.bent, g_scores)
        if g_x is not None and any(
            buffer is not None for buffer in (buffers.query, buffers.key, buffers.scale, buffers.vector)
        ):
            self._pull_core(buffers, place, stripe, g_x)

    def _pull_core(self, buffers: Buffers, place: Place, stripe: "Stripe", g_x: Tensor) -> None:
        lead = place.lead
        if buffers.scale is not None:
            _add(take(buffers.scale, lead), (g_x * stripe.core).sum((-2, -1), keepdim=True))
        g_core = g_x * _factor(stripe.scale, self.recipe.factor)
        slopes: Slopes = self.core.backward(stripe.sides, g_core)
        if buffers.query is not None:
            _add(take(buffers.query, lead, place.rows), slopes.query)
        if buffers.key is not None:
            _add(take(buffers.key, lead, place.columns), slopes.key)
        if buffers.vector is not None and slopes.vector is not None:
            _add(take(buffers.vector, lead), slopes.vector)


class Stripe(NamedTuple):
    """What a stripe's backward pass needs: the values on the way from operands to weights."""

    sides: Sides
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
