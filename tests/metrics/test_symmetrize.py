"""Combining the alignments of two directions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import ConfigError
from qkv.metrics.symmetrize import grow_diagonal, grow_diagonal_final, symmetrize

LINKS = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


@given(LINKS, LINKS)
def test_each_way_lies_between_intersection_and_union(one: set, other: set) -> None:  # type: ignore[type-arg]
    for how in ("intersection", "grow-diagonal", "grow-diagonal-final", "union"):
        assert one & other <= symmetrize(how, one, other) <= one | other
    assert grow_diagonal(one, other) <= grow_diagonal_final(one, other)


@given(LINKS)
def test_directions_that_agree_are_left_as_they_are(one: set) -> None:  # type: ignore[type-arg]
    assert grow_diagonal(one, one) == one == grow_diagonal_final(one, one)


def test_growing_goes_on_from_what_was_added() -> None:
    forward = {(0, 0), (1, 1), (2, 2), (9, 9)}
    assert grow_diagonal(forward, {(0, 0)}) == {(0, 0), (1, 1), (2, 2)}
    assert grow_diagonal_final(forward, {(0, 0)}) == forward


@given(LINKS, LINKS)
def test_growing_visits_links_in_the_order_of_the_published_algorithm(one: set, other: set) -> None:  # type: ignore[type-arg]
    """Word by word, with the links as they are by then, until nothing is added."""
    links, before = one & other, None
    neighbors = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
    while links != before:
        before = set(links)
        for i in range(6):
            for j in range(6):
                for di, dj in neighbors if (i, j) in links else ():
                    s, t = i + di, j + dj
                    free = all(link[0] != s for link in links) or all(link[1] != t for link in links)
                    links |= {(s, t)} & (one | other) if free else set()
    assert grow_diagonal(one, other) == links


def test_a_link_is_added_only_where_a_word_has_none() -> None:
    assert grow_diagonal({(0, 0), (1, 1)}, {(0, 0), (1, 1), (0, 1)}) == {(0, 0), (1, 1)}


def test_an_unknown_way_is_named() -> None:
    with pytest.raises(ConfigError, match='Did you mean "union"'):
        symmetrize("unon", [], [])
