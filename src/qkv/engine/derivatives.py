"""Gradients by tiles that can be differentiated any number of times, in memory linear in queries and keys.

A kernel's backward pass returns numbers without a graph. Where a graph of the gradients is requested
(`create_graph=True`), they come from here instead: the equation is evaluated on one tile after another by PyTorch's
operators, and autograd differentiates each tile. A derivative of a sum over tiles is again a sum over tiles, so one
autograd function, whose backward pass is itself, serves every order. First derivatives without a graph stay with the
kernels.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from qkv.engine.dropout import Kept
from qkv.engine.mechanism import Inputs, Mechanism
from qkv.engine.ties import shared
from qkv.engine.tiles import TileSize, TileSlices, Tiling, take
from qkv.linalg.toeplitz import toeplitz, window
from qkv.masks.base import Bounds, Grid
from qkv.masks.lower import Kind, Visibility
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.values.mapped import by_sample

PAIRS = 1 << 17
"""How many scores a tile holds; autograd stores some twenty numbers for each."""
FEATURES = 1 << 21
"""How many hidden features the scores of a tile may have in all, where the core computes them pair by pair."""


class Terms(NamedTuple):
    """The tensors of an equation that may have gradients, with all leading dimensions; those of size 1 broadcast.

    Attributes:
        query, key, value, scale, vector, parameter, bias, diagonals: as in `Inputs`.
        shift: (..., Q), added to all scores of a row.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: Tensor | None = None
    vector: Tensor | None = None
    parameter: Tensor | None = None
    bias: Tensor | None = None
    diagonals: Tensor | None = None
    shift: Tensor | None = None


class Cut(NamedTuple):
    """Which part of a tensor belongs to a tile: the dimensions of its rows and columns, counted from the last.

    Attributes:
        rows, columns: −2, −1, or None for all.
        rank: how many dimensions follow the leading ones.
        diagonal: whether the last dimension holds diagonals.
        complete: whether all of it belongs to every tile.
    """

    rows: int | None
    columns: int | None
    rank: int = 2
    diagonal: bool = False
    complete: bool = False


ROWS, COLUMNS, STATE, COMPLETE = Cut(-2, None), Cut(None, -2), Cut(-1, None, 1), Cut(None, None, complete=True)
_CUTS = (
    *(ROWS, COLUMNS, COLUMNS),
    *(Cut(None, None), Cut(None, None, 1), Cut(None, None)),
    *(Cut(-2, -1), Cut(None, None, 1, diagonal=True), STATE),
)
"""The cut of each of the `Terms`."""


def differentiable_gradients(
    mechanism: Mechanism,
    visibility: Visibility,
    terms: Sequence[Tensor | None],
    needed: Sequence[bool],
    cotangents: tuple[Tensor | None, Tensor | None],
    constants: "Constants | None" = None,
) -> list[Tensor | None]:
    """Return the gradients of an equation's tensors, with a graph.

    Args:
        mechanism: the equation; `state` says whether the row state's gradient is among the cotangents.
        visibility: the lowered mask.
        terms: the `Terms`, and then the tensors that the bias of a tile is computed from.
        needed: which of them need a gradient; those that it does not name need none.
        cotangents: of the output (..., Q, V) and of the row state (..., Q); None for zeros.
        constants: what else the scores of a tile depend on.

    Returns:
        For each entry of `needed` the gradient, in the term's shape and dtype; None where there is none.

    Example:
        >>> from qkv.masks.base import Grid
        >>> from qkv.scores.pointwise import Linear
        >>> x = torch.tensor([[0.5, 1.0]], requires_grad=True)
        >>> dot = Mechanism("dot", Linear(), "identity", 1.0, 0.0, False, ())
        >>> seen = Visibility("all", Grid((), 1, 1, x.device))
        >>> terms = Terms(x, torch.ones(1, 2), torch.ones(1, 1))
        >>> needed, cotangents = [True], (x.sum().view(1, 1), None)
        >>> first = differentiable_gradients(dot, seen, terms, needed, cotangents)[0]
        >>> first, torch.autograd.grad(first.sum(), x)
        (tensor([[1.5000, 1.5000]], grad_fn=<_SumOfTilesBackward>), (tensor([[2., 2.]]),))
    """
    if all(x is None for x in cotangents):
        pairs = zip(terms, needed, strict=False)
        return [torch.zeros_like(x) if x is not None and want else None for x, want in pairs]
    equation = TiledEquation.of(mechanism, visibility, terms, cotangents, constants)
    chosen = equation.chosen(needed)
    gradients = gradients_of(equation, _present(terms), chosen, _present(cotangents))
    return _by_index(gradients, (equation.present[position] for position in chosen), len(needed))


