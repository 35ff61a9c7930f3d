"""Toeplitz matrices from their diagonals, and sums of diagonals: against the sums over pairs that they stand for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkv.linalg import toeplitz as module
from qkv.linalg.toeplitz import diagonal_sums, toeplitz, window

LEADING = st.sampled_from([(), (3,), (2, 1, 3)])


def pairs(queries: int, keys: int) -> Tensor:
    """j − i + Q − 1 of each pair."""
    return torch.arange(keys) - torch.arange(queries)[:, None] + queries - 1


@given(st.integers(1, 9), st.integers(0, 9), LEADING)
def test_an_entry_is_that_of_its_diagonal(queries: int, keys: int, leading: tuple[int, ...]) -> None:
    diagonals = torch.randn(*leading, queries + keys - 1)
    assert torch.equal(toeplitz(diagonals, queries), diagonals[..., pairs(queries, keys)])


@given(st.data())
def test_a_tile_is_made_of_its_window(data: st.DataObject) -> None:
    queries, keys = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    (r0, r1), (c0, c1) = (sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in (queries, keys))
    if r0 == r1:
        return
    diagonals = torch.randn(queries + keys - 1)
    own = diagonals[window(slice(r0, r1), slice(c0, c1), queries)]
    assert torch.equal(toeplitz(own, r1 - r0), diagonals[pairs(queries, keys)][r0:r1, c0:c1])


@pytest.mark.parametrize("rows", [1, 2, 128])
@given(st.integers(1, 9), st.integers(1, 9), LEADING)
def test_sums_of_diagonals(rows: int, queries: int, keys: int, leading: tuple[int, ...]) -> None:
    matrix = torch.randn(*leading, queries, keys, dtype=torch.float64)
    expected = torch.zeros(*leading, queries + keys - 1, dtype=torch.float64)
    expected.index_add_(-1, pairs(queries, keys).flatten(), matrix.flatten(-2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", rows)
        torch.testing.assert_close(diagonal_sums(matrix), expected)
