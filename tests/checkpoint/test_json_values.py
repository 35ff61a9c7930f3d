import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.checkpoint.json_values import decode, decode_mapping, differences, encode
from qkv.errors import CheckpointError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | NAMES
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@given(VALUES)
def test_what_is_written_is_read_back(value):
    data = encode(value, "value")
    assert decode(data, "value") == value
    assert encode(decode(data, "value"), "value") == data


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_order_of_keys_does_not_change_the_bytes(mapping):
    backwards = dict(reversed(mapping.items()))
    assert encode(mapping, "value") == encode(backwards, "value")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"rate": math.inf}, "config.rate: expected a name or a finite number; got inf"),
        ({"a": [1, {"b": math.nan}]}, r"config\.a\[1\]\.b: expected"),
        ({"f": print}, r"config\.f: expected a name or a finite number; got <built-in function print>"),
        ({1: 2}, "config: expected string keys; got 1"),
        ({"text": "\ud800"}, "config: expected text that is valid UTF-8"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_place(value, place):
    with pytest.raises(CheckpointError, match=place):
        encode(value, "config")


def test_nesting_is_bounded_when_writing_and_when_reading():
    value: list = []
    for _ in range(40):
        value = [value]
    with pytest.raises(CheckpointError, match="at most 32 levels"):
        encode(value, "config")
    for depth in (40, 100_000):
        with pytest.raises(CheckpointError):
            decode(b"[" * depth + b"]" * depth, "config.json")


def test_what_is_wrong_is_said_once():
    with pytest.raises(CheckpointError) as raised:
        decode(b'{"a": 1e999}', "config.json")
    assert str(raised.value).startswith("config.json.a: expected a name or a finite number; got inf.")
    assert str(raised.value).count("expected") == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"1e999", b"9" * 5000, b"{} {}", b"'a'", b"[1,]"],
)
def test_bad_json_is_a_typed_error_that_names_the_file(data):
    with pytest.raises(CheckpointError, match=r"x\.json"):
        decode(data, "x.json")


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_by_a_typed_error(data):
    with suppress(CheckpointError):
        assert isinstance(decode_mapping(data, "x.json"), dict)


def test_something_else_than_an_object_is_refused_where_one_is_needed():
    with pytest.raises(CheckpointError, match="a JSON object; got list"):
        decode_mapping(b"[]", "x.json")


@given(st.dictionaries(NAMES, LEAVES, max_size=4))
def test_a_value_does_not_differ_from_itself(mapping):
    assert differences(mapping, dict(mapping)) == []


def test_differences_give_dotted_names_and_both_values():
    stored = {"model": {"width": 256, "kind": "gru"}, "seed": 1, "old": True}
    given_ = {"model": {"width": 512, "kind": "gru"}, "seed": 1, "new": [1]}
    assert differences(stored, given_) == [("model.width", 256, 512), ("new", None, [1]), ("old", True, None)]


def test_one_and_true_and_one_point_zero_differ():
    assert differences({"a": 1}, {"a": True}) == [("a", 1, True)]
    assert differences({"a": 1}, {"a": 1.0}) == [("a", 1, 1.0)]


def test_a_list_and_a_tuple_of_the_same_do_not_differ():
    assert differences({"betas": [0.9, 0.98]}, {"betas": (0.9, 0.98)}) == []
