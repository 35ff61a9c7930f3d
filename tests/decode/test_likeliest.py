"""The blockwise search for the most likely tokens agrees with a plain sort."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.decode import likeliest as room
from qkv.decode.likeliest import likeliest

# inf − inf on purpose: Numba computes it silently, NumPy warns.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture(params=["compiled", "PyTorch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either of the two searches."""
    if request.param == "PyTorch":
        monkeypatch.setattr(room, "_compiled", lambda: None)
    return str(request.param)


@settings(max_examples=30)
@given(st.integers(1, 700), st.integers(1, 6), st.integers(0, 130), st.integers(0, 99))
def test_tokens_and_gains_are_those_of_a_sort(size: int, count: int, rows: int, seed: int) -> None:
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    tokens, gains = likeliest(scores, min(count, size))
    expected = scores.log_softmax(-1).sort(-1, descending=True)
    assert torch.equal(tokens, expected.indices[:, :count])
    torch.testing.assert_close(gains, expected.values[:, :count])


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=400))
def test_of_equal_ones_the_lowest_id_is_first(scores: list[int]) -> None:
    tokens, _ = likeliest(torch.tensor([scores], dtype=torch.float32), 1)
    assert int(tokens) == scores.index(max(scores))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 77, 299])
def test_rows_that_are_no_probabilities_give_nan(way: str, broken: float, place: int) -> None:
    scores = torch.zeros(2, 300)
    scores[1, place] = broken
    for count in (1, 3):
        gains = likeliest(scores, count)[1].isnan()
        assert not gains[0].any()
        assert gains[1].any()


def test_what_cannot_be_has_no_probability(way: str) -> None:
    tokens, gains = likeliest(torch.tensor([[0.0, -math.inf, -math.inf]]), 2)
    assert (int(tokens[0, 0]), gains[0].tolist()) == (0, [0.0, -math.inf])


@pytest.mark.kernels
@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(1, 6), st.integers(1, 70), st.sets(st.integers(0, 99)), st.integers(0, 99))
def test_the_compiled_pass_finds_what_a_sort_does(size: int, count: int, rows: int, never: set[int], seed: int) -> None:
    """On a coarse grid, with many equal scores and some of −∞; of equal scores the lowest id comes first."""
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).mul(2).round()
    scores[:, 1::7] = -math.inf
    search = room._compiled()
    assert search is not None
    left = [k for k in range(size) if k not in never]
    if not left:
        return
    tokens, gains = search(scores, count, sorted(never))
    expected = scores.double().log_softmax(-1)
    order = scores[:, left].sort(dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(tokens, torch.tensor(left)[order])
    torch.testing.assert_close(gains.double(), expected.gather(1, tokens), rtol=1e-6, atol=1e-5)


@pytest.mark.kernels
def test_rows_of_nothing_but_nan_end() -> None:
    search = room._compiled()
    assert search is not None
    tokens, gains = search(torch.full((2, 130), math.nan), 3, [1])
    assert tokens.tolist() == [[0, 2, 3]] * 2
    assert gains.isnan().all()


@pytest.mark.kernels
def test_what_a_kernel_can_read_goes_to_the_compiled_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    search = room._compiled()
    assert search is not None
    monkeypatch.setattr(
        room, "_compiled", lambda: lambda scores, *rest: seen.append(len(scores)) or search(scores, *rest)
    )
    scores = torch.randn(4, 300)
    likeliest(scores, 2)
    likeliest(scores.double(), 2)
    likeliest(scores.detach().requires_grad_(), 2)
    torch.func.vmap(lambda rows: likeliest(rows, 2))(scores[:, None])
    assert seen == [4]


def test_gradients_pass_through_the_log_probabilities(way: str) -> None:
    scores = torch.randn(3, 90, requires_grad=True)
    tokens, gains = likeliest(scores, 2)
    (given,) = torch.autograd.grad(gains.sum(), scores)
    (expected,) = torch.autograd.grad(scores.log_softmax(-1).gather(1, tokens).sum(), scores)
    assert torch.equal(given, expected)
