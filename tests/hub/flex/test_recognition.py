"""Score functions are recognized by what they compute: in any spelling, and nothing that only looks alike."""

import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.hub.flex.attention import plan
from qkv.hub.flex.biases import DistanceBias, PairBias
from qkv.hub.flex.conditions import Condition, Interval
from qkv.hub.flex.symbols import MASK_ARGUMENTS, SCORE_ARGUMENTS, UntraceableError, traced
from qkv.masks.base import Both, Dense, Either, Grid
from qkv.masks.lower import lower
from qkv.masks.patterns import Causal, Documents

B, H, Q = 2, 4, 24
QUERY = torch.zeros(B, H, Q, 8)
GRID = Grid((B, H), Q, Q, QUERY.device)
TABLE = torch.arange(H * 2 * Q, dtype=torch.float32).sin().view(H, 2 * Q)
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
IDS = torch.arange(Q) // 7
LENGTHS = torch.tensor([9, 24])
Score = Callable[..., Tensor]


def described(score: Score | None, mask: Score | None = None) -> Any:
    return plan(score, mask, QUERY, GRID)


def equal(bounds: Any, expected: Tensor) -> bool:
    """Whether lowered bounds are those of a bool matrix."""
    first, last = (torch.zeros(1) if bounds[0] is None else bounds[0]), bounds[1]
    last = torch.full((1,), Q) if last is None else last
    j = torch.arange(Q)
    seen = (j >= first[..., None]) & (j < last[..., None])
    return torch.equal(seen.expand(B, H, Q, Q), expected.expand(B, H, Q, Q))


