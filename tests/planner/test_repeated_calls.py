"""A repeated plain call has the bits, the gradients and the refusals of the first one."""

from itertools import product
from typing import Any

import pytest
import torch
from tests.pairs import every_pair

import qkv
from qkv import forks
from qkv.errors import ForkError
from qkv.planner import plan_cache

SCORES = {
    "scaled dot": qkv.scores.ScaledDot(),
    "scale": qkv.scores.ScaledDot(scale=0.3),
    "scale per head": qkv.scores.ScaledDot(scale=torch.tensor([0.3, 0.7])),
    "dot": qkv.scores.Dot(),
    "cosine": qkv.scores.Cosine(3.0),
    "bilinear": qkv.scores.Bilinear(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))),
}
SIZES = {"square": (20, 20, 8), "more keys": (18, 30, 8), "few keys": (5, 7, 8), "value": (20, 20, 5)}
"""Queries, keys and the width of values."""
LAYOUTS = {"4": (2, 2), "3": (2,), "2": (), "5": (1, 2, 2)}


def _inputs(size: str, leading: tuple[int, ...], dtype: torch.dtype, seed: int, learns: bool) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    queries, keys, width = SIZES[size]
    shapes = (queries, 8), (keys, 8), (keys, width)
    return [torch.randn(*leading, *shape).to(dtype).requires_grad_(learns) for shape in shapes]


def _answers(tensors: list[torch.Tensor], backend: str, **options: Any) -> list[torch.Tensor]:
    output = qkv.attention(*tensors, backend=backend, **options)
    if not output.requires_grad:
        return [output]
    return [output.detach(), *torch.autograd.grad(output.square().sum(), tensors)]


@pytest.mark.parametrize(
    ("score", "size", "layout", "dtype"),
    every_pair(product(SCORES, SIZES, LAYOUTS, (torch.float32, torch.float64, torch.bfloat16))),
)
def test_the_second_call_has_the_bits_of_a_first_one(score: str, size: str, layout: str, dtype: torch.dtype) -> None:
    if score == "scale per head" and layout in ("3", "2"):
        layout = "4"
    for mask in (None, qkv.masks.causal()):
        for learns in (False, True):
            options: dict[str, Any] = {"score": SCORES[score], "mask": mask}
            if dtype == torch.bfloat16 and score == "bilinear":
                options["score"] = qkv.scores.Bilinear(SCORES[score].weight.to(dtype))  # type: ignore[attr-defined]
            inputs = _inputs(size, LAYOUTS[layout], dtype, 2, learns)
            plan_cache.PLANS.clear()
            first = _answers(inputs, "sdpa.flash", **options)
            plan_cache.PLANS.clear()
            _answers(_inputs(size, LAYOUTS[layout], dtype, 3, learns), "sdpa.flash", **options)
            assert all(map(torch.equal, first, _answers(inputs, "sdpa.flash", **options)))


def test_numbers_that_are_not_finite_are_those_of_a_first_call() -> None:
    query, key, value = _inputs("square", (2, 2), torch.float32, 0, False)
    for spoilt in (torch.nan, torch.inf, -torch.inf, 3e38):
        for place in range(3):
            tensors = [x.clone() for x in (query, key, value)]
            tensors[place][0, 1, 3, 2] = spoilt
            for mask in (None, qkv.masks.causal()):
                plan_cache.PLANS.clear()
                first, second = (qkv.attention(*tensors, mask=mask, backend="sdpa.flash") for _ in range(2))
                torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


def test_second_derivatives_and_lost_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _inputs("square", (2, 2), torch.float64, 0, True)
    for _ in range(2):
        assert torch.autograd.gradgradcheck(lambda *x: qkv.attention(*x, backend="sdpa.flash"), tensors, fast_mode=True)
    wide = [torch.randn(1, 8, 128, 64) for _ in range(3)]
    qkv.attention(*wide)
    monkeypatch.setattr(forks, "lost", True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ForkError):
        qkv.attention(*wide)
