"""Features of a text: what counts as one, and that their ids are stable."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from qkv.tasks.classify.data import text_features

_MANY = 2**40  # so many that no two features of a test share an id


def _number(feature: str) -> int:
    return zlib.crc32(feature.encode())


def test_words_pairs_and_runs_are_told_apart() -> None:
    wanted = ["word:no", "word:fun", "pair: no", "pair:no fun", "pair:fun ", "run:<no", "run:no>", "run:<no>"]
    wanted += ["run:<fu", "run:fun", "run:un>", "run:<fun", "run:fun>", "run:<fun>"]
    assert text_features("no fun", _MANY) == tuple(sorted(map(_number, wanted)))


def test_the_order_of_words_counts_in_their_pairs_alone() -> None:
    ahead, back = set(text_features("not good", _MANY)), set(text_features("good not", _MANY))
    pairs = {_number(f"pair:{pair}") for pair in (" not", "not good", "good ")}
    assert ahead - back == pairs


def test_a_word_that_is_new_shares_runs_with_one_that_is_known() -> None:
    known, new = set(text_features("funny", _MANY)), set(text_features("unfunny", _MANY))
    assert {_number(f"run:{run}") for run in ("fun", "funny", "unny>")} <= known & new


def test_a_text_without_words_has_the_pair_of_its_ends_alone() -> None:
    assert text_features("", _MANY) == text_features("  ", _MANY) == (_number("pair: "),)


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.integers(1, 50))
def test_numbers_are_sorted_different_and_below_the_buckets(text: str, buckets: int) -> None:
    found = text_features(text, buckets)
    assert list(found) == sorted(set(found))
    assert all(0 <= number < buckets for number in found)
