"""The criterion "exact" of the contract: how far an answer may be from the float64 result.

Let r be the float64 result on the same rounded inputs, and m the equation, computed literally in the tested dtype. An
answer o is exact when rms(o−r) ≤ 1.5·rms(m−r) + ε and max|o−r| ≤ 3·max|m−r| + ε, with ε = 2u·max|v|; gradients
likewise, with the largest gradient. `ratio` is the larger of the two quotients, so that 1 is the limit.

float64 has no wider type to be judged by. There, m−r is replaced by five times the errors of the equation in float32,
scaled by the quotient of the two roundoffs: the judge rounds as well (by up to 20 roundoffs, as `oracle` finds), and
the roundings of two types are two samples, not one. `oracle` checks that the float64 reference is right.

That stands for float64 only if the equation in float32 rounds every step to float32. Entmax at steep α is computed in
float64 whatever the type of its scores: float32 then rounds the scores alone, while float64 rounds every step. In one
case, by 40 digits, the gradient of α was off by 11 roundoffs in float32, by 700 in float64, and by 330 in float32 with
every step in that type. So where float64 is judged, all steps are (`one_type`).

The criterion needs at least 4,096 numbers: the quotient of two pairs of errors means nothing. In the cross product the
limit is wider where a gradient has fewer numbers (`WIDER`), and `test_exact` judges small parameters by the criterion
itself, over many cotangents.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from unittest.mock import patch

import torch
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
from torch import Tensor

from qkv.engine.describe import Arguments, describe, in_log_space
from qkv.errors import UnsupportedError
from qkv.functional import attention
from qkv.masks.base import Mask
from qkv.masks.lower import matrix
from qkv.normalizers import steep
from qkv.planner.plan import plan_for

REPORTED = {("sdpa", torch.float32): 2.0, ("rowwise", torch.float32): 2.0}
"""Gradients that PyTorch's own kernel cannot keep within the limit, and the multiple of the limit they may reach.

`rowwise` passes squared distances and Gaussians to that kernel.

Its backward recomputes the weights as exp(s − lse): the rounding of lse, u·|lse|, is an error of the largest weights
that the literal softmax does not make. Measured over 360 samples of 4,096: rms 1.4-1.6 times that of the reference;
the limit is exceeded in 7% of samples, by a factor of at most 1.89; in float64, bfloat16 and float16, and in every
output, never.
"""

SERVED_BY_FEW = {
    "dot": (("identity", "none"),),
    "scaled_dot": (("mean", "causal"), ("hard", "none")),
    "concat": (("mean", "lengths"),),
    "concat_leaky_per_head": (("softmax", "none"),),
    "epanechnikov_per_head": (("sum", "none"),),
}
"""Mechanisms of special-purpose backends: they would meet few types if they alternated with all others."""

INPUTS = {"query", "key", "value"}
WIDER = ((8, 16.0), (64, 8.0), (2048, 2.0), (4096, 1.5))
"""With fewer numbers than the first of a pair, the limit is wider by the second."""


@dataclass(frozen=True)
class Case:
    """One cell of the cross product; its name is its seed."""

    score: ScoreCase
    normalizer: NormalizerCase
    mask: MaskCase
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.score.name} × {self.normalizer.name} × {self.mask.name} in {self.dtype}"

    @property
    def seed(self) -> int:
        """A stored seed: the same in every process."""
        return zlib.crc32(f"{self.score.name}/{self.normalizer.name}/{self.mask.name}".encode())


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
    def draw(case: Case) -> "Inputs":
        g = torch.Generator().manual_seed(case.seed)
        score = case.score
        query = torch.randn(BATCH, HEADS, QUERIES, score.width, generator=g)
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
        cotangent = torch.randn(BATCH, HEADS, QUERIES, VALUE_WIDTH, generator=g)
        held = torch.float32 if case.dtype == torch.float64 else case.dtype
        leaves = {name: x.to(held).double() for name, x in leaves.items()}
        return Inputs(leaves, cotangent.to(held).double(), case.mask.build(QUERIES, KEYS, g))


@dataclass(frozen=True)
class Answer:
    output: Tensor
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True)
class Quotient:
    """A gradient's error relative to the limit, the gradient, and the multiple that its backend is allowed."""

    error: float
    gradient: Tensor
    reported: float

    @property
    def widened(self) -> float:
        """How much wider the limit is for so few numbers."""
        return next((factor for few, factor in WIDER if self.gradient.numel() < few), 1.0)

    @property
    def share(self) -> float:
        """The error relative to the allowance: 1 is the limit."""
        return self.error / self.widened / self.reported


