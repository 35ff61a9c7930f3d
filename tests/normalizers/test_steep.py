"""Entmax with α near 1 and far above 2, against the equation in 60 or more digits."""

from functools import cache

import pytest
import torch
from mpmath import mp, mpf
from tests.contract.calls import by_part
from tests.pairs import in_turn
from torch import Tensor

from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.introspect.lazy_map import attention_map
from qkv.normalizers.sparse import Entmax
from qkv.planner.registry import BACKENDS
from qkv.scores.products import ScaledDot

ALPHAS = (1 + 1e-6, 1.00001, 1.001, 1.1, 2.5, 4.0, 10.0, 30.0)
by_alpha = pytest.mark.parametrize("alpha", ALPHAS)
BY_ROW = ("reference", "blocked", "auto")


@cache
def literal(row: tuple[float, ...], alpha: float, digits: int) -> tuple[list[mpf], list[mpf]]:
    """A row of weights by bisecting T = −τ of scores below their maximum, and their slopes w^(2−α)."""
    assert mp.dps == digits
    power, scores = mpf(alpha) - 1, [mpf(x) for x in row]

    def of(level: mpf) -> list[mpf]:
        return [max(mpf(0), level + power * x) ** (1 / power) for x in scores]

    low, high = mpf(len(scores)) ** -power / 2, mpf(1)
    # Bisect until the interval is the smallest weight to the power α − 1, to twenty digits of that weight.
    for _ in range(int(120 + 20 * alpha)):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(of(middle)) >= 1 else (middle, high)
    weights = of(high)
    return weights, [w ** (2 - mpf(alpha)) if w > 0 else mpf(0) for w in weights]


