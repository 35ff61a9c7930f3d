"""Every score × normalizer × mask × backend × dtype: the criterion "exact", forward and backward."""

from collections.abc import Iterable
from contextlib import nullcontext
from decimal import Decimal, localcontext
from functools import partial
from itertools import combinations
from operator import attrgetter

import numpy as np
import pytest
import torch
from tests.contract import oracle
from tests.contract.criterion import Draw, failed, rms, shares, unit
from tests.contract.judge import Case, Trial, cross_product, one_type, paired, sample
from tests.contract.mechanisms import BATCH, DTYPES, KEYS, MASK, NORMALIZER, ON_CPU, QUERIES, SCORE, SCORES
from tests.contract.orders import Order
from tests.seed import generator

from qkv.functional import attention_with_weights
from qkv.normalizers import Entmax
from qkv.planner.registry import BACKENDS

NAMES = {case.name: case for case in SCORES}
by_score = pytest.mark.parametrize("score", NAMES)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def failures(cases: Iterable[Case]) -> list[str]:
    """Each case that a backend supports and gets wrong."""
    found = []
    for case in cases:
        trial = Trial(case)
        assert trial.settled.any(), f"{case}: the inputs leave nothing to judge"
        for backend in BACKENDS:
            if trial.refusal(backend) is None:
                wrong = failed(trial.shares(backend))
                found += [f"{backend}: {case}: {name} {share:.2f} of the limit" for name, share in wrong.items()]
    return found


@by_score
def test_backends_are_exact(score: str) -> None:
    assert not failures(paired(NAMES[score]))


def test_any_two_of_score_normalizer_mask_and_type_meet() -> None:
    """The subset above; the whole cross product is slow."""
    every = [case for score in SCORES for dtype in DTYPES for case in cross_product(score, dtype)]
    part = [case for score in SCORES for case in paired(score)]
    for one, other in combinations(("score", "normalizer", "mask", "dtype"), 2):
        two = attrgetter(one, other)
        names = [
            {(getattr(a, "name", a), getattr(b, "name", b)) for a, b in map(two, cases)} for cases in (every, part)
        ]
        assert names[0] == names[1], (one, other)


@pytest.mark.slow
@by_dtype
@by_score
def test_backends_are_exact_everywhere(score: str, dtype: torch.dtype) -> None:
    assert not failures(cross_product(NAMES[score], dtype))


@pytest.mark.parametrize("backend", ON_CPU)
@by_dtype
def test_every_backend_serves_some_cases(backend: str, dtype: torch.dtype) -> None:
    """A backend that refuses everything would pass every other test."""
    cases = (case for score in SCORES for case in paired(score) if case.dtype == dtype)
    assert any(Trial(case).refusal(backend) is None for case in cases), f"{backend} refuses every case in {dtype}"


def oracle_error(case: Case) -> float:
    """The reference's largest error in float64, output and weights, in units of float64's roundoff."""
    trial = Trial(case)
    leaves = trial.inputs.leaves
    seen = trial._visible.numpy()
    if case.mask.name in oracle.MASKS:
        assert (oracle.table(case.mask.name, BATCH, QUERIES, KEYS) == seen).all(), f"{case.mask.name} is lowered wrong"
    wide = {name: x.numpy().astype(np.longdouble) for name, x in leaves.items()}
    expected = oracle.attention(wide, case.score.name, case.normalizer.name, seen)
    got = attention_with_weights(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        score=case.score.build(trial._own(leaves)),
        normalizer=case.normalizer.build(leaves),
        mask=trial.inputs.mask,
        backend="reference",
    )
    rows = trial.settled.numpy()
    quotients = []
    for ours, theirs in zip(got, expected, strict=True):
        scale = max(float(np.abs(theirs).max()), 1.0)
        quotients.append(float(np.abs(ours.numpy().astype(np.longdouble) - theirs)[rows].max()) / scale / 2.0**-53)
    return max(quotients)


LIMIT = 256.0
"""In roundoffs: 40 keys, widths up to 32, and scores up to about 20, whose exp multiplies relative errors by 20."""


@by_score
def test_the_reference_is_the_equation(score: str) -> None:
    """Every second case of each score, starting one later for the next."""
    cases = list(sample(NAMES[score], torch.float64))[list(NAMES).index(score) % 2 :: 2]
    errors = {str(case): oracle_error(case) for case in cases}
    assert {name: error for name, error in errors.items() if error > LIMIT} == {}


@pytest.mark.slow
@by_score
def test_the_reference_is_the_equation_everywhere(score: str) -> None:
    errors = {str(case): oracle_error(case) for case in cross_product(NAMES[score], torch.float64)}
    assert {name: error for name, error in errors.items() if error > LIMIT} == {}


SMALL = [
    ("scaled_dot_per_head", "softmax", "scale"),
    ("cosine_per_head", "softmax", "scale"),
    ("bilinear_per_head", "softmax", "scale"),
    ("additive", "softmax", "vector"),
    ("additive_projected", "sigmoid", "vector"),
    ("concat", "softmax", "key_vector"),
    ("squared_distance_per_head", "softmax", "bandwidth"),
    ("gaussian_per_head", "sum", "bandwidth"),
    ("epanechnikov_per_head", "sum", "bandwidth"),
    ("learned", "mean", "weight"),
    ("scaled_dot", "softmax_sink", "sink"),
    ("additive", "entmax_learned", "alpha"),
    ("triangle", "entmax_learned", "alpha"),
    ("additive", "sigmoid_bias", "sigmoid_bias"),
]


