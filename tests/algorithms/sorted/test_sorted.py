"""Backend `sorted` against `reference`, with compiled walks and with prefix sums."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.here import here
from torch import Tensor

import qkv
from qkv.algorithms.sorted import two_pointer, two_pointer_parallel
from qkv.errors import UnsupportedError
from qkv.masks import lengths
from qkv.normalizers import Identity, Mean, Normalizer, Softmax, Sum
from qkv.scores import Boxcar, Concat, Epanechnikov, Score

QUERIES, KEYS, VALUES = 33, 47, 5
SIDES = {"relu": "relu", "leaky relu": "leaky_relu"}
SUPPORTS: dict[str, Any] = {
    "a box": Boxcar,
    "a parabola": Epanechnikov,
    "a triangle": lambda bandwidth: Epanechnikov(bandwidth, power=1),
}
CASES = [(name, normalizer) for name in SIDES for normalizer in (Mean(), Identity(), Softmax())]
CASES += [(name, normalizer) for name in SUPPORTS for normalizer in (Sum(), Mean(), Identity())]
by_case = pytest.mark.parametrize(("name", "normalizer"), CASES, ids=str)
LEADING = {"one item": (), "heads": (2, 3), "many items": (9,)}
MASKS: dict[str, Any] = {
    "all": lambda lead: None,
    "lengths": lambda lead: lengths(torch.arange(KEYS, KEYS - lead[0], -1) if lead else 20),
    "nothing for one": lambda lead: lengths((torch.arange(lead[0]) * 7).clamp(max=KEYS) if lead else 0),
}


@pytest.fixture(params=here("sorted.two_pointer", "sorted.prefix_sums"))
def way(request: pytest.FixtureRequest) -> str:
    """Either algorithm."""
    return str(request.param)


def judged(way: str, name: str) -> tuple[torch.dtype, float]:
    """A dtype in which an algorithm computes these scores, and its tolerance."""
    single = way == "sorted.prefix_sums" and name in SUPPORTS
    return (torch.float32, 2e-4) if single else (torch.float64, 1e-9)


def width_of(name: str) -> int:
    return 3 if name in SIDES else 1


def score_of(name: str, learned: list[Tensor]) -> Score:
    return Concat(*learned, SIDES[name]) if name in SIDES else SUPPORTS[name](learned[0])  # type: ignore[arg-type]


def learnable(name: str, dtype: torch.dtype) -> list[Tensor]:
    if name in SIDES:
        return [torch.randn(3, dtype=dtype) for _ in range(2)]
    return [torch.tensor(0.5, dtype=dtype)]


def inputs(name: str, lead: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    width = width_of(name)
    shapes = ((*lead, QUERIES, width), (*lead, KEYS, width), (*lead, KEYS, VALUES))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def compare(way: str, name: str, leaves: list[Tensor], limit: float, **given: Any) -> None:
    """Compare with the full matrix in float64; errors are measured by the largest number."""
    wide = [x.double() for x in leaves]
    for got, expected in zip(
        answers(way, name, leaves, **given), answers("reference", name, wide, **given), strict=True
    ):
        largest = max(1.0, float(expected.detach().nan_to_num(0, 0, 0).abs().max()))
        torch.testing.assert_close(got.double(), expected.double(), rtol=limit, atol=limit * largest)


def answers(backend: str, name: str, leaves: list[Tensor], **given: Any) -> list[Tensor]:
    """Output, state, and the gradients of both."""
    query, key, value, *learned = (x.clone().requires_grad_() for x in leaves)
    score = score_of(name, learned)
    output, state = qkv.attention_with_state(query, key, value, score=score, backend=backend, **given)
    loss = output.square().sum()
    if isinstance(given["normalizer"], (Softmax, Sum)):
        loss = loss + torch.where(state.value.isfinite(), state.value, 0).sin().sum().to(loss.dtype)
    wanted = (query, key, value, *learned)
    return [output, state.value, *torch.autograd.grad(loss, wanted, materialize_grads=True)]


@by_case
@pytest.mark.parametrize(
    ("lead", "mask"),
    [("one item", "all"), ("one item", "nothing for one"), ("heads", "lengths"), ("many items", "nothing for one")],
)
def test_it_computes_what_the_full_matrix_does(
    way: str, name: str, normalizer: Normalizer, lead: str, mask: str
) -> None:
    dtype, limit = judged(way, name)
    leaves = [*inputs(name, LEADING[lead], dtype), *learnable(name, dtype)]
    given = {"normalizer": normalizer, "mask": MASKS[mask](LEADING[lead])}
    compare(way, name, leaves, limit, **given)


@by_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_smaller_types(way: str, name: str, normalizer: Normalizer, dtype: torch.dtype) -> None:
    leaves = [*inputs(name, (2,), dtype), *learnable(name, dtype)]
    wide = [x.double() for x in leaves]
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    for got, expected in zip(
        answers(way, name, leaves, normalizer=normalizer)[:2],
        answers("reference", name, wide, normalizer=normalizer)[:2],
        strict=True,
    ):
        torch.testing.assert_close(
            got.double(), expected, rtol=0, atol=limit * max(1.0, float(expected.detach().abs().max()))
        )


@by_case
def test_ties_and_edges(way: str, name: str, normalizer: Normalizer) -> None:
    """Numbers on a coarse grid: many are equal, and many are exactly on the bend or the edge of a support."""
    dtype, limit = judged(way, name)
    query, key, value = inputs(name, (2,), dtype)
    leaves = [query.mul(2).round(), key.mul(2).round(), value]
    learnt = [torch.ones(3, dtype=dtype)] * 2 if name in SIDES else [torch.tensor(2.0, dtype=dtype)]
    compare(way, name, [*leaves, *learnt], limit, normalizer=normalizer)


@by_case
def test_far_from_the_origin(way: str, name: str, normalizer: Normalizer) -> None:
    """Two clusters at ±1,000: running sums over one must leave nothing in the other."""
    dtype, limit = judged(way, name)
    query, key, value = inputs(name, (), dtype)
    sign = (torch.arange(KEYS) % 2 * 2 - 1.0)[:, None]
    if name in SUPPORTS:
        query, key = query + 1000 * sign[:QUERIES], key + 1000 * sign
    compare(way, name, [query, key, value, *learnable(name, dtype)], limit, normalizer=normalizer)


@pytest.mark.kernels
@by_case
@pytest.mark.parametrize("lead", ["one item", "many items"])
def test_walks_have_the_same_bits_with_any_number_of_threads(name: str, normalizer: Normalizer, lead: str) -> None:
    threads = torch.get_num_threads()
    leaves = [*inputs(name, LEADING[lead]), *learnable(name, torch.float64)]
    leaves[2] = torch.randn(*LEADING[lead], KEYS, 70, dtype=torch.float64)
    try:
        each = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            each.append(answers("sorted.two_pointer", name, leaves, normalizer=normalizer))
    finally:
        torch.set_num_threads(threads)
    for others in each[1:]:
        for place, (first, other) in enumerate(zip(each[0], others, strict=True)):
            if name in SIDES and place >= 5:
                # Gradients of the vectors are PyTorch's matrix products, whose summation order depends on its threads.
                torch.testing.assert_close(first, other, rtol=1e-12, atol=1e-12)
            else:
                assert torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "normalizer"),
    [
        pytest.param(
            *case,
            marks=[pytest.mark.kernels] * (case[0] in SUPPORTS) + [pytest.mark.slow] * (turn % 2),
        )
        for turn, case in enumerate(CASES)
    ],
    ids=str,
)
def test_derivatives_of_derivatives(name: str, normalizer: Normalizer) -> None:
    leaves = [x[:7].requires_grad_() for x in inputs(name, ())]
    learned = [x.requires_grad_() for x in learnable(name, torch.float64)]

    def attend(*given: Tensor) -> Tensor:
        score = score_of(name, list(given[3:]))
        return qkv.attention(*given[:3], score=score, normalizer=normalizer, backend="sorted")

    assert torch.autograd.gradcheck(attend, (*leaves, *learned))
    assert torch.autograd.gradgradcheck(attend, (*leaves, *learned), raise_exception=name != "a box", fast_mode=True)


def test_numbers_without_an_order_go_another_way() -> None:
    query, key, value = inputs("a parabola", (2,), torch.float32)
    key[0, 3] = torch.nan
    query[1, 4] = torch.inf
    given = {"score": Epanechnikov(0.7), "backend": "sorted"}
    assert "prefix sums" in qkv.explain(query, key, value, **given).why  # type: ignore[arg-type]
    output = qkv.attention(query, key, value, **given)  # type: ignore[arg-type]
    expected = qkv.attention(query, key, value, score=Epanechnikov(0.7), backend="reference")
    assert output[0].isnan().all()
    torch.testing.assert_close(output[1], expected[1])


@pytest.mark.parametrize("normalizer", [Sum(), Mean(), Identity()], ids=str)
@pytest.mark.parametrize("name", SUPPORTS)
@pytest.mark.parametrize("far", [1e20, -1e20, 1e300, -1e300, torch.inf, -torch.inf])
def test_a_key_out_of_reach_leaves_every_row_as_it_is(way: str, name: str, normalizer: Normalizer, far: float) -> None:
    query, key, value = inputs(name, (2,))
    key[0, 3] = far
    if abs(far) < torch.inf:
        query[0, 4] = far  # the one row that reaches it
    given = {"score": SUPPORTS[name](0.7), "normalizer": normalizer}
    expected = qkv.attention(query, key, value, **given, backend="reference")
    try:
        output = qkv.attention(query, key, value, **given, backend=way)
    except UnsupportedError:  # the next algorithm of `auto` takes such numbers
        output = qkv.attention(query, key, value, **given)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.kernels
def test_explain_tells_of_the_walk() -> None:
    query, key, value = inputs("relu", (2,))
    score = Concat(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    found = qkv.explain(query, key, value, score=score, normalizer=Mean(), backend="sorted")
    assert found.algorithm == "sorted.two_pointer"
    assert "one compiled pass" in found.why


@pytest.mark.kernels
def test_values_of_no_width() -> None:
    query, key, _ = inputs("a box", (2,))
    value = torch.zeros(2, KEYS, 0, dtype=torch.float64)
    output = qkv.attention(query, key, value, score=Boxcar(0.7), backend="sorted")
    assert output.shape == (2, QUERIES, 0)


@pytest.mark.kernels
def test_what_no_one_sees_may_hold_anything() -> None:
    query, key, value = inputs("a triangle", (2,))
    score, mask = Epanechnikov(0.7, power=1), lengths(torch.tensor([30, 11]))
    clean = qkv.attention(query, key, value, score=score, mask=mask, backend="sorted")
    key[1, 11:], value[1, 11:] = torch.nan, torch.inf
    assert torch.equal(qkv.attention(query, key, value, score=score, mask=mask, backend="sorted"), clean)


@pytest.mark.kernels
def test_what_no_one_sees_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Returned buffers can contain anything."""
    monkeypatch.setattr(np, "empty", lambda shape, dtype=np.float64: np.full(shape, 7, dtype))
    query, key, value = inputs("a triangle", (2,))
    numbers = [query[..., 0], key[..., 0]]
    visible = torch.arange(KEYS) < torch.tensor([[30], [11]])
    line, keys = two_pointer._sort(numbers[0], None), two_pointer._sort(numbers[1], visible)
    rows = two_pointer_parallel.PointRows(
        torch.ones(2 * QUERIES * VALUES, dtype=torch.float64).numpy(), np.ones(2 * QUERIES)
    )
    own = two_pointer_parallel.PointRows(value.reshape(-1).numpy(), np.ones(2 * KEYS))
    support = two_pointer_parallel.Support(2, np.ones(2))
    near = two_pointer_parallel.windows(support, keys, line, rows, np.ones(2 * QUERIES), own, True)
    factors = two_pointer_parallel.TargetFactors(*np.ones((3, 1, 2 * KEYS)))
    above = two_pointer_parallel.sides(
        keys, line, rows, two_pointer_parallel.SourceFactors(*np.ones((2, 1, 2 * QUERIES))), factors, own, True
    )
    for found in (near, above):
        assert (found.values.reshape(2, KEYS, VALUES)[~visible.numpy()] == 0).all()
        assert (found.dots.reshape(2, KEYS)[~visible.numpy()] == 0).all()


def test_forward_mode_goes_through_prefix_sums() -> None:
    query, key, value = inputs("relu", ())
    score = Concat(torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(value, torch.ones_like(value))
        output = qkv.attention(query, key, dual, score=score, normalizer=Mean(), backend="sorted")
        tangent = torch.autograd.forward_ad.unpack_dual(output).tangent
    row = qkv.attention(query, key, torch.ones_like(value), score=score, normalizer=Mean(), backend="sorted")
    torch.testing.assert_close(tangent, row)