class Trial:
    """A case with its inputs and its judge; backends are called to answer it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.inputs = Inputs.draw(case)
        self.low = torch.float32 if case.dtype == torch.float64 else case.dtype

    def equation(self, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
        """Every step of the equation in one type, and the leaves that it depends on."""
        leaves = {name: x.to(dtype).requires_grad_() for name, x in self.inputs.leaves.items()}
        score, normalizer = self.case.score.build(self._own(leaves)), self.case.normalizer.build(leaves)
        score, normalizer = in_log_space(score, normalizer, biased=False)
        w = normalizer(score(leaves["query"], leaves["key"]), self._visible)
        return w.to(dtype) @ leaves["value"], leaves

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

    @cached_property
    def literal(self) -> Answer:
        with one_type() if self.case.dtype == torch.float64 else nullcontext():
            return self._pull(*self.equation(self.low))

    def ratios(self, backend: str) -> tuple[float, float]:
        """The error of output and gradients relative to the limit."""
        forward, gradients = self.quotients(backend)
        return forward, max(quotient.share for quotient in gradients)

    def quotients(self, backend: str) -> tuple[float, list["Quotient"]]:
        """The error of the output and of each gradient relative to the limit."""
        answer = self.answer(backend, self.case.dtype)
        rows = self.settled
        v = self.inputs.leaves["value"].abs().max().item()
        outputs = (answer.output[rows], self.truth.output[rows], self.literal.output[rows])
        own = backend == "rowwise" and not self.case.score.name.startswith(("squared_distance", "gaussian"))
        reported = 1.0 if own else REPORTED.get((backend, self.case.dtype), 1.0)
        truth, literal = self.truth.gradients, self.literal.gradients
        gradients = [
            Quotient(self.ratio(x, truth[name], literal[name], self.scale(name)), x, reported)
            for name, x in answer.gradients.items()
        ]
        return self.ratio(*outputs, v), gradients

    def scale(self, leaf: str) -> float:
        """The largest gradient of this leaf; where that is 0 by symmetry, the largest of all."""
        largest = {name: x.abs().max().item() for name, x in self.truth.gradients.items()}
        most = max(largest.values())
        return largest[leaf] if largest[leaf] > most * 2.0**-40 else most

    def ratio(self, o: Tensor, r: Tensor, m: Tensor, scale: float) -> float:
        if o.shape != r.shape or not o.isfinite().all():
            return math.inf
        if not r.numel():
            return 0.0
        epsilon = 2 * unit(self.case.dtype) * scale
        error, allowed = (o - r).abs(), (m - r).abs()
        if self.case.dtype == torch.float64:
            allowed = allowed * (5 * unit(torch.float64) / unit(torch.float32))
        limits = (1.5 * rms(allowed) + epsilon, 3 * allowed.max().item() + epsilon)
        errors = (rms(error), error.max().item())
        return max(e / limit if limit else (math.inf if e else 0.0) for e, limit in zip(errors, limits, strict=True))

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
        good = torch.ones(BATCH, HEADS, QUERIES, dtype=torch.bool)
        if score.bend is not None and (bends or score.jumps):
            exact, rounded = (self._pairs(score.bend, dtype) for dtype in (torch.float64, self.low))
            near = exact.abs() < 1
            slack = 3 * (rounded - exact)[near].abs().max() if near.any() else torch.zeros(())
            good &= ((exact.abs() > slack) | ~visible).all(-1)
        if normalizer == "hard" or (bends and normalizer == "sparsemax"):
            good &= self._clear_winners(normalizer, visible)
        return good

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
        whole = (BATCH, HEADS, QUERIES, KEYS)
        mask = self.inputs.mask
        return torch.ones(whole, dtype=torch.bool) if mask is None else matrix(mask, QUERIES, KEYS, (BATCH, HEADS))

    def _pairs(self, function, dtype: torch.dtype) -> Tensor:
        leaves = {name: x.to(dtype) for name, x in self.inputs.leaves.items()}
        return function(leaves["query"], leaves["key"], self._own(leaves)).double().detach()

    def _score(self, query: Tensor, key: Tensor, own: Mapping[str, Tensor]) -> Tensor:
        return self.case.score.build(own)(query, key)

    def _own(self, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
        others = INPUTS | set(self.case.normalizer.shapes)
        return {name: x for name, x in leaves.items() if name not in others}


@contextmanager
def one_type() -> Iterator[None]:
    """Compute steep entmax in the type of its scores instead of float64."""
    with patch.object(steep, "served", lambda z: False):
        yield


def unit(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()