COTANGENTS, LEAST = 16, 128


def _one_type_each() -> list[object]:
    """Every small parameter in one type, alternating; in all types in the whole suite."""
    return [
        pytest.param(*names, dtype, marks=[] if place % len(DTYPES) == turn else pytest.mark.slow)
        for place, names in enumerate(SMALL)
        for turn, dtype in enumerate(DTYPES)
    ]


@pytest.mark.parametrize(("score", "normalizer", "parameter", "dtype"), _one_type_each())
def test_gradients_of_small_parameters_are_exact(
    score: str, normalizer: str, parameter: str, dtype: torch.dtype
) -> None:
    """A parameter sums over all rows: many inputs, with several cotangents each, make its numbers a sample."""
    first = Trial(Case(SCORE[score], NORMALIZER[normalizer], MASK["lengths"], dtype))

    def draw(turn: int, backend: str) -> Draw:
        trial = first.at(turn)
        truth = gradients(trial, *trial.run("reference", torch.float64))
        return Draw(
            {parameter: gradients(trial, *trial.run(backend, dtype))},
            {parameter: truth},
            lambda order: {parameter: literal(trial, order)},
            {parameter: truth.abs().max().item()},
        )

    def literal(trial: Trial, order: Order) -> torch.Tensor:
        with order.summing(), one_type() if dtype == torch.float64 else nullcontext():
            return gradients(trial, *trial.equation(trial.low, order))

    def gradients(trial: Trial, output: torch.Tensor, leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        g = generator("cotangents", *trial.case.names, trial.turn)
        cotangents = [trial.cotangent(output.dtype, g) for _ in range(COTANGENTS)]
        found = [torch.autograd.grad(output, leaves[parameter], c, retain_graph=True)[0] for c in cotangents]
        return torch.stack(found).double().flatten(1)[..., None]

    for backend in (backend for backend in BACKENDS if first.refusal(backend) is None):
        found = shares(partial(draw, backend=backend), dtype, least=LEAST)
        assert found[parameter] <= 1, f"{backend}: {found[parameter]:.2f} of the limit"


def test_steep_entmax_rounds_in_float64_as_in_one_type() -> None:
    """The reason for `one_type`, by 40 digits: gradients of a steep α."""
    g = torch.Generator().manual_seed(3)
    heads, keys, alpha = 48, 40, float(torch.tensor(1.2306964))
    s, c = (torch.randn(heads, 1, keys, generator=g) for _ in range(2))
    s, c = s.mul(0.05).double(), c.double()
    pairs = zip(s[:, 0].tolist(), c[:, 0].tolist(), strict=True)
    exact = torch.tensor([alpha_gradient(*pair, alpha) for pair in pairs], dtype=torch.float64)

    def error(dtype: torch.dtype) -> float:
        """In roundoffs."""
        learned = torch.full((heads,), alpha, dtype=dtype, requires_grad=True)
        weights = Entmax(learned)(s.to(dtype), torch.ones(s.shape, dtype=torch.bool))
        return rms(torch.autograd.grad(weights, learned, c.to(dtype))[0].double() - exact) / unit(dtype)

    in_float64, hidden = error(torch.float64), error(torch.float32)
    with one_type():
        by_one_type = error(torch.float32)
    assert in_float64 < 3 * by_one_type, "float64 is less exact than one type allows"
    assert hidden < by_one_type / 5, "float32 no longer rounds in a wider type: judge it as it is, without `one_type`"


def alpha_gradient(scores: list[float], cotangent: list[float], alpha: float) -> float:
    """Σ c ∂w/∂α for w = max(0, (α−1)s − τ)^p with p = 1/(α−1) ≥ 1 and Σw = 1, by 40 digits."""
    with localcontext() as context:
        context.prec = 40
        s, c = ([Decimal(x) for x in numbers] for numbers in (scores, cotangent))
        p = 1 / (Decimal(alpha) - 1)
        tau = max(s) / p - 1  # there the sum is at least 1, and no Newton step of a convex function overshoots
        for _ in range(60):
            inside = [x / p - tau for x in s if x / p > tau]
            powers = [t ** (p - 1) for t in inside]
            step = (sum(t * power for t, power in zip(inside, powers, strict=True)) - 1) / (p * sum(powers))
            tau += step
            if abs(step) < Decimal("1e-36"):
                break
        rows = [(x, y / p - tau, y) for x, y in zip(c, s, strict=True) if y / p > tau]
        powers = [t ** (p - 1) for _, t, _ in rows]
        steps = [p * power for power in powers]
        own = [p * power * (y - p * t * t.ln()) for power, (_, t, y) in zip(powers, rows, strict=True)]
        tau_step = sum(own) / sum(steps)
        return float(sum(x * (one - step * tau_step) for (x, _, _), one, step in zip(rows, own, steps, strict=True)))