def second_gradients(
    mechanism: Mechanism,
    visibility: Visibility,
    terms: Sequence[Tensor | None],
    cotangents: tuple[Tensor | None, Tensor | None],
    upstream: Sequence[Tensor | None],
    needed: tuple[Sequence[bool], Sequence[bool]],
    constants: "Constants | None" = None,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Return the gradients of a loss on the gradients of an equation's tensors, with a graph.

    Args:
        mechanism, visibility, terms, cotangents, constants: as `differentiable_gradients` takes them.
        upstream: the loss's gradients with respect to the gradients of the terms; None where they have none.
        needed: which of the terms need a gradient, and which of the two cotangents.

    Returns:
        The gradients of the terms and those of the cotangents; None where there is none.
    """
    equation = TiledEquation.of(mechanism, visibility, terms, cotangents, constants)
    first = equation.chosen([x is not None for x in upstream])
    if not first or not equation.outputs:
        return [None] * len(needed[0]), [None, None]
    count = len(equation.present)
    of_terms = equation.chosen(needed[0])
    of_cotangents = [position for position, index in enumerate(equation.outputs) if needed[1][index]]
    tensors = [*_present(terms), *_present(cotangents)]
    level = Level(equation).derivative(first).derivative((*of_terms, *(count + position for position in of_cotangents)))
    tensors += _present(upstream[equation.present[position]] for position in first)
    gradients = _apply(level, tensors)
    split = len(of_terms)
    return (
        _by_index(gradients[:split], (equation.present[position] for position in of_terms), len(needed[0])),
        _by_index(gradients[split:], (equation.outputs[position] for position in of_cotangents), 2),
    )


def _present(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _by_index(tensors: Iterable[Tensor], indices: Iterable[int], count: int) -> list[Tensor | None]:
    """Return a list with each tensor at its index, and None elsewhere."""
    by_index = dict(zip(indices, tensors, strict=True))
    return [by_index.get(index) for index in range(count)]


def gradients_of(
    function: "TileFunction", tensors: Sequence[Tensor], chosen: tuple[int, ...], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of a function of tiles, with a graph.

    Args:
        function: what is computed of each tile.
        tensors: its inputs.
        chosen: the inputs whose gradients are returned, in this order.
        cotangents: one for each of its results.
    """
    return _apply(Level(function).derivative(chosen), [*tensors, *cotangents])


class TileFunction(Protocol):
    """What is computed of each tile, by operators that autograd differentiates; its first input is the query."""

    @property
    def inputs(self) -> tuple[Cut, ...]:
        """Which part of each input belongs to a tile."""

    @property
    def results(self) -> tuple[Cut, ...]:
        """Which part of each result a tile computes."""

    @property
    def guarded(self) -> Sequence[Tensor]:
        """Other tensors that it reads, which must not change before a backward pass."""

    def reading(self, guarded: Sequence[Tensor]) -> "TileFunction":
        """Return the same function of other tensors in the places of those guarded."""

    def tiling(self, tensors: Sequence[Tensor]) -> Tiling:
        """Cut the problem into tiles, small enough for what autograd stores of them."""

    def __call__(
        self, tensors: Sequence[Tensor], slices: TileSlices, visible: Tensor | None, queries: int
    ) -> Sequence[Tensor]:
        """Return the results of a tile, whose parts of the inputs are given."""


@dataclass(frozen=True)
class Constants:
    """What the scores of a tile depend on, without a gradient.

    Attributes:
        seed: of dropout.
        ties: as in `Inputs`.
        bias: the bias of a tile's scores, from its slices and the tensors that follow the `Terms`.
    """

    seed: Tensor | None = None
    ties: Tensor | None = None
    bias: Callable[[TileSlices, Sequence[Tensor]], Tensor] | None = None


@final
@dataclass(frozen=True)
class TiledEquation:
    """An attention mechanism on one tile, by operators that autograd differentiates.

    Attributes:
        mechanism, visibility: as `differentiable_gradients` takes them.
        present: the indices of the `Terms` that it takes, and larger ones for the tensors that follow them.
        outputs: which of output and row state it returns.
        constants: what else its scores depend on.
    """

    mechanism: Mechanism
    visibility: Visibility
    present: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: Constants

    @staticmethod
    def of(
        mechanism: Mechanism,
        visibility: Visibility,
        terms: Sequence[Tensor | None],
        cotangents: Sequence[Tensor | None],
        constants: Constants | None,
    ) -> "TiledEquation":
        """Return the equation that takes the terms that are present, and returns what has a cotangent."""
        present, outputs = (
            tuple(index for index, x in enumerate(tensors) if x is not None) for tensors in (terms, cotangents)
        )
        return TiledEquation(mechanism, visibility, present, outputs, constants or Constants())

    def chosen(self, needed: Sequence[bool]) -> tuple[int, ...]:
        """Return the positions, among its inputs, of the terms that are needed; those not named are not."""
        return tuple(position for position, index in enumerate(self.present) if index < len(needed) and needed[index])

    @property
    def inputs(self) -> tuple[Cut, ...]:
        """Which part of each input belongs to a tile."""
        return tuple(_CUTS[index] if index < len(_CUTS) else COMPLETE for index in self.present)

    @property
    def results(self) -> tuple[Cut, ...]:
        """Which part of each result a tile computes."""
        return tuple((ROWS, STATE)[index] for index in self.outputs)

    @property
    def guarded(self) -> Sequence[Tensor]:
        """The tensors of constants and mask, which is evaluated again, also of a user-defined one."""
        tensors = (x for x in tree_leaves(self._read_again()) if isinstance(x, Tensor) and not x.is_inference())
        return [*tensors, *self.visibility.tensors()]

    def reading(self, guarded: Sequence[Tensor]) -> "TiledEquation":
        """Return the same equation with other tensors in the places of those guarded."""
        if all(x is y for x, y in zip(guarded, self.guarded, strict=True)):
            return self
        later = iter(guarded)
        bounds, dense, mask, seed, ties = tree_map_only(
            Tensor, lambda x: x if x.is_inference() else next(later), self._read_again()
        )
        visibility = replace(self.visibility, bounds=bounds, dense=dense, mask=mask, memo={})
        return replace(self, visibility=visibility, constants=replace(self.constants, seed=seed, ties=ties))

    def _read_again(self) -> tuple[Any, ...]:
        visibility, constants = self.visibility, self.constants
        return visibility.bounds, visibility.dense, visibility.mask, constants.seed, constants.ties

    def terms(self, tensors: Sequence[Tensor]) -> Terms:
        """Return the tensors by name."""
        by_index = dict(zip(self.present, tensors, strict=False))
        return Terms(*(by_index.get(index) for index in range(len(Terms._fields))))  # type: ignore[arg-type]

    @cached_property
    def kept(self) -> Kept | None:
        """Which weights dropout keeps; None without dropout."""
        mechanism, grid, seed = self.mechanism, self.visibility.grid, self.constants.seed
        return None if seed is None else Kept(seed, mechanism.leading, grid.queries, grid.keys, mechanism.dropout)

    def tiling(self, tensors: Sequence[Tensor]) -> Tiling:
        """Cut the problem into tiles, small enough for what autograd stores of them."""
        terms, core = self.terms(tensors), self.mechanism.core
        width = 1 if core in ("dot", "relu_sum") else max(1, terms.query.shape[-1])
        sizes = TileSize(max(1, min(PAIRS, FEATURES // width)), 8 if width == 1 else 1)
        queries, keys = terms.query.shape[-2], terms.key.shape[-2]
        return Tiling(self.mechanism.leading, queries, keys, self.visibility, sizes)

    def __call__(
        self, tensors: Sequence[Tensor], slices: TileSlices, visible: Tensor | None, queries: int
    ) -> Sequence[Tensor]:
        """Return output and row state of a tile, as far as they are requested."""
        mechanism, constants = self.mechanism, self.constants
        terms = _without_hidden(self.terms(tensors), visible)
        x = CORES[mechanism.core](terms)
        x = x * (mechanism.factor if terms.scale is None else terms.scale)
        s = mechanism.pointwise(x)
        if constants.ties is not None:
            s = shared(s, take(constants.ties, slices.items, slices.columns), slices.columns.start)
        biases = [terms.bias, None if terms.shift is None else terms.shift.unsqueeze(-1)]
        if terms.diagonals is not None:
            biases.append(toeplitz(terms.diagonals, slices.rows.stop - slices.rows.start))
        if constants.bias is not None:
            learned = [x for index, x in zip(self.present, tensors, strict=False) if index >= len(Terms._fields)]
            biases.append(constants.bias(slices, learned))
        for bias in biases:
            s = s if bias is None else s + bias
        if visible is None and any(bias is not None for bias in biases):
            # A bias may mask a whole row by −inf.
            visible = torch.ones((1, 1), dtype=torch.bool, device=s.device)
        normalizer = _normalizer(mechanism.normalizer, terms.parameter)
        # A parameter may be wider than the values.
        w = normalizer(s, visible).to(terms.value.dtype)
        if self.kept is not None:
            w = w * self.kept.factors(w.dtype, *slices)
        return [w @ terms.value if index == 0 else normalizer.state(s, visible).to(w.dtype) for index in self.outputs]


@final
@dataclass(frozen=True)
class Level:
    """A derivative of a function of tiles, of some order: its results are summed over all tiles.

    Attributes:
        function: the function.
        chosen: for each derivative taken, the inputs that it differentiates; its cotangents follow the inputs.
    """

    function: TileFunction
    chosen: tuple[tuple[int, ...], ...] = ()

    def derivative(self, chosen: tuple[int, ...]) -> "Level":
        """Return the next level: the product of cotangents with the derivative with respect to some inputs.

        Its inputs are those of this level, and a cotangent of each output.
        """
        return Level(self.function, (*self.chosen, chosen))

    def reading(self, guarded: Sequence[Tensor]) -> "Level":
        """Return the same level of a function of other tensors in the places of those guarded."""
        return replace(self, function=self.function.reading(guarded))

    @cached_property
    def below(self) -> "Level":
        """The level that this one differentiates."""
        return Level(self.function, self.chosen[:-1])

    @cached_property
    def inputs(self) -> tuple[Cut, ...]:
        """Which part of each input belongs to a tile."""
        return (*self.below.inputs, *self.below.outputs) if self.chosen else self.function.inputs

    @cached_property
    def outputs(self) -> tuple[Cut, ...]:
        """Which part of each output belongs to a tile."""
        return tuple(self.inputs[index] for index in self.shapes) if self.chosen else self.function.results

    @property
    def shapes(self) -> tuple[int, ...]:
        """The indices of the inputs whose shapes and dtypes the outputs have."""
        return self.chosen[-1]

    def __call__(
        self, tensors: Sequence[Tensor], slices: TileSlices, visible: Tensor | None, queries: int
    ) -> Sequence[Tensor]:
        """Return the results of a tile."""
        if not self.chosen:
            return self.function(tensors, slices, visible, queries)
        count = len(self.below.inputs)
        results = self.below(tensors[:count], slices, visible, queries)
        pairs = [(x, g) for x, g in zip(results, tensors[count:], strict=True) if x.requires_grad]
        variables = [tensors[index] for index in self.shapes]
        if not pairs:
            return [torch.zeros_like(x) for x in variables]
        # The graph of each level below the last is differentiated again.
        return torch.autograd.grad(
            [x for x, _ in pairs],
            variables,
            [g.expand_as(x) for x, g in pairs],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum the results of all tiles."""
        compute = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
        cast = [x.detach() if not x.ndim else x.detach().to(compute) for x in tensors]
        sums = [torch.zeros(cast[index].shape, dtype=cast[index].dtype, device=cast[0].device) for index in self.shapes]
        queries = tensors[0].shape[-2]
        tiling = self.function.tiling(tensors)
        for slices, visible in tiling:
            if slices.columns.start == slices.columns.stop:
                if not tiling.keys:
                    continue
                # Rows that see nothing: a row has a state all the same.
                slices = slices._replace(columns=slice(0, 1))  # noqa: PLW2901
                visible = torch.zeros((1, 1), dtype=torch.bool, device=cast[0].device)  # noqa: PLW2901
            with torch.enable_grad():
                parts = [
                    _part(x, cut, slices, queries).detach().requires_grad_()
                    for x, cut in zip(cast, self.inputs, strict=True)
                ]
                results = self(parts, slices, visible, queries)
            for total, cut, result in zip(sums, self.outputs, results, strict=True):
                part = _part(total, cut, slices, queries)
                part += result.detach().sum_to_size(part.shape)
        return [total.to(tensors[index].dtype) for total, index in zip(sums, self.shapes, strict=True)]


def _part(x: Tensor, cut: Cut, slices: TileSlices, queries: int) -> Tensor:
    """Return a view of the part of a tensor that belongs to a tile."""
    if cut.complete or not x.ndim:
        return x
    items, rows, columns = slices
    if cut.diagonal:
        return take(x, items)[..., window(rows, columns, queries)]
    parts = [slice(None)] * cut.rank
    if cut.rows is not None:
        parts[cut.rows] = rows
    if cut.columns is not None:
        parts[cut.columns] = columns
    return take(x, items, *parts)


def _without_hidden(terms: Terms, visible: Tensor | None) -> Terms:
    """Zero the keys and values that no row of a tile sees, and queries that see nothing: they may hold any number."""
    if visible is None:
        return terms
    columns, rows = visible.any(-2).unsqueeze(-1), visible.any(-1).unsqueeze(-1)
    key, value = (torch.where(columns, x, 0.0) for x in (terms.key, terms.value))
    return terms._replace(query=torch.where(rows, terms.query, 0.0), key=key, value=value)


def _apply(level: Level, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    results = _SumOfTiles.apply(level, len(tensors), *tensors, *level.function.guarded)  # type: ignore[no-untyped-call]
    return results if isinstance(results, tuple) else (results,)


class _SumOfTiles(torch.autograd.Function):
    """A level as an autograd function, whose backward pass is the next level.

    All tensors that it reads are arguments: so `torch.func` can transform it, and PyTorch detects in-place changes.
    """

    @staticmethod
    def forward(level: Level, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(tensors[0].device.type, enabled=False):
            return tuple(level.reading(tensors[count:]).run(tensors[:count]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.level, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    @by_sample
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        needs_grad = ctx.needs_input_grad[2 : 2 + ctx.count]
        chosen = tuple(index for index, want in enumerate(needs_grad) if want)
        tensors, guarded = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        gradients = iter(_apply(ctx.level.reading(guarded).derivative(chosen), [*tensors, *cotangents]))
        return (None, None, *(next(gradients) if want else None for want in needs_grad), *(None for _ in guarded))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], level: Level, count: int, *tensors: Tensor) -> Any:
        """Compute the mapped items one after another."""
        results = []
        for item in range(info.batch_size):
            pairs = zip(tensors, in_dims[2:], strict=True)
            parts = [x if dim is None else x.select(dim, item) for x, dim in pairs]
            results.append(_apply(level.reading(parts[count:]), parts[:count]))
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])


def _normalizer(name: str, parameter: Tensor | None) -> Normalizer:
    """Return the normalizer of a rule of `Mechanism`, with its parameter, (..., 1, 1) or a scalar."""
    if parameter is not None and parameter.ndim:
        parameter = parameter[..., 0, 0]
    match name:
        case "softmax":
            return Softmax(parameter)
        case "sigmoid":
            return Sigmoid(parameter)
        case "entmax15":
            return Entmax(1.5)
        case "entmax":
            assert parameter is not None
            return Entmax(parameter)
    return _WITHOUT_PARAMETER[name]


_WITHOUT_PARAMETER: dict[str, Normalizer] = {
    "sum": Sum(),
    "mean": Mean(),
    "identity": Identity(),
    "hard": Hard(),
    "sparsemax": Sparsemax(),
}


def _dot(terms: Terms) -> Tensor:
    return terms.query @ terms.key.mT


def _distance(terms: Terms) -> Tensor:
    return (terms.query.unsqueeze(-2) - terms.key.unsqueeze(-3)).square().sum(-1)


def _tanh_sum(terms: Terms) -> Tensor:
    assert terms.vector is not None
    hidden = torch.tanh(terms.query.unsqueeze(-2) + terms.key.unsqueeze(-3))
    return (hidden * terms.vector[..., None, None, :]).sum(-1)


CORES: dict[str, Callable[[Terms], Tensor]] = {
    "dot": _dot,
    "relu_sum": lambda terms: terms.query + terms.key.mT,
    "distance": _distance,
    "tanh_sum": _tanh_sum,
}


def visibility_of(
    query: Tensor, key: Tensor, bounds: tuple[Tensor | None, Tensor | None] = (None, None), dense: Tensor | None = None
) -> Visibility:
    """Return a lowered mask for operands (..., Q, F) and (..., K, F), from what a kernel was given.

    Args:
        query, key: the operands; query has all leading dimensions.
        bounds: the first key that a row sees, and the one past its last, (..., Q); None for 0 and K.
        dense: bool, broadcasts to (..., Q, K).
    """
    grid = Grid.of(query, key)
    kind: Kind = "dense" if dense is not None else "all" if bounds == (None, None) else "bounds"
    return Visibility(kind, grid, Bounds(*bounds), dense)


def causal_bounds(query: Tensor, key: Tensor) -> tuple[None, Tensor]:
    """Return the bounds of a causal mask, as `visibility_of` takes them."""
    last = torch.arange(1, query.shape[-2] + 1, dtype=torch.int32, device=query.device)
    return None, last.clamp(max=key.shape[-2])


def terms_of(inputs: Inputs) -> Terms:
    """Return the tensors of a problem's inputs that may have gradients."""
    return Terms(*inputs[: len(Terms._fields) - 1])  # type: ignore[arg-type]
