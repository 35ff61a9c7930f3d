"""Sinusoidal positions: the equation, at any place and length."""

import math

import pytest
import torch

from qkv.nn.positions import sinusoidal


@pytest.mark.parametrize("width", [1, 6, 7])
def test_entries_are_those_of_the_paper(width: int) -> None:
    table = sinusoidal(50, width, dtype=torch.float64)
    for place in (0, 1, 49):
        for entry in range(width):
            angle = place / 10_000 ** (entry // 2 * 2 / width)
            expected = math.cos(angle) if entry % 2 else math.sin(angle)
            assert table[place, entry].item() == pytest.approx(expected, abs=1e-12)


def test_a_later_start_continues_the_table() -> None:
    table = sinusoidal(40, 16)
    for start in (1, 17, 39):
        torch.testing.assert_close(sinusoidal(40 - start, 16, start=start), table[start:], rtol=0, atol=2e-7)


def test_far_positions_keep_their_digits() -> None:
    far = sinusoidal(1, 2, start=10_000_019)
    assert far[0, 0].item() == pytest.approx(math.sin(10_000_019), abs=1e-7)
