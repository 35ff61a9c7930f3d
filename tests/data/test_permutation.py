"""The keyed permutation: every item once, any part of it alone, and no order of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.permutation import Permutation

SIZES = st.one_of(st.integers(1, 70), st.integers(1, 20_000))


@given(size=SIZES, key=st.text(max_size=8))
def test_every_item_comes_once(size: int, key: str) -> None:
    assert np.array_equal(np.sort(Permutation(size, key).at(0, size)), np.arange(size))


@given(size=SIZES, key=st.text(max_size=8), data=st.data())
def test_a_part_is_the_same_alone(size: int, key: str, data: st.DataObject) -> None:
    order, items = Permutation(size, key), Permutation(size, key).at(0, size)
    for _ in range(4):
        start = data.draw(st.integers(0, size))
        stop = data.draw(st.integers(start, size + 3))
        assert np.array_equal(order.at(start, stop), items[start:stop])


def test_items_of_a_huge_corpus_are_within_it() -> None:
    size = 10**15 + 7
    items = Permutation(size, "huge").at(size - 1000, size)
    assert items.size == np.unique(items).size == 1000
    assert items.max() < size


@pytest.mark.parametrize("size", [8, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 3, 5, 13))])
def test_each_item_is_as_likely_at_each_place(size: int) -> None:
    """Pearson's statistic over 4,000 keys, whose mean is its degrees of freedom, far from what an order would give."""
    draws = 4000
    counts = np.zeros((size, size))
    for key in range(draws):
        counts[np.arange(size), Permutation(size, f"epoch:{key}").at(0, size).astype(int)] += 1
    statistic = ((counts - draws / size) ** 2 / (draws / size)).sum()
    freedom = (size - 1) ** 2
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_neighbors_are_spread() -> None:
    items = Permutation(100_003, "spread").at(0, 100_003).astype(float)
    apart = np.abs(np.diff(items)).mean()
    assert abs(apart - 100_003 / 3) < 0.01 * 100_003
    assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 0.02