def rows(dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows where some α gives every key weight, and some α gives one key all of it."""
    z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (z * torch.tensor([[0.001], [0.01], [0.3], [3.0]], dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize(("alpha", "as_tensor"), in_turn(ALPHAS, [False, True]))
def test_weights_and_slopes_are_those_of_the_equation(alpha: float, as_tensor: bool) -> None:
    """The error of log p is one roundoff, that of each power at most four, and their sum has six terms."""
    z, cotangent = rows().requires_grad_(), torch.linspace(-1, 2, 6, dtype=torch.float64)
    w = Entmax(torch.tensor(alpha, dtype=torch.float64) if as_tensor else alpha)(z)
    slope = torch.autograd.grad(w @ cotangent, z, torch.ones(4, dtype=torch.float64))[0]
    unit = torch.finfo(torch.float64).eps
    for row, found, own in zip(z.detach(), w.detach(), slope, strict=True):
        with mp.workdps(int(60 + 7 * alpha)):
            weights, q = literal(tuple((row - row.max()).tolist()), alpha, mp.dps)
            level = sum(a * mpf(b) for a, b in zip(q, cotangent.tolist(), strict=True)) / sum(q)
            expected = [float(a * (mpf(b) - level)) for a, b in zip(q, cotangent.tolist(), strict=True)]
        assert (found - torch.tensor([float(x) for x in weights], dtype=torch.float64)).abs().max() <= 32 * unit
        truth = torch.tensor(expected, dtype=torch.float64)
        # A relative error u of a weight is an error |2 − α|·u of its slope.
        assert (own - truth).abs().max() <= 64 * max(1.0, alpha) * unit * truth.abs().max()


@pytest.mark.parametrize("alpha", in_turn(ALPHAS))
def test_derivatives_of_scores_and_alpha_to_second_order(alpha: float) -> None:
    """Against finite differences, whose step must stay inside the support."""
    z = rows()[:2].mul(0.1 / max(1.0, alpha)).requires_grad_()
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    step = 1e-7 if alpha < 1.1 else 1e-6 / alpha**3

    def weights(x: Tensor, y: Tensor) -> Tensor:
        return Entmax(y)(x)

    assert torch.autograd.gradcheck(weights, (z, a), eps=step, atol=1e-3, rtol=1e-3)
    if 1.0 + 1e-4 < alpha < 3:
        assert torch.autograd.gradgradcheck(weights, (z, a), eps=1e-6, atol=1e-3, rtol=1e-3)


@by_part
@pytest.mark.parametrize(
    ("alpha", "dtype"),
    in_turn([*ALPHAS, 1000.0], [torch.float64, torch.float32, torch.bfloat16, torch.float16], every=4),
)
def test_weights_sum_to_one_and_agree_with_output_and_map(alpha: float, dtype: torch.dtype, whole: bool) -> None:
    """A weight is rounded once: a row's sum is off by at most half a unit per key.

    In the fast suite alpha is a number in two types, a tensor in the others.
    """
    g = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, n, 4, generator=g).mul(0.5).to(dtype) for n in (9, 12, 12))
    unit = torch.finfo(dtype).eps
    wide = torch.promote_types(dtype, torch.float32)
    for made in (alpha, torch.tensor([alpha, alpha])):
        if not whole and isinstance(made, float) != (dtype in (torch.float64, torch.bfloat16)):
            continue
        options = {"score": ScaledDot(), "normalizer": Entmax(made)}
        for backend in BY_ROW:
            output, weights = attention_with_weights(query, key, value, **options, backend=backend)
            assert ((weights.double().sum(-1) - 1).abs() <= 12 * unit).all(), backend
            # Summing scores in two orders makes them differ by a roundoff; near the edge of the support weights differ
            # by its root,
            # but with these numbers no key is there.
            limit = 16 * unit * value.abs().max()
            assert ((weights.double() @ value.double() - output.double()).abs() <= limit).all(), backend
            state = attention_with_state(query, key, value, **options, backend=backend)[1]
            found = attention_map(query, key, **options, state=state)
            dense = found.dense()
            assert dense.dtype == wide
            assert ((dense.double() - weights.double()).abs() <= 4 * unit).all(), backend
            assert torch.allclose(found.entropy(), torch.special.entr(dense.double()).sum(-1), rtol=1e-5, atol=1e-5)
            assert torch.allclose(found.received(), dense.double().sum(-2), atol=1e-5)
            assert torch.equal(found.topk(3)[0], dense.topk(3).values)


@pytest.mark.parametrize(("alpha", "dtype"), in_turn(ALPHAS, [torch.float64, torch.float32]), ids=str)
def test_backends_have_the_gradients_of_the_reference(alpha: float, dtype: torch.dtype) -> None:
    """A slope is large where a weight is small: limits are relative to the largest gradient."""
    g = torch.Generator().manual_seed(2)
    draws = [torch.randn(2, n, 4, generator=g, dtype=torch.float64).mul(0.2) for n in (5, 7, 7)]

    def gradients(backend: str, kind: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).to(kind).requires_grad_() for x in draws]
        a = torch.tensor([alpha, alpha], dtype=dtype).to(kind).requires_grad_()
        output, state = attention_with_state(*leaves, normalizer=Entmax(a), backend=backend)
        total = (output * torch.linspace(-1, 1, output.numel(), dtype=kind).view_as(output)).sum()
        return list(torch.autograd.grad(total + state.value.sum(), [*leaves, a]))

    truth = gradients("reference", torch.float64)
    for backend in BY_ROW:
        found = gradients(backend, dtype)
        for one, other in zip(found, truth, strict=True):
            assert one.isfinite().all(), backend
            # The two scores differ by a few roundoffs, multiplied by (α−1)·w^(1−α), which is large where w is small.
            limit = 200 * max(1.0, alpha) ** 3 * torch.finfo(dtype).eps
            assert (one.double() - other).abs().max() <= max(limit, 1e-13) * truth[-1].abs().max().max(
                other.abs().max()
            ), backend


def test_a_row_that_sees_nothing_has_no_weights_and_no_slope() -> None:
    query, key, value = (torch.randn(2, 4, 3, requires_grad=True) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).index_fill(0, torch.tensor([1]), False)
    for backend in BY_ROW:
        for alpha in (1.00001, 10.0, 1000.0):
            a = torch.tensor(alpha, requires_grad=True)
            output = attention(query, key, value, normalizer=Entmax(a), mask=mask, backend=backend)
            assert (output[:, 1] == 0).all()
            gradients = torch.autograd.grad(output.sum(), [query, key, value, a])
            assert all(x.isfinite().all() for x in gradients), (backend, alpha)
            assert (gradients[0][:, 1] == 0).all()


def test_what_is_not_a_number_stays_visible() -> None:
    z = torch.tensor([[0.0, torch.nan, 1.0], [0.0, 1.0, 2.0]])
    for alpha in (1.0001, 5.0, 300.0):
        weights = Entmax(alpha)(z)
        assert weights[0].isnan().any()
        assert weights[1].isfinite().all()


def test_alpha_of_one_is_refused_and_its_neighbor_is_softmax() -> None:
    with pytest.raises(Exception, match="a number above 1"):
        Entmax(1.0)
    z = rows()
    assert torch.allclose(Entmax(1 + 1e-12)(z), torch.softmax(z, -1), rtol=0, atol=1e-11)


def test_others_than_rows_refuse_entmax() -> None:
    """One threshold for each row, as compiled rows have it, does not tell weights of such an alpha."""
    query = torch.randn(2, 4, 3)
    for backend in set(BACKENDS) - set(BY_ROW):
        with pytest.raises(UnsupportedError):
            attention(query, query, query, normalizer=Entmax(10.0), backend=backend)
