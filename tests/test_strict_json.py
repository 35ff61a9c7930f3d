"""What JSON from outside may say."""

import math
import struct
from io import BytesIO

import pytest

from qkv.checkpoint.tensors import read_header
from qkv.errors import CheckpointError
from qkv.strict_json import parse_json


def test_a_value_comes_back():
    text = '{"a": [1, -2.5, 1e3, true, null, "\\u00e9\\ud83d\\ude00"], "b": {}}'
    assert parse_json(text) == parse_json(text.encode()) == {"a": [1, -2.5, 1000.0, True, None, "é😀"], "b": {}}


@pytest.mark.parametrize(
    "text",
    [
        *(b'{"a": 1, "a": 1}', b'[{"b": {"a": 1, "\\u0061": 2}}]', b"NaN", b"[-Infinity]", b'{"a": 1e999}', b"-1e999"),
        *(b'"\\ud800"', b'{"\\udfff": 1}', b'"\\ude00\\ud83d"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\xaf"'),
        *('{"a": 1}'.encode(name) for name in ("utf-16", "utf-16-le", "utf-32")),
        *(b"\xef\xbb\xbf{}", b"", b"{} {}", b"[1,]", b"'a'", b'"\x00"', b"1" * 5000),
    ],
    ids=repr,
)
def test_what_another_program_could_read_otherwise_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize("text", ['"ab\\ud800"', '{"\\ud800": 1}', '["\\ud800\\ud800"]'])
def test_half_of_a_surrogate_pair_is_named(text):
    with pytest.raises(ValueError, match=r"^\\ud800, half of a surrogate pair"):
        parse_json(text)


def test_depth_is_no_crash():
    with pytest.raises(RecursionError):
        parse_json("[" * 1_000_000)


@pytest.mark.parametrize(
    "text", ["[" + "[]," * (1 << 21) + "0]", "[" + "{}," * (1 << 21) + "0]"], ids=["lists", "objects"]
)
def test_small_text_takes_no_large_memory(text):
    with pytest.raises(ValueError, match="more than 2,097,152 lists and objects"):
        parse_json(text)
    with pytest.raises(CheckpointError, match="more than 2,097,152 lists and objects"):
        read_header(BytesIO(struct.pack("<Q", len(text)) + text.encode()), len(text) + 8, "model.safetensors")


def test_what_qkv_writes_may_hold_any_number():
    assert parse_json('[Infinity, 1e999, {"a": 1}]', finite=False) == [math.inf, math.inf, {"a": 1}]
    for text in ('{"a": NaN, "a": 1}', '"\\ud800"'):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text, finite=False)
