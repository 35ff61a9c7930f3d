"""Row states in parts are those of one pass."""

import pytest
import torch

import qkv
from qkv.masks.patterns import causal, lengths, span, window
from qkv.scores.products import ScaledDot
from qkv.view.answers.head import Head, head_of
from qkv.view.answers.weights import HeadWeights, softmax_states
from qkv.view.scene import Layer

N = 300
MASKS = {
    "causal": causal(),
    "with a past": causal(offset=40),
    "lengths": lengths(torch.tensor(250)),
    "span": span(torch.tensor(20), torch.tensor(280)),
    "window": window(200, 0),
    "both sides": window(150, 120),
}


def _head(**options: object) -> Head:
    torch.manual_seed(0)
    return head_of(Layer("one", "self", "text", "text", *torch.randn(3, 2, N, 8).unbind(), options=options), 1)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("score", [ScaledDot(), ScaledDot(softcap=3.0), qkv.scores.SquaredDistance()], ids=str)
def test_parts_give_the_states_of_one_pass(mask: str, score: qkv.scores.Score) -> None:
    head = _head(mask=MASKS[mask], score=score)
    rows = slice(220, 260)
    found = softmax_states(head, head.bounds(), rows)
    assert found is not None
    torch.testing.assert_close(found, head.map(torch.arange(N)[rows]).state.value, atol=2e-5, rtol=1e-5)


def test_hidden_keys_change_no_state() -> None:
    head = _head(mask=lengths(torch.tensor(250)))
    expected = softmax_states(head, head.bounds(), slice(0, 30))
    head.key[250:] = torch.nan
    assert expected is not None
    assert torch.equal(expected, softmax_states(head, head.bounds(), slice(0, 30)))


def test_a_row_that_sees_nothing_has_no_weight() -> None:
    head = _head(mask=causal(offset=-5))
    weights = HeadWeights(head).rows(slice(0, 10))(slice(0, N))
    torch.testing.assert_close(weights, head.map().dense()[:10])


@pytest.mark.parametrize(
    "options",
    [
        {"mask": window(3, 3)},
        {},
        {"mask": causal(), "bias": torch.zeros(N, N)},
        {"normalizer": qkv.normalizers.Sigmoid()},
    ],
    ids=["narrow", "no mask", "bias", "sigmoid"],
)
def test_other_problems_take_one_pass(options: dict[str, object]) -> None:
    head = _head(**options)
    assert softmax_states(head, head.bounds(), slice(100, 200)) is None
