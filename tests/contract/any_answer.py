"""What every answer must satisfy, for the random calls of `any_call`.

An answer is judged by the criterion "exact" (`judge`): its error against the equation in float64 may be 1.5 times (rms)
and 3 times (largest) that of the equation, computed literally in the tested dtype. Most of these calls have few
numbers, so the literal errors are sometimes small by luck. Therefore `NOISY` more samples of the same rounding are
drawn: the equation in float64, where each input and each score (each number that the literal form rounds) is off by up
to one roundoff. The limit is the larger of the two, and wider for few numbers, as in `judge`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any

import torch
from tests.contract.any_call import AnyCall, draw, lay
from tests.contract.calls import same_bits
from tests.contract.criterion import rms, unit
from tests.contract.judge import one_type
from torch import Tensor

from qkv.engine.describe import in_log_space
from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Softmax
from qkv.normalizers.kinds import MERGEABLE
from qkv.normalizers.row_state import RowState, merge
from qkv.scores.kernels import Epanechnikov

WIDER = ((8, 16.0), (64, 8.0), (2048, 2.0), (4096, 1.5))
"""With fewer numbers than the first of a pair, the limit is wider by the second: a random call is judged once."""

NOISY = 2
CANCELING = 8
"""Samples of a gradient that is 0 by symmetry: the literal form at other inputs."""
ZERO = 2.0**-40
"""The share of the largest gradient below which one is 0 by symmetry."""

SPARSE = ("sparsemax", "entmax", "entmax_1.3", "entmax_learned")
"""Normalizers whose row state is a threshold: judged through the weights of a map."""

EVERYTHING = ("reference", "blocked", "auto")
"""Backends that must not refuse any call drawn here."""

REPORTED = ("sdpa", "rowwise", "auto")
"""Backends that hand float32 gradients to PyTorch's own kernel: twice the limit, for the reason in `judge.REPORTED`."""

Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Verdict:
    """The largest error relative to the limit, and what is wrong ("" if nothing is)."""

    ratio: float
    wrong: str


class Wrong(Exception):  # noqa: N818
    """A broken promise."""


