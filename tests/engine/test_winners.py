"""The winning key of a row, read from values that spell positions: every position survives every dtype."""

import pytest
import torch

from qkv.engine.winners import BASE, DIGITS, read, spell


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_is_spelled_is_read(dtype: torch.dtype) -> None:
    count = 3 * BASE**2 + 5
    digits = spell(torch.empty(2, count, 0, dtype=dtype))
    assert digits.shape == (2, count, DIGITS)
    assert digits.dtype == dtype
    assert torch.equal(read(digits), torch.arange(count).expand(2, -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_largest_position_needs_no_more_digits(dtype: torch.dtype) -> None:
    largest = torch.full((DIGITS,), BASE - 1, dtype=dtype)
    assert read(largest) == BASE**DIGITS - 1
