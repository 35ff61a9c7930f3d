"""Lines of elements with positions: what is read, and what is said of the rest."""

import numpy as np
import pytest

from qkv.data.corpus import Pair
from qkv.data.pointing import kind_of, parse_pairs
from qkv.errors import DataError

NAMES = ("s.txt", "t.txt")


def test_numbers_vectors_and_words_are_told_apart_by_the_first_line() -> None:
    assert [kind_of(line) for line in ("1 -2e3", "0.5,1 2,3", "1 two", "a,b")] == ["numbers"] * 2 + ["words"] * 2
    (item,), kind = parse_pairs([Pair("0.5,1  2,3", "2 1 ", 4)], NAMES)
    assert (item.target, item.line, kind) == ((2, 1), 4, "numbers")
    np.testing.assert_array_equal(item.elements, [[0.5, 1.0], [2.0, 3.0]])


def test_numbers_can_be_words() -> None:
    (item,), kind = parse_pairs([Pair("12 7", "1", 1)], NAMES, "words")
    assert (item.elements, kind) == (("12", "7"), "words")


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("1 2 3", "4", 's.txt:2: expected positions from 1 to 3, the number of elements; got "4"'),
        ("1 2 3", "0 1", 'got "0". Positions count from 1. Is this file counted from 0?'),
        ("1 2", "-1", 'got "-1"'),
        ("1 2", "1.0", 'got "1.0"'),
        ("1 2", "²", 'got "²"'),
        ("1 x", "1", 's.txt:2: expected a finite number as element 2; got "x"'),
        ("1 nan", "1", 'got "nan"'),
        ("1 1e39", "1", 'got "1e39"'),
        ("1 1_0", "1", 'got "1_0"'),
        ("1 2,", "1", 'got "2,"'),
        ("1 2,3", "1", "s.txt:2: expected a number as element 2; got 2 in '2,3'"),
        ("   ", "1", "s.txt:2: expected at least one element; got an empty line"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(source: str, target: str, message: str) -> None:
    with pytest.raises(DataError) as raised:
        parse_pairs([Pair("5 6", "1", 1), Pair(source, target, 2)], ("s.txt", "s.txt"))
    assert message in str(raised.value)


def test_positions_are_named_with_their_own_file() -> None:
    with pytest.raises(DataError, match=r"t\.txt:1"):
        parse_pairs([Pair("5 6", "3", 1)], NAMES)