class Trial:
    """A call with its judge."""

    def __init__(self, call: AnyCall) -> None:
        self.call = call
        self.worst = 0.0

    # -- the equation --------------------------------------------------------------------------------------------

    def equation(
        self, dtype: torch.dtype, wanted: tuple[str, ...] = (), noise: torch.Generator | None = None
    ) -> Numbers:
        """Every step of the equation in one type: output, weights, row state and gradients."""
        off = unit(self.call.low) if noise is not None else 0.0
        held = self.call.leaves
        leaves = {name: _off(x, off, noise).to(dtype).requires_grad_(name in wanted) for name, x in held.items()}
        output, weights, state = self._steps(leaves, off, noise if dtype == torch.float64 else None)
        found = {"output": output, "weights": weights}
        if state is not None:
            found["state"] = state
        if wanted:
            cotangent = self.cotangent.to(dtype)
            slopes = _gradients(output, {name: leaves[name] for name in wanted}, cotangent)
            found |= {f"gradient of {name}": x for name, x in slopes.items()}
        return {name: x.detach().double() for name, x in found.items()}

    def _steps(
        self, leaves: Mapping[str, Tensor], off: float = 0.0, noise: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        given = self.repeated(self.call.arranged(leaves, laid=False))
        options = self.call.options(given)
        score, normalizer = in_log_space(options["score"], options["normalizer"], options["bias"] is not None)  # type: ignore[arg-type]
        s = score(given["query"], given["key"])
        if noise is not None and isinstance(options["score"], Epanechnikov):
            # The literal 1 − t rounds t as well: near the kernel's edge by many roundoffs of the score.
            s = s + torch.where(s > 0, _rounding(1 - s, off, noise), 0)
        bias = options["bias"]
        if isinstance(bias, Tensor):
            s = s + bias
        elif bias is not None:
            s = s + self._by_position(given, s.dtype)
        s = _off(s, off, noise).expand(self.whole)
        if 0 in self.whole:
            empty = s.new_zeros((*self.whole[:-1], given["value"].shape[-1]))
            return empty + 0 * given["value"].sum() + 0 * s.sum(), s, None
        w = normalizer(s, self.visible)
        output = w.to(s.dtype) @ given["value"]
        if noise is not None and s.requires_grad:
            # Noise is added only to the slope of s: the rounding of each product in g·v, which cancels in the rest.
            step = self._slope(w, s).detach() * (s - s.detach())
            output = output + step @ _rounding(given["value"], off, noise).detach()
            if "sink" in given:
                sink = given["sink"][..., None, None] * (1 - w.sum(-1, keepdim=True)).detach()
                output = output + (sink - sink.detach()) * _rounding(output, off, noise).detach()
        return output, w, self._state(normalizer, w, s)

    def _slope(self, w: Tensor, s: Tensor) -> Tensor:
        """How a score's own weight changes, if the normalizer subtracts a mean from the slopes of a row."""
        match self.rule:
            case "softmax" | "softmax_sink":
                return w
            case "sum":
                return torch.where(s > 0, w / s, 0)
            case name if name in SPARSE:
                return (w > 0).to(s.dtype)
        return torch.zeros_like(s)

    @property
    def rule(self) -> str:
        """The normalizer's name; a Gaussian under its sum is a softmax of squared distances."""
        name = self.call.normalizer.name
        return "softmax" if name == "sum" and self.call.score.name.startswith("gaussian") else name

    @property
    def bare(self) -> bool:
        return 0 in self.whole

    def repeated(self, given: Numbers) -> Numbers:
        """Key-side tensors of grouped heads, repeated as the definition says."""
        groups = self.call.sizes.groups
        if groups is None:
            return given
        times = self.call.sizes.heads // groups
        out = given | {name: given[name].repeat_interleave(times, -3) for name in ("key", "value")}
        own = {"key_weight": 2, "key_vector": 1}
        return out | {
            name: given[name].repeat_interleave(times, -own[name] - 1)
            for name in own
            if name in given and given[name].ndim > own[name]
        }

    def _state(self, normalizer: Normalizer, w: Tensor, s: Tensor) -> Tensor:
        s = s if s.dtype == torch.float64 else s.float()
        match self.rule:
            case "softmax" | "softmax_sink":
                lse = torch.where(self.visible, s, -torch.inf).logsumexp(-1)
                sink = normalizer.sink if isinstance(normalizer, Softmax) else None
                return lse if sink is None else torch.logaddexp(lse, sink.to(s.dtype)[..., None])  # type: ignore[union-attr]
            case "sum":
                return torch.where(self.visible, s, 0).sum(-1)
            case "mean" | "sigmoid" | "sigmoid_bias":
                return self.visible.sum(-1).to(s.dtype)
            case "hard":
                return torch.where(self.visible, s, -torch.inf).amax(-1)
            case "identity":
                return s.new_zeros(self.whole[:-1])
        return self._threshold(w, s)

    def _threshold(self, w: Tensor, s: Tensor) -> Tensor:
        """τ of the sparse normalizers, from the largest weight of each row."""
        best = w.detach().double().max(-1, keepdim=True)
        less = self._alpha - 1
        tau = less * s.detach().double().gather(-1, best.indices) - best.values.pow(less)
        return torch.where(self.visible.any(-1), tau.squeeze(-1), torch.nan)

    @cached_property
    def whole(self) -> tuple[int, ...]:
        return (*self.call.sizes.leading, self.call.sizes.queries, self.call.sizes.keys)

    @cached_property
    def nonzero(self) -> int:
        """The number of weights that are not 0."""
        return int((self.equation(torch.float64)["weights"] != 0).sum())

    @cached_property
    def visible(self) -> Tensor:
        return self.call.seen.table.expand(self.whole)

    # -- the criterion -------------------------------------------------------------------------------------------

    def judge_numbers(self, answers: Numbers, only: Tensor | None = None, mixed: bool = False) -> None:
        """Raise unless every number is exact.

        Args:
            answers: the numbers by name.
            only: the rows (..., Q) to judge; all if None.
            mixed: True if the weights come from a row state and scores that were rounded independently.
        """
        # Use all leaves if any gradient is judged: a gradient that is 0 by symmetry is measured by the largest one.
        slopes = any(name.startswith("gradient") for name in answers)
        wanted = tuple(self.call.leaves) if slopes else ()
        truth = self.equation(torch.float64, wanted)
        with one_type() if self.call.dtype == torch.float64 else nullcontext():
            literal = self.equation(self.call.low, wanted)
        g = torch.Generator().manual_seed(self.call.seed)
        noisy = [self.equation(torch.float64, wanted, g) for _ in range(NOISY)]
        if mixed:
            noisy = [self._mixed(one, other) for one, other in zip(noisy, noisy[1:] + noisy[:1], strict=True)]
        sizes = [x.abs().max().item() for name, x in truth.items() if name.startswith("gradient") and x.numel()]
        largest = max(sizes, default=0.0)
        for name, found in answers.items():
            answer, r, m = found.detach().double(), truth[name], literal[name]
            if answer.shape != r.shape:
                raise Wrong(f"{name} has the shape {tuple(answer.shape)}, not {tuple(r.shape)}")
            if not r.numel():
                continue
            scale = self.scale(name, r, largest)
            draws = [x[name] for x in noisy]
            if name.startswith("gradient") and r.abs().max().item() <= largest * ZERO:
                # The gradient is 0 for any inputs, so noise in float64 shows nothing; what cancels is rounded here.
                draws += [self.equation(self.call.low, wanted, g)[name] for _ in range(CANCELING)]
            if not name.startswith("gradient"):
                rows = self.settled if only is None else self.settled & only
                numbers = [x[rows] for x in (answer, r, m, *draws)]
                self.note(name, self.ratio(*numbers[:3], numbers[3:], scale))
            else:
                self.note(name, self.ratio(answer, r, m, draws, scale, slope=True))

    def _mixed(self, one: Numbers, other: Numbers) -> Numbers:
        """The weights of one sample with the row state of another."""
        if "state" not in one:
            return one
        w, ours, theirs = one["weights"], one["state"][..., None], other["state"][..., None]
        match self.rule:
            case "softmax" | "softmax_sink":
                w = w * torch.exp(torch.where(ours.isfinite(), ours - theirs, 0))
            case "sum":
                w = w * torch.where(theirs == 0, 1, ours / theirs)
            case name if name in SPARSE:
                # w = max(0, (α−1)s − τ)^(1/(α−1)); the state is τ.
                less = self._alpha - 1
                w = torch.where(w > 0, w.pow(less) + ours - theirs, 0).clamp(min=0).pow(1 / less)
        return one | {"weights": w}

    @cached_property
    def _alpha(self) -> Tensor:
        """α of the sparse normalizers, broadcastable to (..., Q, K)."""
        given = self.call.arranged(self.call.leaves, laid=False)
        alpha = given.get("alpha", getattr(self.call.options(given)["normalizer"], "alpha", 2.0))
        return torch.as_tensor(alpha, dtype=torch.float64)[..., None, None]

    def note(self, name: str, ratio: float) -> None:
        self.worst = max(self.worst, ratio)
        if ratio > 1:
            raise Wrong(f"{name} is off by {ratio:.3g} of the limit")

    def scale(self, name: str, r: Tensor, largest: float) -> float:
        """The scale of the absolute part of the limit."""
        if name == "output":
            value = self.call.arranged(self.call.leaves, laid=False)["value"]
            return value.abs().max().item() if value.numel() else 0.0
        own = torch.where(r.isfinite(), r, 0).abs().max().item()
        if name.startswith("gradient"):
            return own if own > largest * ZERO else largest
        return max(own, 1.0)

    def ratio(self, o: Tensor, r: Tensor, m: Tensor, noisy: list[Tensor], scale: float, slope: bool = False) -> float:
        """The error relative to the limit."""
        if not r.numel():
            return 0.0
        # What the call's type cannot hold is infinite in it.
        beyond = o.isinf() & (r.abs() > torch.finfo(self.call.dtype).max) & (o.sign() == r.sign())
        o = torch.where(beyond, r.to(o.dtype), o)
        finite = r.isfinite()
        if not torch.equal(o.isfinite(), finite) or not torch.equal(o[~finite], r[~finite]):
            return torch.inf
        # Errors are correlated if they come from fewer weights than there are numbers; a weight of 0 has none.
        size = min(r.numel(), self.nonzero)
        o, r = o[finite], r[finite]
        if not r.numel():
            return 0.0
        errors = [[(x[finite] - r).nan_to_num(torch.inf) for x in pool] for pool in ([m], noisy)]
        wider = next((factor for few, factor in WIDER if size < few), 1.0)
        if slope and self.call.dtype == torch.float32 and self.call.backend in REPORTED:
            wider *= 2
        fine = 5 * unit(torch.float64) / unit(torch.float32) if self.call.dtype == torch.float64 else 1.0
        epsilon = 2 * unit(self.call.dtype) * scale
        spread = max(rms(torch.cat(pool)) for pool in errors) * fine
        most = max(torch.cat(pool).abs().max().item() for pool in errors) * fine
        error = (o - r).abs()
        quotients = (
            (rms(error), wider * (1.5 * spread + epsilon)),
            (error.max().item(), wider * (3 * most + epsilon)),
        )
        return max(e / limit if limit else (torch.inf if e else 0.0) for e, limit in quotients)

    @cached_property
    def settled(self) -> Tensor:
        """Rows (..., Q) whose output cannot jump because of rounding."""
        return self._away_from_edges(bends=False)

    @cached_property
    def cotangent(self) -> Tensor:
        """The cotangent, 0 in rows whose gradient could jump because of rounding."""
        return torch.where(self._away_from_edges(bends=True)[..., None], self.call.cotangent, 0.0)

    def _away_from_edges(self, bends: bool) -> Tensor:
        score, normalizer = self.call.score, self.call.normalizer.name
        good = torch.ones(self.whole[:-1], dtype=torch.bool)
        if self.bare:
            return good
        if score.bend is not None and (bends or score.jumps or normalizer == "sum"):
            exact, rounded = (self._pairs(score.bend, dtype) for dtype in (torch.float64, self.call.low))
            near = exact.abs() < 1
            slack = 3 * (rounded - exact)[near].abs().max() if near.any() else torch.zeros(())
            edge = slack + 8 * unit(self.call.low)
            at_edge = ((exact.abs() <= edge) & self.visible).any(-1)
            if not (bends or score.jumps):
                # A weight at the edge may round to 0 or not; if it is the only one, its share is 0 or 1.
                at_edge = at_edge & ~((exact < -edge) & self.visible).any(-1)
            good = good & ~at_edge
        if normalizer == "hard" or (bends and normalizer == "sparsemax"):
            good = good & self._clear_winners(normalizer)
        return good

    def _clear_winners(self, normalizer: str) -> Tensor:
        exact, rounded = (self._scores(dtype) for dtype in (torch.float64, self.call.low))
        slack = 4 * (rounded - exact).abs().max() + 8 * unit(self.call.low) * exact.abs().max()
        s = torch.where(self.visible, exact, -torch.inf)
        if normalizer == "hard":
            if s.shape[-1] < 2:
                return torch.ones(s.shape[:-1], dtype=torch.bool)
            first, second = s.topk(2).values.unbind(-1)
            plateau = (first == second) & ((first == 0) | (first == 1)) & (self.call.bias == "none")
            return (first - second > slack) | plateau | (second == -torch.inf)
        weights = self.call.normalizer.build({})(exact, self.visible)
        best = weights.max(-1, keepdim=True)
        tau = exact.gather(-1, best.indices) - best.values
        return (((exact - tau).abs() > slack) | ~self.visible).all(-1)

    def _pairs(self, function: Callable[..., Tensor], dtype: torch.dtype) -> Tensor:
        leaves = {name: x.to(dtype) for name, x in self.call.leaves.items()}
        given = self.repeated(self.call.arranged(leaves, laid=False))
        own = {name: given[name] for name in self.call.own}
        return function(given["query"], given["key"], own).double().expand(self.whole)

    def _scores(self, dtype: torch.dtype) -> Tensor:
        leaves = {name: x.to(dtype) for name, x in self.call.leaves.items()}
        given = self.repeated(self.call.arranged(leaves, laid=False))
        options = self.call.options(given)
        s = options["score"](given["query"], given["key"])  # type: ignore[operator]
        bias = options["bias"]
        if bias is not None and not isinstance(bias, Tensor):
            bias = self._by_position(given, s.dtype)
        return (s if bias is None else s + bias).double().expand(self.whole)

    def _by_position(self, given: Numbers, dtype: torch.dtype) -> Tensor:
        """The bias of `qkv.biases` from its definition."""
        rows, columns = torch.arange(self.whole[-2])[:, None], torch.arange(self.whole[-1])
        table = given.get("table")
        if self.call.bias == "alibi":
            slopes = torch.tensor(0.3, dtype=dtype) if table is None else table[..., None, None]
            return -slopes * (rows - columns).abs().to(dtype)
        assert table is not None
        reach = table.shape[-1] // 2
        return table[..., (columns - rows).clamp(-reach, reach) + reach]

    # -- the answer ----------------------------------------------------------------------------------------------

    def leaves(self, changed: Mapping[str, Tensor] | None = None) -> Numbers:
        """The leaves in the tested dtype, created in the mode of the call."""
        leaves = {name: x.to(self.call.dtype) for name, x in (self.call.leaves | dict(changed or {})).items()}
        for name, x in leaves.items():
            # In inference mode a leaf cannot require a gradient.
            leaves[name] = x.clone().requires_grad_(name in self.call.wanted and not torch.is_inference_mode_enabled())
        return leaves

    def ask(self, function: Callable[..., Any], leaves: Mapping[str, Tensor]) -> Any:
        """Call one of the public functions."""
        return self.call_with(function, self.call.arranged(leaves))

    def call_with(self, function: Callable[..., Any], given: Mapping[str, Tensor]) -> Any:
        tensors = (given["query"], given["key"], given["value"])
        with _threads(self.call.threads):
            return function(*tensors, **self.call.options(given), backend=self.call.backend)

    def laid_cotangent(self) -> Tensor:
        """The cotangent as drawn; with stride 0 if it is one number, as the cotangent of a sum is."""
        given = self.cotangent.to(self.call.dtype)
        if self.call.cotangent_laid != "expanded":
            return lay(given, self.call.cotangent_laid)
        one = given[(slice(0, 1),) * given.ndim]
        return one.expand(given.shape) if given.numel() and bool((given == one).all()) else given

    def gradients(self, output: Tensor, leaves: Mapping[str, Tensor]) -> Numbers:
        wanted = {name: leaves[name] for name in self.call.wanted}
        if not wanted or not output.requires_grad:
            return {}
        cotangent = self.laid_cotangent()
        with _threads(self.call.threads):
            found = _gradients(output, wanted, cotangent)
        return {f"gradient of {name}": x for name, x in found.items()}


def _off(x: Tensor, by: float, noise: torch.Generator | None) -> Tensor:
    return x if noise is None else x + _rounding(x, by, noise)


def _rounding(x: Tensor, by: float, noise: torch.Generator) -> Tensor:
    """A random error for each number, at most `by` times its size."""
    return x * by * (2 * torch.rand(x.shape, generator=noise, dtype=torch.float64) - 1)


def _gradients(output: Tensor, leaves: Mapping[str, Tensor], cotangent: Tensor) -> Numbers:
    found = torch.autograd.grad(output, list(leaves.values()), cotangent, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


# -- the promises of a call -----------------------------------------------------------------------------------------


def exact(trial: Trial) -> None:
    """Output and gradients are exact; under no_grad and in inference mode too."""
    leaves = trial.leaves()
    output = trial.ask(attention, leaves)
    trial.judge_numbers({"output": output, **trial.gradients(output, leaves)})


def weights(trial: Trial) -> None:
    """When weights are requested, output and gradients have the same bits, and the weights are exact."""
    leaves = trial.leaves()
    output, found = trial.ask(attention_with_weights, leaves)
    plain = trial.ask(attention, leaves)
    _same(output, plain, "output with weights")
    trial.judge_numbers({"output": output.detach(), "weights": found.detach()})
    if found.requires_grad and not trial.bare:
        _graph_passes(trial, output, found)
    alone = trial.gradients(plain, leaves)
    for name, x in trial.gradients(output, leaves).items():
        _same(x, alone[name], f"{name} with weights")


def _graph_passes(trial: Trial, output: Tensor, found: Tensor) -> None:
    """The gradient of the output's loss with respect to the weights is g Vᵀ, 0 for keys that no row sees."""
    (slope,) = torch.autograd.grad(output, found, trial.laid_cotangent(), retain_graph=True, allow_unused=True)
    if slope is None:
        raise Wrong("the output's graph does not pass through the weights")
    value = trial.repeated(trial.call.arranged(trial.call.leaves, laid=False))["value"]
    value = value.expand(*trial.whole[:-2], *value.shape[-2:])
    value = torch.where(trial.visible.any(-2)[..., None], value, 0.0)
    g, low = trial.cotangent.to(trial.call.dtype).double(), max(unit(torch.float32), unit(trial.call.dtype))
    low = unit(torch.float64) if trial.call.dtype == torch.float64 else low
    # A number below the least normal one is rounded by up to half of the least number above 0.
    kind = torch.finfo(trial.call.dtype)
    limit = (value.shape[-1] + 2) * low * (g.abs() @ value.abs().mT) + kind.smallest_normal * kind.eps
    if bool(((slope.double() - g @ value.mT).abs() > limit).any()):
        raise Wrong("the gradient of the weights is not that of the output times the values")


def state(trial: Trial) -> None:
    """Output and row state are exact."""
    output, found = trial.ask(attention_with_state, trial.leaves())
    answers = {"output": output.detach()}
    if not trial.bare and trial.call.normalizer.name not in SPARSE:
        answers["state"] = found.value.detach()
    if found.value.dtype != torch.float64:
        raise Wrong(f"the state is {found.value.dtype}")
    trial.judge_numbers(answers)


def merged(trial: Trial) -> None:
    """Output, state and gradients merged over 2 to 4 parts of the keys, in any order, are those of one call."""
    call, keys = trial.call, trial.call.sizes.keys
    leaves = trial.leaves()
    given = call.arranged(leaves)
    r = Random(call.seed)
    cuts = sorted((0, keys, *(r.randrange(keys + 1) for _ in range(r.randint(1, 3)))))
    parts: list[tuple[tuple[Tensor, RowState], int]] = []
    for start, stop in pairwise(cuts):
        options = call.options(given) | {"mask": trial.visible[..., start:stop]}
        if isinstance(options["normalizer"], Softmax) and parts:
            options["normalizer"] = Softmax()
        bias = options["bias"]
        if isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] > 1:
            options["bias"] = bias[..., start:stop]
        tensors = (given["query"], given["key"][..., start:stop, :], given["value"][..., start:stop, :])
        parts.append((attention_with_state(*tensors, **options, backend=call.backend), start))  # type: ignore[arg-type]
    r.shuffle(parts)
    while len(parts) > 1:
        some = [parts.pop() for _ in range(r.randint(2, len(parts)))]
        parts.insert(0, (merge([part for part, _ in some], [start for _, start in some]), 0))
    output, found = parts[0][0]
    answers = {"output": output.detach(), "state": found.value.detach()}
    trial.judge_numbers({**answers, **trial.gradients(output, leaves)})


def mapped(trial: Trial) -> None:
    """Tiles, rows, top weights, weight received per key and the downsampled map agree with the dense weights."""
    call = trial.call
    leaves = trial.leaves()
    given = call.arranged(leaves)
    options = call.options(given)
    own = None
    if Random(call.seed).random() < 0.5 and call.normalizer.name != "hard":
        own = trial.call_with(attention_with_state, given)[1]
    amap = attention_map(given["query"], given["key"], **options, state=own)  # type: ignore[arg-type]
    dense = amap.dense().detach()
    trial.judge_numbers({"weights": dense}, mixed=True)
    if not trial.bare:
        _parts_of_a_map(trial, amap, dense.double())


def _parts_of_a_map(trial: Trial, amap: AttentionMap, dense: Tensor) -> None:
    """Compare within a few roundoffs: all parts share one row state but sum their scores in different orders.

    A score is a sum of D products: two orders differ by about √D roundoffs of the summands. A normalizer turns absolute
    errors of the scores into relative errors of the weights; a sum divides them by the row's total. Roundoffs are those
    of float32 or wider, since maps are computed in at least float32.
    """
    r = Random(trial.call.seed)
    _, queries, keys = trial.whole[0], *trial.whole[-2:]
    wide = torch.promote_types(trial.call.dtype, torch.float32)
    s = trial._scores(torch.float64)
    size = max(dense.nan_to_num().abs().max().item(), 1.0)
    limit = 16 * unit(wide) * size * (1 + s.abs().max().item()) * max(trial.call.sizes.width, 1) ** 0.5
    if trial.rule == "sum":
        total = trial.equation(torch.float64)["state"]
        limit /= min(1.0, torch.where(total > 0, total, 1).min().item())
    rows, columns = (slice(*sorted((r.randrange(n + 1), r.randrange(n + 1)))) for n in (queries, keys))
    row, column, count = r.randrange(queries), r.randrange(keys), r.randint(1, keys)
    height, width = r.randint(1, queries), r.randint(1, keys)
    top, places = amap.topk(count)
    largest = dense.sort(-1, descending=True).values[..., :count]
    cells = [[dense[..., a, b] for b in _blocks(keys, width)] for a in _blocks(queries, height)]
    means = torch.stack([torch.stack([x.mean((-2, -1)) for x in line], -1) for line in cells], -2)
    found = {
        "tile": (amap[..., rows, columns], dense[..., rows, columns]),
        "row": (amap.row(row), dense[..., row, :]),
        "column": (amap.column(column), dense[..., :, column]),
        "topk": (top, largest),
        "topk's keys": (torch.where(top > 0, dense.gather(-1, places), top.double()), largest),
        "peak": (amap.peak(), dense.amax(-1)),
        "received": (amap.received() / queries, dense.sum(-2) / queries),
        "pooled": (amap.pooled(height, width), means),
    }
    if trial.call.normalizer.name.startswith(("softmax", "sum", "sparsemax", "entmax", "sigmoid")):
        # The slope of −w·log w is −1 − log w: at most 40 where a weight is above the rounding error.
        found["entropy"] = (amap.entropy() / 40, torch.special.entr(dense).sum(-1) / 40)
    settled = trial.settled
    if not settled.all():
        found = {name: found[name] for name in ("row",) if settled[..., row].all()}
    for name, (ours, theirs) in found.items():
        if ours.shape != theirs.shape:
            raise Wrong(f"{name} has the shape {tuple(ours.shape)}, not {tuple(theirs.shape)}")
        error = (ours.detach().double() - theirs).abs().max().item() if ours.numel() else 0.0
        if not error <= limit:
            raise Wrong(f"{name} of the map is off by {error:.3g}, more than {limit:.3g}")


def _blocks(count: int, parts: int) -> list[slice]:
    starts = [-(-place * count // parts) for place in range(parts + 1)]
    return [slice(a, b) for a, b in pairwise(starts)]


def again(trial: Trial) -> None:
    """Repeats give the same bits, also after a call with other threads; a mask changed in place takes effect."""
    seen: dict[int, list[Tensor]] = {}
    for threads in (1, 1, 2, 1, 2):
        again = Trial(replace(trial.call, threads=threads))
        leaves = again.leaves()
        output = again.ask(attention, leaves)
        bits = [output.detach(), *again.gradients(output, leaves).values()]
        for one, other in zip(bits, seen.setdefault(threads, bits), strict=True):
            _same(one, other, f"repeat with {threads} threads")
    fresh = Trial(draw(trial.call.backend, trial.call.seed, trial.call.aspect))
    for x in (*trial.call.seen.tensors, *fresh.call.seen.tensors):
        _spoil(x)
    outputs = [each.ask(attention, each.leaves()) for each in (trial, fresh)]
    _same(*outputs, "repeat with a mask changed in place")


def offset(trial: Trial) -> None:
    """A storage offset changes no bit (whole cache lines only: PyTorch's matrix products depend on alignment)."""
    leaves = trial.leaves()
    given = trial.call.arranged(leaves)
    moved = {name: lay(x, "offset 64") for name, x in given.items()}
    moved |= {name: moved["query"] for name in ("key", "value") if given[name] is given["query"]}
    _same(trial.call_with(attention, moved), trial.call_with(attention, given), "output of inputs with an offset")


def in_place(trial: Trial) -> None:
    """An in-place change between forward and backward makes the backward pass raise, or changes nothing."""
    call, r = trial.call, Random(trial.call.seed)
    leaves = trial.leaves()
    before = trial.gradients(trial.ask(attention, leaves), leaves)
    given = call.arranged(leaves)
    victims: dict[str, Tensor] = {name: x for name, x in given.items() if x.numel()}
    victims |= {f"mask {place}": x for place, x in enumerate(call.seen.tensors) if x.numel()}
    if not victims:
        return  # every tensor is empty
    output = trial.call_with(attention, given)
    name = r.choice(sorted(victims))
    kept = victims[name].detach().clone()
    try:
        with torch.no_grad():
            _spoil(victims[name])
        try:
            after = trial.gradients(output, leaves)
        except RuntimeError as error:
            if "in-place" not in str(error) and "inplace" not in str(error):
                raise
            return
        for leaf, x in after.items():
            if not same_bits(x, before[leaf]):
                raise Wrong(f"{leaf} changes silently with {name}")
    finally:
        with torch.no_grad():
            victims[name].copy_(kept)


def _spoil(x: Tensor) -> None:
    if x.dtype == torch.bool:
        x.logical_not_()
    elif x.is_floating_point():
        x.add_(1)
    else:
        x.copy_(torch.where(x > 0, x - 1, x))  # lengths stay within the keys


def bad(trial: Trial) -> None:
    """NaN, infinity or a huge number in one place shows only in the rows that can see it."""
    r = Random(trial.call.seed)
    if trial.bare:
        return
    if r.random() < 0.3:
        _hidden(trial)
        return
    held = trial.call.leaves
    names = [name for name in ("query", "key", "value", "bias") if name in held and held[name].numel()]
    if not names:
        return
    name = r.choice(names)
    x = held[name].clone()
    kind = r.choice(("nan", "nan", "inf", "-inf", "huge"))
    huge = {torch.float16: 6e4}.get(trial.call.dtype, 1e30)
    poison = huge if kind == "huge" else float(kind)
    place = [r.randrange(size) for size in x.shape]
    whole = name in ("query", "key", "value") and r.random() < 0.5
    at = tuple(place[:-1] if whole else place)
    x[at] = poison
    mark = torch.zeros_like(x)
    mark[at] = 1
    touched = _touched(trial, name, mark)
    output = trial.ask(attention, trial.leaves({name: x})).detach()
    told = output
    if name == "value" and kind != "huge":
        # 0·NaN: a value masked in this row only can show as NaN here, never as a wrong number.
        told = torch.where(output.isfinite(), output.double(), trial.equation(torch.float64)["output"])
    _settled_rows(trial, told, ~touched, f"{kind} in {name}{place}")
    if kind == "nan":
        _nan_shows(trial, name, x, output, touched)
    elif name == "bias" and kind == "-inf" and trial.call.normalizer.name.startswith(("softmax", "sigmoid")):
        hiding = Trial(replace(trial.call, leaves={**trial.call.leaves, name: x}))
        hiding.judge_numbers({"output": output})


def _settled_rows(trial: Trial, output: Tensor, rows: Tensor, what: str) -> None:
    try:
        trial.judge_numbers({"output": output}, rows)
    except Wrong as wrong:
        raise Wrong(f"{what} reaches rows that may not see it: {wrong}") from None


def _nan_shows(trial: Trial, name: str, x: Tensor, output: Tensor, touched: Tensor) -> None:
    """NaN appears where the equation has it, except that a weight of 0 may drop a NaN value."""
    dtype = torch.promote_types(trial.call.dtype, torch.float32)
    leaves = {leaf: y.to(dtype) for leaf, y in (trial.call.leaves | {name: x}).items()}
    expected, w, _ = trial._steps(leaves)
    if name == "value" and bool(((w == 0) & trial.visible).any()):
        return
    rows = touched & trial.settled
    if not torch.equal(output[rows].isnan(), expected[rows].isnan()):
        raise Wrong(
            f"NaN in {name} shows in {int(output[rows].isnan().sum())} numbers, not in "
            f"{int(expected[rows].isnan().sum())}"
        )


def _touched(trial: Trial, name: str, mark: Tensor) -> Tensor:
    """Rows (..., Q) that a marked entry of a leaf can reach: through their query, or a visible pair or value."""
    leaves = {leaf: torch.zeros_like(x) for leaf, x in trial.call.leaves.items()} | {name: mark}
    given = trial.repeated(trial.call.arranged(leaves, laid=False))
    pairs = (given["query"] != 0).any(-1)[..., :, None] | (given["key"] != 0).any(-1)[..., None, :]
    pairs = pairs | (given["value"] != 0).any(-1)[..., None, :]
    if name == "bias":
        pairs = pairs | (given["bias"] != 0)
    return (pairs & trial.visible).any(-1)


def _hidden(trial: Trial) -> None:
    """Keys that no row sees, queries that see nothing, masked pairs of a bias: their contents change no bit."""
    alone = [name for name in ("query", "key", "value") if name in trial.call.leaves]
    seen = trial.visible
    unseen = {"query": ~seen.any(-1), "key": ~seen.any(-2), "value": ~seen.any(-2)}
    dirty = {}
    for name in alone:
        x = trial.call.leaves[name]
        hidden = _all_of(unseen[name], (*x.shape[:-1],), trial)
        dirty[name] = torch.where(hidden[..., None], torch.nan, x)
    if "bias" in trial.call.leaves and tuple(trial.call.leaves["bias"].shape) == trial.whole:
        dirty["bias"] = torch.where(seen, trial.call.leaves["bias"], torch.nan)
    ours, theirs = trial.leaves(dirty), trial.leaves()
    one, other = trial.ask(attention, ours), trial.ask(attention, theirs)
    _same(one, other, "output beside NaN that no one may see")
    slopes = trial.gradients(other, theirs)
    for name, x in trial.gradients(one, ours).items():
        _same(x, slopes[name], f"{name} beside NaN that no one may see")


def _all_of(hidden: Tensor, shape: tuple[int, ...], trial: Trial) -> Tensor:
    """True where an entry is masked in every place that it is broadcast or repeated to."""
    groups = trial.call.sizes.groups
    if groups is not None and len(shape) > 1 and shape[-2] == groups:
        hidden = hidden.unflatten(-2, (groups, -1)).all(-2)
    while hidden.ndim > len(shape):
        hidden = hidden.all(0)
    for place, size in enumerate(shape):
        if size == 1 and hidden.shape[place] > 1:
            hidden = hidden.all(place, keepdim=True)
    return hidden


def _same(one: Tensor, other: Tensor, what: str) -> None:
    if not same_bits(one.detach(), other.detach()):
        error = (one.detach().double() - other.detach().double()).abs().max().item() if one.shape == other.shape else 0
        raise Wrong(f"{what}: other bits, by up to {error:.3g}")


PROMISES: dict[str, Callable[[Trial], None]] = {
    "exact": exact,
    "weights": weights,
    "state": state,
    "merge": merged,
    "map": mapped,
    "again": again,
    "offset": offset,
    "in place": in_place,
    "bad": bad,
}


def judge(call: AnyCall) -> Verdict | None:
    """Check the call's promise; None if its backend does not support it or the promise does not apply."""
    if not _asks(call):
        return None
    trial, wrong = Trial(call), ""
    try:
        with _threads(1), MODES[call.mode]():
            PROMISES[call.aspect](trial)
    except Wrong as found:
        wrong = str(found)
    except UnsupportedError as error:
        if call.backend not in EVERYTHING:
            return None
        wrong = f"refused: {error}"
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:300]}"
    return Verdict(trial.worst, wrong)


def _asks(call: AnyCall) -> bool:
    """True if the promise applies to the call."""
    if call.aspect == "merge":
        mergeable = call.normalizer.name.removesuffix("_sink") in MERGEABLE
        return mergeable and min(call.sizes.queries, call.sizes.keys) > 0 and call.bias in ("none", "fixed", "learned")
    return call.aspect != "in place" or (call.mode == "grad" and bool(call.wanted))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Run with `count` threads; the judge itself runs on one."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
