"""Each cell of the cross product of scores, normalizers, masks and types: its inputs, the equation, and the verdict."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from unittest.mock import patch

import torch
from tests.contract.criterion import Draw, largest, shares, unit
from tests.contract.mechanisms import (
    BATCH,
    DTYPES,
    HEADS,
    KEYS,
    MASK,
    MASKS,
    NORMALIZER,
    NORMALIZERS,
    QUERIES,
    SCORES,
    VALUE_WIDTH,
    MaskCase,
    NormalizerCase,
    ScoreCase,
)
from tests.contract.orders import ORDERS, Order
from tests.seed import generator, stored
from torch import Tensor

from qkv.engine.describe import Arguments, describe, in_log_space
from qkv.errors import UnsupportedError
from qkv.functional import attention
from qkv.masks.base import Mask
from qkv.masks.lower import matrix
from qkv.normalizers import steep
from qkv.planner.plan import plan_for

FLASH = ("sdpa", "rowwise")
"""Backends that hand float32 gradients to PyTorch's own kernel; `rowwise` those of squared distances and Gaussians."""


def of_flash(largest_score: float) -> float:
    """The multiple of the limit that float32 gradients from PyTorch's own kernel may reach.

    Its backward recomputes the weights as exp(s − lse) from the lse in float32: the rounding of lse, u·|lse|, is an
    error of every weight of the row that the literal softmax does not make. It is as large as one more rounding of each
    score. At standard deviations 1, 2, 4, 6 and 8 of queries and keys (largest scores 6, 24, 95, 214, 381; 1,024 keys,
    32 wide) the worst gradient has 0.3, 0.6, 2.3, 4.5 and 6.6 times the limit.
    """
    return 2 * (1 + largest_score / 64)


SERVED_BY_FEW = {
    "dot": (("identity", "none"),),
    "scaled_dot": (("mean", "causal"), ("hard", "none")),
    "concat": (("mean", "lengths"),),
    "concat_leaky_per_head": (("softmax", "none"),),
    "epanechnikov_per_head": (("sum", "none"),),
}
"""Mechanisms of special-purpose backends: they would meet few types if they alternated with all others."""

AT_EDGE = 2.0**-20
"""How near to the edge of its kernel, in ‖q−k‖²/h², float32 may see a pair on either side."""

INPUTS = {"query", "key", "value"}
GRADIENT = "gradient of "


@dataclass(frozen=True)
class Case:
    """One cell of the cross product; its name is its seed."""

    score: ScoreCase
    normalizer: NormalizerCase
    mask: MaskCase
    dtype: torch.dtype
    queries: int = QUERIES

    def __str__(self) -> str:
        few = "" if self.queries == QUERIES else f", {self.queries} queries,"
        return f"{self.score.name} × {self.normalizer.name} × {self.mask.name}{few} in {self.dtype}"

    @property
    def names(self) -> tuple[str, str, str]:
        return self.score.name, self.normalizer.name, self.mask.name

    @property
    def seed(self) -> int:
        """A stored seed: the same in every process."""
        return stored(*self.names)


def legal(score: ScoreCase, normalizer: NormalizerCase) -> bool:
    return not normalizer.needs_non_negative or score.build(parameters(score, torch.Generator())).summable


def cross_product(score: ScoreCase, dtype: torch.dtype) -> Iterator[Case]:
    """Every normalizer and mask that makes sense with this score."""
    for normalizer in NORMALIZERS:
        if legal(score, normalizer):
            for mask in MASKS:
                yield Case(score, normalizer, mask, dtype)


def sample(score: ScoreCase, dtype: torch.dtype) -> Iterator[Case]:
    """A subset of the cross product with every normalizer and mask; softmax with every fourth mask."""
    start = SCORES.index(score)
    for case in cross_product(score, dtype):
        mask, normalizer = MASKS.index(case.mask), NORMALIZERS.index(case.normalizer)
        period = 4 if case.normalizer.name == "softmax" else len(MASKS)
        if (mask + start + 5 * normalizer) % period == 0:
            yield case


