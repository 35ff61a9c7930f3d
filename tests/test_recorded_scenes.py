"""A scene shows for each row what the recorded calls computed, whatever their masks, biases and parameters."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import ShapeError
from qkv.masks import causal, documents, lengths, window
from qkv.masks.base import Grid, Mask
from qkv.nn.attention import Attention
from qkv.recording.recorder import record
from qkv.recording.trace import Trace
from qkv.scores import Gaussian, ScaledDot

B, H, Q, K, D = 3, 2, 4, 6, 5
SHORT = torch.tensor([6, 2, 4])
OPTIONS = {
    "none": {},
    "causal, an offset for each": {"mask": causal(torch.tensor([0, 1, 2]))},
    "and": {"mask": causal(2) & lengths(SHORT)},
    "or": {"mask": lengths(SHORT) | window(1, 1)},
    "not": {"mask": ~lengths(torch.tensor([0, 2, 3]))},
    "documents": {"mask": documents(torch.arange(B * Q).view(B, Q) % 3, torch.arange(B * K).view(B, K) % 3)},
    "a table for each": {"mask": torch.arange(B * Q * K).view(B, 1, Q, K) % 4 > 0},
    "one table": {"mask": torch.arange(Q * K).view(Q, K) % 4 > 0},
    "a bias for each head": {"bias": torch.linspace(-2, 2, H * Q * K).view(H, Q, K)},
    "a bias of positions": {"bias": qkv.biases.Alibi(H), "mask": causal(2)},
    "a bandwidth for each": {"score": Gaussian(torch.linspace(1, 2, B * H).view(B, H))},
}


def draw(queries: int = Q, keys: int = K) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(B, H, queries, D), torch.randn(B, H, keys, D), torch.randn(B, H, keys, D)


def assert_shown(trace: Trace, expected: Tensor) -> None:
    """The map of each row equals its weights, (B, H, Q, K)."""
    for row in range(B):
        (layer,) = trace.scene(row).layers
        torch.testing.assert_close(layer.map().dense().to(expected.dtype), expected[row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_one_call(name: str) -> None:
    seam, operands = Attention(), draw()
    with record(seam) as trace:
        seam(*operands, **OPTIONS[name])
    assert_shown(trace, qkv.attention_with_weights(*operands, **OPTIONS[name])[1])


STEPS = {
    "none": [{}, {}, {}],
    "lengths": [{"mask": lengths(SHORT)}] * 3,
    "several masks": [{}, {"mask": causal(3)}, {"mask": lengths(SHORT)}],
    "a bias in one": [{}, {"bias": torch.linspace(-2, 2, K)}, {}],
    "biases": [{"bias": torch.linspace(-2, 2, H * K).view(H, 1, K)}] * 3,
}


@pytest.mark.parametrize("name", STEPS)
def test_calls_one_after_another_over_the_same_keys(name: str) -> None:
    query, key, value = draw(3)
    seam, found = Attention(), []
    with record(seam) as trace:
        for place, options in enumerate(STEPS[name]):
            one = query[..., place : place + 1, :]
            seam(one, key, value, **options)
            found.append(qkv.attention_with_weights(one, key, value, **options)[1])
    assert_shown(trace, torch.cat(found, -2))


@pytest.mark.parametrize("name", ["none", "masks", "biases"])
def test_calls_one_after_another_over_keys_that_grow(name: str) -> None:
    query, key, value = draw(3)
    seam, found = Attention(), []
    with record(seam) as trace:
        for place in range(3):
            one, seen = query[..., place : place + 1, :], slice(place + 4)
            options = {
                "none": {},
                "masks": {"mask": torch.arange(place + 4) != place},
                "biases": {"bias": torch.linspace(-1, 1, place + 4)},
            }[name]
            seam(one, key[..., seen, :], value[..., seen, :], **options)
            weights = qkv.attention_with_weights(one, key[..., seen, :], value[..., seen, :], **options)[1]
            found.append(torch.nn.functional.pad(weights, (0, 2 - place)))
    assert_shown(trace, torch.cat(found, -2))


def test_calls_over_other_keys_are_passes_of_their_own() -> None:
    seam, both = Attention(), [draw(), draw()]
    with record(seam) as trace:
        for operands in both:
            seam(*operands)
    assert len(trace.passes) == 2
    assert_shown(trace, qkv.attention_with_weights(*both[1])[1])
    (layer,) = trace.scene(0, reading=0).layers
    torch.testing.assert_close(layer.map().dense(), qkv.attention_with_weights(*both[0])[1][0])


def test_tokens_leave_out_the_padding_alone() -> None:
    query, key, value = draw()
    table = torch.arange(Q * K).view(Q, K) % 4 > 0
    table[:, 4:] = False
    bias, seam = torch.randn(Q, K), Attention()
    with record(seam) as trace:
        seam(query, key, value, mask=table, bias=bias)
    (layer,) = trace.scene(1, {"source": tuple("abcd"), "target": tuple("vwx")}).layers
    expected = qkv.attention_with_weights(query, key, value, mask=table, bias=bias)[1][1, :, :3, :4]
    torch.testing.assert_close(layer.map().dense().float(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="tokens: expected one token per position; got 3 for 6 positions that rec"):
        trace.scene(1, {"source": tuple("abc")})


@dataclass(frozen=True)
class Every(Mask):
    """A user-defined mask."""

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return (rows_Q1 + columns_K) % 2 == 0


def test_a_mask_of_the_users_is_divided_by_rows() -> None:
    seam, (query, key, value) = Attention(), draw()
    with record(seam) as trace:
        seam(query, key, value, mask=Every())
    expected = qkv.attention_with_weights(query, key, value, mask=Every())[1]
    for row in range(len(query)):
        (layer,) = trace.scene(row).layers
        torch.testing.assert_close(layer.map().dense(), expected[row])


def test_what_cannot_be_divided_by_rows_is_named() -> None:
    seam = Attention()
    with record(seam) as flat:
        seam(*torch.randn(3, Q, D), score=ScaledDot())
    with pytest.raises(ShapeError, match=r"query: expected \(B, H, Q, D\) or \(B, Q, D\)"):
        flat.scene(0)
