"""`flex_attention` on functions of many kinds beside the equation in float64: outputs and all gradients."""

from collections.abc import Iterator

import pytest
import torch
from tests.hub.flex.drawn_functions import MASKS, SCORES, Drawn, Function, drawn, literal
from tests.pairs import in_turn
from torch import Tensor

import qkv

WIDTH, VALUE_WIDTH = 4, 3
ITEMS = [(2, 3), (1, 3), (2, 1)]
LENGTHS = [(1, 17), (17, 1), (1, 1), (17, 17), (17, 130), (130, 17), (130, 130)]
FEW = [(1, 17), (17, 130), (130, 130)]


def expect_equation(
    d: Drawn, score: Function | None, seen: Function | None, dtype: torch.dtype = torch.float64
) -> None:
    """Compare output and gradients of query, key, value and every table that learns."""
    shapes = ((d.queries, WIDTH), (d.keys, WIDTH), (d.keys, VALUE_WIDTH))
    tensors = [
        torch.randn(d.batch, d.heads, *shape, generator=d.generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]
    results: list[list[Tensor]] = []
    for call in ("ours", "equation"):
        leaves = [x.to(dtype if call == "ours" else torch.float64).requires_grad_() for x in tensors]
        if call == "ours":
            output = qkv.flex_attention(*leaves, score_mod=score, block_mask=seen)
        else:
            output = literal(*leaves, score, seen, WIDTH**-0.5)
        weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
        of = [*leaves, *d.learned]
        gradients = torch.autograd.grad((output.double() * weights).sum(), of, allow_unused=True, retain_graph=True)
        results.append([output, *(torch.zeros_like(x) if g is None else g for x, g in zip(of, gradients, strict=True))])
    accuracy = 1e-9 if dtype == torch.float64 else 3e-4
    assert torch.equal(results[0][0].isnan(), results[1][0].isnan())
    for index, (one, other) in enumerate(zip(*results, strict=True)):
        # The equation's own gradient is NaN where it multiplies 0 and the derivative of what is not chosen.
        known = other.isfinite()
        difference = torch.where(known, one.double() - other, 0.0).abs().max() if one.numel() else torch.zeros(())
        bound = accuracy * (1 + torch.where(known, other, 0.0).abs().max()) if one.numel() else torch.ones(())
        assert difference <= bound, (index, float(difference), float(bound))


@pytest.fixture(autouse=True)
def _integers_become_float64() -> Iterator[None]:
    """Let both round nothing on the way: by default `1 / j` is a float32."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(items: tuple[int, int], lengths: tuple[int, int], seed: int) -> Drawn:
    return Drawn(*items, *lengths, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", in_turn(SCORES))
def test_score_functions(name: str) -> None:
    for number, lengths in enumerate(LENGTHS):
        d = made(ITEMS[number % len(ITEMS)], lengths, number)
        expect_equation(d, SCORES[name](d), None)


@pytest.mark.parametrize("name", in_turn(MASKS))
def test_mask_functions(name: str) -> None:
    for number, lengths in enumerate(LENGTHS):
        d = made(ITEMS[number % len(ITEMS)], lengths, number)
        expect_equation(d, None, MASKS[name](d))


@pytest.mark.parametrize("seed", in_turn(range(80)))
def test_functions_drawn_at_random(seed: int) -> None:
    d = made(ITEMS[seed % len(ITEMS)], FEW[seed // 3 % len(FEW)], seed)
    expect_equation(d, *drawn(d, 2))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_functions_drawn_at_random(block: int) -> None:
    for seed in range(1000 + 25 * block, 1025 + 25 * block):
        d = made(ITEMS[seed % len(ITEMS)], LENGTHS[seed // 3 % len(LENGTHS)], seed)
        expect_equation(d, *drawn(d, 3))


@pytest.mark.parametrize("name", [name for name in SCORES if "mask's score" not in name])
def test_score_functions_in_float32(name: str) -> None:
    d = made((2, 3), (17, 33), 5)
    expect_equation(d, SCORES[name](d), MASKS["document, window, prefix"](d), torch.float32)