def paired(score: ScoreCase) -> Iterator[Case]:
    """A small subset: each mask once, alternating normalizers and types, and four times under its own normalizer.

    Over all scores, every compatible pair of score, normalizer, mask and type occurs.
    """
    start = SCORES.index(score)
    fit = [normalizer for normalizer in NORMALIZERS if legal(score, normalizer)]
    own = next((normalizer for normalizer in fit if normalizer.needs_non_negative), fit[0])
    for place, mask in enumerate(MASKS):
        turn = place + start
        yield Case(score, fit[turn % len(fit)], mask, DTYPES[turn % len(DTYPES)])
        if turn % 4 == 0 and fit[turn % len(fit)] is not own:
            yield Case(score, own, mask, DTYPES[(start + place // 4) % len(DTYPES)])
    for normalizer, mask in SERVED_BY_FEW.get(score.name, ()):
        yield from (Case(score, NORMALIZER[normalizer], MASK[mask], dtype) for dtype in DTYPES)


def parameters(score: ScoreCase, draw: torch.Generator) -> dict[str, Tensor]:
    shapes = score.shapes(score.width, score.key_width)
    return {name: _parameter(score, name, shape, draw) for name, shape in shapes.items()}


def _parameter(score: ScoreCase, name: str, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=draw)
    if name in score.positive:
        return (x * 0.3).exp() * 1.5
    return x * shape[-1] ** -0.5 if name.endswith("weight") and len(shape) > 1 else x


@dataclass(frozen=True)
class Inputs:
    """Everything a case needs, rounded to its dtype once and stored in float64."""

    leaves: Mapping[str, Tensor]
    cotangent: Tensor
    mask: Mask | Tensor | None

    @staticmethod
    def draw(case: Case, turn: int = 0) -> "Inputs":
        g = generator(*case.names, *([turn] if turn else []))
        score = case.score
        query = torch.randn(BATCH, HEADS, case.queries, score.width, generator=g)
        key = torch.randn(BATCH, HEADS, KEYS, score.key_width, generator=g)
        if score.grid and case.dtype.itemsize == 2:
            # In half precision too many pairs are near a kernel's edge; on a lattice none is.
            query, key = (x.mul(2).round().clamp(-2, 2) / 2 for x in (query, key))
        leaves = {
            "query": query,
            "key": key,
            "value": torch.randn(BATCH, HEADS, KEYS, VALUE_WIDTH, generator=g),
            **parameters(score, g),
        }
        for name, shape in case.normalizer.shapes.items():
            x = torch.randn(shape, generator=g)
            leaves[name] = x if case.normalizer.at_least is None else case.normalizer.at_least + x.sigmoid() / 2
        cotangent = torch.randn(BATCH, HEADS, case.queries, VALUE_WIDTH, generator=g)
        held = torch.float32 if case.dtype == torch.float64 else case.dtype
        leaves = {name: x.to(held).double() for name, x in leaves.items()}
        return Inputs(leaves, cotangent.to(held).double(), case.mask.build(case.queries, KEYS, g))


@dataclass(frozen=True)
class Answer:
    output: Tensor
    gradients: Mapping[str, Tensor]

    @property
    def named(self) -> dict[str, Tensor]:
        return {"output": self.output, **{GRADIENT + name: x for name, x in self.gradients.items()}}


class Trial:
    """A case with its inputs and its judge; backends are called to answer it."""

    def __init__(self, case: Case, turn: int = 0) -> None:
        self.case, self.turn = case, turn
        self.inputs = Inputs.draw(case, turn)
        self.low = torch.float32 if case.dtype == torch.float64 else case.dtype
        self._later: dict[int, Trial] = {}
        self._literal: dict[int, Answer] = {}

    def at(self, turn: int) -> "Trial":
        """The same case with other numbers."""
        if turn == self.turn:
            return self
        if turn not in self._later:
            self._later[turn] = Trial(self.case, turn)
        return self._later[turn]

    def equation(self, dtype: torch.dtype, order: Order = ORDERS[0]) -> tuple[Tensor, dict[str, Tensor]]:
        """Every step of the equation in one type, and the leaves that it depends on."""
        leaves = {name: x.to(dtype).requires_grad_() for name, x in self.inputs.leaves.items()}
        axes = self._axes
        given = {name: order.permuted(x, **axes.get(name, {})) for name, x in leaves.items()}
        seen = order.permuted(self._visible, item=-4, **self._of_rows, **self._of_keys)
        score, normalizer = self.case.score.build(self._own(given)), self.case.normalizer.build(given)
        score, normalizer = in_log_space(score, normalizer, biased=False)
        w = normalizer(score(given["query"], given["key"]), seen)
        return order.restored(w.to(dtype) @ given["value"], **axes["cotangent"]), leaves

    @cached_property
    def _axes(self) -> dict[str, dict[str, int]]:
        own = axes_of(self.case.score)
        return own | {
            "query": {"item": -4, **self._of_rows, **own["query"]},
            "key": {"item": -4, **dict.fromkeys(self._of_keys, -2), **own["key"]},
            "value": {"item": -4, **dict.fromkeys(self._of_keys, -2), "column": -1},
            "cotangent": {"item": -4, **self._of_rows, "column": -1},
        }

    @property
    def _of_rows(self) -> dict[str, int]:
        return {"row": -2}

    @property
    def _of_keys(self) -> dict[str, int]:
        # The first of several largest scores wins: that depends on the order of the keys.
        return {} if self.case.normalizer.name == "hard" else {"key": -1}

    def refusal(self, backend: str, state: bool = False) -> str | None:
        leaves = {name: x.to(self.case.dtype).requires_grad_() for name, x in self.inputs.leaves.items()}
        score, normalizer = self.case.score.build(self._own(leaves)), self.case.normalizer.build(leaves)
        given = Arguments(score, normalizer, self.inputs.mask, None, 0.0, None, False)
        bound = describe(leaves["query"], leaves["key"], leaves["value"], given, state)
        try:
            plan_for(bound.problem, backend).inspected(bound.call)
        except UnsupportedError as error:
            return str(error)
        return None

    def answer(self, backend: str, dtype: torch.dtype) -> Answer:
        """Output and gradients of one backend, in a dtype; rows on an edge send no gradient back."""
        return self._pull(*self.run(backend, dtype))

    def _pull(self, output: Tensor, leaves: dict[str, Tensor]) -> Answer:
        gradients = torch.autograd.grad(
            output, list(leaves.values()), self.cotangent(output.dtype), materialize_grads=True
        )
        named = zip(leaves, gradients, strict=True)
        return Answer(output.detach().double(), {name: gradient.double() for name, gradient in named})

    def cotangent(self, dtype: torch.dtype, draw: torch.Generator | None = None) -> Tensor:
        given = self.inputs.cotangent
        x = given if draw is None else torch.randn(given.shape, generator=draw).to(self.low).double()
        return torch.where(self.smooth[..., None], x, 0.0).to(dtype)

    def run(self, backend: str, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        """The output, and the leaves that it depends on."""
        leaves = {name: x.to(dtype).requires_grad_() for name, x in self.inputs.leaves.items()}
        output = attention(
            leaves["query"],
            leaves["key"],
            leaves["value"],
            score=self.case.score.build(self._own(leaves)),
            normalizer=self.case.normalizer.build(leaves),
            mask=self.inputs.mask,
            backend=backend,
        )
        return output, leaves

    @cached_property
    def truth(self) -> Answer:
        return self.answer("reference", torch.float64)

    def literal(self, order: Order) -> Answer:
        """The equation in the tested type, or in float32, its sums in some order."""
        if order.place not in self._literal:
            with order.summing(), one_type() if self.case.dtype == torch.float64 else nullcontext():
                self._literal[order.place] = self._pull(*self.equation(self.low, order))
        return self._literal[order.place]

    def shares(self, backend: str, certain: float = 1.0) -> dict[str, float]:
        """The errors of the output and of each gradient relative to the limit."""
        return shares(
            lambda turn: self.at(turn).draw(backend),
            self.case.dtype,
            allowed=self.allowed(backend),
            certain=certain,
        )

    def allowed(self, backend: str) -> dict[str, float]:
        """The multiple of the limit that this backend's gradients may reach."""
        own = backend == "rowwise" and not self.case.score.name.startswith(("squared_distance", "gaussian"))
        if own or backend.split(".", maxsplit=1)[0] not in FLASH or self.case.dtype != torch.float32:
            return {}
        multiple = of_flash(largest(self._pairs(self._score, torch.float64)))
        return {GRADIENT + name: multiple for name in self.inputs.leaves}

    def draw(self, backend: str) -> Draw:
        """What one backend answers, for the criterion."""
        return Draw(
            self.answer(backend, self.case.dtype).named,
            self.truth.named,
            lambda order: self.literal(order).named,
            {"output": largest(self.inputs.leaves["value"])}
            | {GRADIENT + name: self.scale(name) for name in self.truth.gradients},
            {"output": self.settled},
        )

    def scale(self, leaf: str) -> float:
        """The largest gradient of this leaf; where that is 0 by symmetry, the largest of all."""
        largest = {name: x.abs().max().item() for name, x in self.truth.gradients.items()}
        most = max(largest.values())
        return largest[leaf] if largest[leaf] > most * 2.0**-40 else most

    @cached_property
    def settled(self) -> Tensor:
        """Rows (B, H, Q) whose output cannot jump because of rounding."""
        return self._away_from_edges(bends=False)

    @cached_property
    def smooth(self) -> Tensor:
        """Rows (B, H, Q) whose gradient cannot jump because of rounding."""
        return self._away_from_edges(bends=True)

    def _away_from_edges(self, bends: bool) -> Tensor:
        score, normalizer = self.case.score, self.case.normalizer.name
        visible = self._visible
        good = torch.ones(BATCH, HEADS, self.case.queries, dtype=torch.bool)
        if score.bend is not None and (bends or score.jumps):
            exact, rounded = (self._pairs(score.bend, dtype) for dtype in (torch.float64, self.low))
            near = exact.abs() < 1
            slack = 3 * (rounded - exact)[near].abs().max() if near.any() else torch.zeros(())
            good &= ((exact.abs() > slack) | ~visible).all(-1)
        if score.bend is not None and normalizer == "sum":
            good &= self._has_weight(score.bend, visible)
        if normalizer == "hard" or (bends and normalizer == "sparsemax"):
            good &= self._clear_winners(normalizer, visible)
        return good

    def _has_weight(self, bend: Callable[..., Tensor], visible: Tensor) -> Tensor:
        """Whether rounding cannot decide if a row has any weight: its output jumps to 0 with its last one."""
        exact = self._pairs(bend, torch.float64)
        at_edge = (exact.abs() < AT_EDGE) & visible
        total = torch.where(visible, (-exact).clamp(min=0), 0.0).sum(-1)
        return (total > AT_EDGE) | ~at_edge.any(-1)

    def _clear_winners(self, normalizer: str, visible: Tensor) -> Tensor:
        exact, rounded = (self._pairs(self._score, dtype) for dtype in (torch.float64, self.low))
        slack = 4 * (rounded - exact).abs().max() + 4 * unit(self.low) * exact.abs().max()
        s = torch.where(visible, exact, -torch.inf)
        if normalizer == "hard":
            first, second = s.topk(2).values.unbind(-1)
            plateau = (first == second) & ((first == 0) | (first == 1))
            return (first - second > slack) | plateau | (second == -torch.inf)
        weights = self.case.normalizer.build({})(exact, visible)
        best = weights.max(-1, keepdim=True)
        tau = s.gather(-1, best.indices) - best.values
        return (((s - tau).abs() > slack) | ~visible).all(-1)

    @cached_property
    def _visible(self) -> Tensor:
        whole = (BATCH, HEADS, self.case.queries, KEYS)
        mask = self.inputs.mask
        return (
            torch.ones(whole, dtype=torch.bool)
            if mask is None
            else matrix(mask, self.case.queries, KEYS, (BATCH, HEADS))
        )

    def _pairs(self, function, dtype: torch.dtype) -> Tensor:
        leaves = {name: x.to(dtype) for name, x in self.inputs.leaves.items()}
        return function(leaves["query"], leaves["key"], self._own(leaves)).double().detach()

    def _score(self, query: Tensor, key: Tensor, own: Mapping[str, Tensor]) -> Tensor:
        return self.case.score.build(own)(query, key)

    def _own(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        others = INPUTS | set(self.case.normalizer.shapes)
        return {name: x for name, x in leaves.items() if name not in others}


def axes_of(score: ScoreCase) -> dict[str, dict[str, int]]:
    """The axes of query, key and the score's parameters that may be permuted together, by name."""
    shapes = score.shapes("feature", "key feature")  # type: ignore[arg-type]
    own = {
        leaf: {
            name if isinstance(name, str) else "hidden": place - len(shape)
            for place, name in enumerate(shape)
            if name != HEADS
        }
        for leaf, shape in shapes.items()
    }
    apart = any("key feature" in names for names in own.values())
    return own | {"query": {"feature": -1}, "key": {"key feature" if apart else "feature": -1}}


@contextmanager
def one_type() -> Iterator[None]:
    """Compute steep entmax in the type of its scores instead of float64."""
    with patch.object(steep, "served", lambda z: False):
        yield
