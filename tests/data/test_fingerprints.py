"""Equal data has equal fingerprints, and different data has different ones."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from qkv.data.corpus import Pair, fingerprint

TEXTS = st.lists(st.text(max_size=5), max_size=5)


@given(TEXTS, TEXTS)
def test_fingerprints_agree_exactly_where_texts_do(left: list[str], right: list[str]) -> None:
    assert (fingerprint(left) == fingerprint(right)) == (left == right)


def test_line_numbers_do_not_count() -> None:
    assert fingerprint([Pair("a", "b", 1)]) == fingerprint([Pair("a", "b", 9)])


def test_pairs_are_not_their_sides_in_a_row() -> None:
    assert fingerprint([Pair("a", "b", 1)]) != fingerprint(["a", "b"])
    assert fingerprint([Pair("a", "b", 1)]) != fingerprint([Pair("b", "a", 1)])


def test_format_stays_what_resumed_runs_hold() -> None:
    assert fingerprint(["é", ""]) == sha256("2:é.0:.".encode()).hexdigest()
    assert fingerprint([Pair("a", "bc", 1)]) == sha256(b"1:a2:bc;").hexdigest()