CAUSAL: dict[str, Score] = {
    "where": lambda s, b, h, i, j: torch.where(i >= j, s, -inf),
    "reversed": lambda s, b, h, i, j: torch.where(j <= i, s, float("-inf")),
    "strict": lambda s, b, h, i, j: torch.where(i > j - 1, s, -inf),
    "difference": lambda s, b, h, i, j: torch.where((i - j) >= 0, s, -inf),
    "other branch": lambda s, b, h, i, j: torch.where(j > i, -inf, s),
    "not": lambda s, b, h, i, j: torch.where(~(j > i), s, -inf),
    "logical": lambda s, b, h, i, j: torch.where(torch.logical_not(torch.gt(j, i)), s, -inf),
    "method": lambda s, b, h, i, j: s.where(i.ge(j), -inf),
    "filled": lambda s, b, h, i, j: s.masked_fill(i.less(j), -inf),
    "full": lambda s, b, h, i, j: torch.where(i >= j, s, torch.full_like(s, -inf)),
    "tensor": lambda s, b, h, i, j: torch.where(i >= j, s, torch.tensor(-inf)),
    "added": lambda s, b, h, i, j: s + torch.where(i >= j, 0.0, -inf),
    "twice": lambda s, b, h, i, j: torch.where((i >= j) & (2 * i >= 2 * j), s, -inf),
    "halves": lambda s, b, h, i, j: torch.where(i - j >= -0.5, s, -inf),
    "float": lambda s, b, h, i, j: torch.where(i.float() >= j.float(), s, -inf),
    "clamped": lambda s, b, h, i, j: torch.where((j - i).clamp(min=0) <= 0, s, -inf),
    "operator": lambda s, b, h, i, j: torch.where(torch.ops.aten.ge.Tensor(i, j), s, -inf),
    "nested": lambda s, b, h, i, j: torch.where(i >= j, torch.where(i + 1 > j, s, -inf), -inf),
    "cancelling": lambda s, b, h, i, j: torch.where(i + b - j >= b, s, -inf),
    "compiled": torch.compile(lambda s, b, h, i, j: torch.where(i >= j, s, -inf), backend="eager"),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_in_any_spelling(name: str) -> None:
    found = described(CAUSAL[name])
    assert found.bias is None
    assert found.scale == 1.0
    assert found.cap is None
    assert equal(lower(found.mask, GRID).bounds, torch.ones(Q, Q).tril().bool())
    if name not in ("twice", "nested"):
        assert isinstance(found.mask, Causal)


@pytest.mark.parametrize(
    "score",
    [
        lambda s, b, h, i, j: torch.where(i > j, s, -inf),
        lambda s, b, h, i, j: torch.where(i >= j, s, -1e30),
        lambda s, b, h, i, j: torch.where(i >= j, s, inf),
        lambda s, b, h, i, j: torch.where(i >= j + (h > 2), s, -inf),
        lambda s, b, h, i, j: torch.where(i * i >= j * j + 1, s, -inf),
        lambda s, b, h, i, j: torch.where(s >= j, s, -inf),
        lambda s, b, h, i, j: -torch.where(i >= j, s, -inf),
        lambda s, b, h, i, j: torch.where(i.to(torch.int8) >= j, s, -inf),
    ],
)
def test_near_misses_of_causal_are_not_causal(score: Score) -> None:
    found = described(score)
    assert found is None or not isinstance(found.mask, Causal)


MASKS: dict[str, tuple[Score, type]] = {
    "window": (lambda b, h, i, j: (i - j).abs() <= 3, Interval),
    "window of heads": (lambda b, h, i, j: (i - j <= 3 * h) & (i >= j), Interval),
    "window by squeeze": (lambda b, h, i, j: torch.maximum(i - j, j - i) < 4, Interval),
    "lengths": (lambda b, h, i, j: j < LENGTHS[b], Interval),
    "both lengths": (lambda b, h, i, j: (j < LENGTHS[b]) & (i < LENGTHS[b]), Interval),
    "prefix": (lambda b, h, i, j: (j < LENGTHS[b]) | (i >= j), Interval),
    "left padding": (lambda b, h, i, j: (j >= 24 - LENGTHS[b]) & (j <= i), Interval),
    "blocks": (lambda b, h, i, j: i // 5 >= j // 5, Interval),
    "multiples": (lambda b, h, i, j: 2 * i + 1 >= 3 * j, Interval),
    "rows": (lambda b, h, i, j: (i % 3 == 0) & (i >= j), Interval),
    "documents": (lambda b, h, i, j: IDS[i] == IDS[j], Documents),
    "documents of blocks": (lambda b, h, i, j: j // 5 == i // 5, Documents),
    "documents, causal": (lambda b, h, i, j: (IDS[i] == IDS[j]) & (i >= j), Both),
    "keys": (lambda b, h, i, j: j % 2 == 0, Dense),
    "sink and window": (lambda b, h, i, j: (j < 2) | ((i - j < 4) & (i >= j)), Either),
    "other documents": (lambda b, h, i, j: IDS[i] != IDS[j], Condition),
    "unequal tables": (lambda b, h, i, j: IDS[i] == (IDS + 1)[j], Condition),
    "fractions": (lambda b, h, i, j: (i / 5 - j / 5).abs() <= 1, Condition),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_what_the_function_says(name: str) -> None:
    function, kind = MASKS[name]
    found = described(None, function).mask
    assert isinstance(found, kind)
    b, h = torch.arange(B).view(-1, 1, 1, 1), torch.arange(H).view(-1, 1, 1)
    expected = function(b, h, torch.arange(Q).view(-1, 1), torch.arange(Q)).expand(B, H, Q, Q)
    seen = lower(found, GRID).matrix()
    assert seen is not None
    assert torch.equal(seen.expand(B, H, Q, Q), expected)


@pytest.mark.parametrize("name", [name for name, (_, kind) in MASKS.items() if kind is Interval])
def test_intervals_have_bounds(name: str) -> None:
    assert lower(described(None, MASKS[name][0]).mask, GRID).kind in ("keys", "bounds")


BIASES: dict[str, tuple[Score, type]] = {
    "alibi": (lambda s, b, h, i, j: s + SLOPES[h] * (j - i), DistanceBias),
    "alibi, absolute": (lambda s, b, h, i, j: s - (i - j).abs() * SLOPES[h], DistanceBias),
    "alibi, apart": (lambda s, b, h, i, j: s + SLOPES[h] * j - i * SLOPES[h], DistanceBias),
    "alibi, computed": (lambda s, b, h, i, j: (j - i) * torch.exp2(-((h + 1) * 8.0 / H)) + s, DistanceBias),
    "square": (lambda s, b, h, i, j: s - 0.1 * (i * i - 2 * i * j + j * j), DistanceBias),
    "table": (lambda s, b, h, i, j: s + TABLE[h, i - j + Q], DistanceBias),
    "table, clipped": (lambda s, b, h, i, j: s + TABLE[h][torch.clamp(j - i, -3, 3) + 3], DistanceBias),
    "buckets": (lambda s, b, h, i, j: s + TABLE[h, (i - j).abs().float().log1p().long()], DistanceBias),
    "chosen": (lambda s, b, h, i, j: s + torch.where(i > j, TABLE[h, i - j], 0.5), DistanceBias),
    "sum": (lambda s, b, h, i, j: s + TABLE[h, i + j], PairBias),
    "unlike": (lambda s, b, h, i, j: s + SLOPES[h] * (j - 2 * i), PairBias),
    "unlike apart": (lambda s, b, h, i, j: s + SLOPES[h] * j - i * SLOPES[0], PairBias),
    "remainder": (lambda s, b, h, i, j: s + (i % 4 - j % 4), PairBias),
    "keys": (lambda s, b, h, i, j: s + TABLE[h, j], Tensor),
    "rows": (lambda s, b, h, i, j: s + TABLE[h, i], Tensor),
    "matrix": (lambda s, b, h, i, j: s + TABLE[:, :Q].repeat(6, 1)[:Q][i, j], Tensor),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases(name: str) -> None:
    score, kind = BIASES[name]
    found = described(score)
    assert isinstance(found.bias, kind)
    assert found.mask is None


@pytest.mark.parametrize(
    ("score", "scale", "cap"),
    [
        (lambda s, b, h, i, j: 20 * torch.tanh(s / 20), 1.0, 20.0),
        (lambda s, b, h, i, j: torch.tanh(s * 0.05).mul(20.0), 1.0, 20.0),
        (lambda s, b, h, i, j: (s / 20.0).tanh() / 0.05, 1.0, 20.0),
        (lambda s, b, h, i, j: -20 * torch.tanh(-s / 20), 1.0, 20.0),
        (lambda s, b, h, i, j: 5 * torch.tanh(2 * s), 10.0, 5.0),
        (lambda s, b, h, i, j: s * 2, 2.0, None),
        (lambda s, b, h, i, j: s + s - s / 2, 1.5, None),
        (lambda s, b, h, i, j: s.to(torch.float64) * 1.0, 1.0, None),
        (lambda s, b, h, i, j: torch.tensor(4.0) * s, 4.0, None),
    ],
)
def test_scales_and_soft_caps(score: Score, scale: float, cap: float | None) -> None:
    found = described(score)
    assert (found.scale, found.cap) == (pytest.approx(scale), cap if cap is None else pytest.approx(cap))
    assert found.bias is None


@pytest.mark.parametrize(
    "score",
    [
        lambda s, b, h, i, j: 20 * torch.tanh(s / 20) * (i + 1),
        lambda s, b, h, i, j: 20 * torch.tanh((s + i) / 20),
        lambda s, b, h, i, j: 20 * torch.atan(s / 20),
        lambda s, b, h, i, j: s * s,
        lambda s, b, h, i, j: 1 / s,
        lambda s, b, h, i, j: s.half() + 0.0,
        lambda s, b, h, i, j: s.detach(),
        lambda s, b, h, i, j: torch.where(i >= j, s, 2 * s),
    ],
)
def test_other_functions_of_scores_are_not_taken_for_these(score: Score) -> None:
    assert described(score) is None


def test_a_learned_soft_cap_is_left_to_autograd() -> None:
    cap = torch.tensor(20.0, requires_grad=True)
    assert described(lambda s, b, h, i, j: cap * torch.tanh(s / cap)) is None


@pytest.mark.parametrize(
    "score",
    [
        lambda s, b, h, i, j: s if i > j else -s,
        lambda s, b, h, i, j: s * int(i),
        lambda s, b, h, i, j: s * [1, 2, 3][j],
        lambda s, b, h, i, j: s + i.item(),
        lambda s, b, h, i, j: s + torch.as_tensor(i.numpy()),
        lambda s, b, h, i, j: s + torch.stack([i, j]).sum(),
        lambda s, b, h, i, j: s.add_(1),
        lambda s, b, h, i, j: torch.nn.functional.silu(s, inplace=True),
        lambda s, b, h, i, j: torch.vmap(lambda x: x + 1)(s[None])[0],
        lambda s, b, h, i, j: Straight.apply(s),
        lambda s, b, h, i, j: 3.0,
    ],
)
def test_what_needs_numbers_is_not_traced(score: Score) -> None:
    with pytest.raises(UntraceableError):
        traced(score, SCORE_ARGUMENTS, torch.float32, torch.device("cpu"))


class Straight(torch.autograd.Function):
    """A soft cap with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def _rewritten(draw: random.Random, depth: int) -> tuple[Score, Score]:
    """A random condition, and another spelling of the same."""
    if depth == 0:
        n, m = draw.randint(-6, 6), draw.randint(1, 3)
        return draw.choice(
            [
                (lambda b, h, i, j: i - j >= n, lambda b, h, i, j: ~(j + n > i)),
                (lambda b, h, i, j: m * j < i + n, lambda b, h, i, j: -(i - m * j) <= n - 1),
                (lambda b, h, i, j: (i - j).abs() <= m, lambda b, h, i, j: (j <= i + m) & (j >= i - m)),
                (lambda b, h, i, j: j < LENGTHS[b] - m, lambda b, h, i, j: torch.le(j + m + 1, LENGTHS[b])),
                (
                    lambda b, h, i, j: i // m == j // m,
                    lambda b, h, i, j: torch.div(j, m, rounding_mode="floor") == i // m,
                ),
            ]
        )
    (one, same), (two, alike) = _rewritten(draw, depth - 1), _rewritten(draw, depth - 1)
    return draw.choice(
        [
            (lambda *x: one(*x) & two(*x), lambda *x: ~(~alike(*x) | ~same(*x))),
            (lambda *x: one(*x) | two(*x), lambda *x: torch.logical_not(alike(*x).logical_not() & ~same(*x))),
            (lambda *x: one(*x) & ~two(*x), lambda *x: torch.where(alike(*x), False, same(*x))),
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_random_conditions_in_two_spellings(seed: int) -> None:
    draw = random.Random(seed)
    b, h = torch.arange(B).view(-1, 1, 1, 1), torch.arange(H).view(-1, 1, 1)
    pair = _rewritten(draw, seed % 3)
    expected = pair[0](b, h, torch.arange(Q).view(-1, 1), torch.arange(Q)).expand(B, H, Q, Q)
    kinds = []
    for function in pair:
        assert traced(function, MASK_ARGUMENTS, torch.float32, QUERY.device).dtype == torch.bool
        visibility = lower(described(None, function).mask, GRID)
        seen = visibility.matrix()
        assert torch.equal(
            torch.ones(()).bool().expand(B, H, Q, Q) if seen is None else seen.expand_as(expected), expected
        )
        kinds.append(visibility.kind)
    assert seed % 3 or kinds[0] == kinds[1]
