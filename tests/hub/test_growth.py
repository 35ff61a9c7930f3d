"""What the rules of a published tokenizer may make of a text is bounded before any text meets them."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from qkv.data.imported_tokenizer import ImportedTokenizer
from qkv.errors import DataError

FAMILIES = Path(__file__).parent / "families"
LLAMA = json.loads((FAMILIES / "llama" / "tokenizer.json").read_text(encoding="utf-8"))
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
CHARSMAP = base64.b64encode(struct.pack("<I", 4) + bytes(4) + b"x" * 300 + b"\0").decode()


def several(kind: str, rule: Any, count: int) -> dict[str, Any]:
    return {"type": "Sequence", kind: [rule] * count}


def template(tokens: int, times: int) -> dict[str, Any]:
    marks = {"<s>": {"id": "<s>", "ids": [1] * tokens, "tokens": ["<s>"] * tokens}}
    pieces: list[Any] = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * times
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": pieces + text, "pair": text * 2, "special_tokens": marks}


BOMBS: dict[str, dict[str, Any]] = {
    "three replacements": {"normalizer": several("normalizers", REPLACE, 3)},
    "sequences of sequences": {"normalizer": several("normalizers", several("normalizers", REPLACE, 2), 1)},
    "without its type": {"normalizer": {name: part for name, part in REPLACE.items() if name != "type"}},
    "as a list": {"normalizer": [REPLACE["pattern"], REPLACE["content"]]},
    "with a field that another rule has": {"normalizer": {**REPLACE, "normalizers": []}},
    "an expression": {"normalizer": {**REPLACE, "pattern": {"Regex": "$|a*"}, "content": "a" * 300}},
    "before each word": {"normalizer": {"type": "Prepend", "prepend": "a" * 300}},
    "compiled": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
    "bytes of bytes": {"normalizer": several("normalizers", {"type": "ByteLevel"}, 9)},
    "bytes of bytes, later": {"pre_tokenizer": several("pretokenizers", BYTES, 9)},
    "in two parts": {
        "normalizer": {**REPLACE, "content": "a" * 100},
        "pre_tokenizer": several("pretokenizers", BYTES, 2),
    },
    "when it decodes": {"decoder": several("decoders", REPLACE, 2)},
    "template": {"post_processor": template(100, 100)},
    "templates": {"post_processor": several("processors", template(10, 60), 2)},
    "a long word": {
        "model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "vocab": {"a": 0}}
        | {"max_input_chars_per_word": 10**9}
    },
}


def made(parts: dict[str, Any]) -> ImportedTokenizer:
    return ImportedTokenizer(json.dumps({**LLAMA, **parts}), where="tokenizer.json")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_when_it_is_read(name: str) -> None:
    with pytest.raises(DataError, match=r"^tokenizer\.json: expected .*; got .*[0-9]"):
        made(BOMBS[name])


def test_what_published_models_do_is_not_refused() -> None:
    steps = [
        {"type": "NFKC"},
        {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    rules = made({"normalizer": {"type": "Sequence", "normalizers": steps}, "post_processor": template(1, 2)})
    assert rules.encode("a", target=False)[:2] == [1, 1]
    for path in FAMILIES.glob("*/tokenizer.json"):
        ImportedTokenizer(path.read_text(encoding="utf-8"))


TABLE = {"<unk>": 0, "a": 1}
WRONG: dict[str, dict[str, Any]] = {
    "a number that is a list": {"numbers": {"a": [1]}},
    "a number that is true": {"numbers": {"a": True}},
    "a number below 0": {"numbers": {"a": -1}},
    "a number of 40 bits": {"numbers": {"a": 1 << 40}},
    "numbers that are a list": {"numbers": [1]},
    "numbers without files": {"numbers": TABLE},
    "a file that is a number": {"files": {"source.spm": 7}},
    "a file that is not in base64": {"files": {"source.spm": "?"}},
    "a file of another name": {"files": {"../run.json": "YQ=="}},
    "one file of several": {"files": {"source.spm": "YQ=="}},
    "a mark that is true": {"pad": True},
    "a mark that is a text": {"eos": "1"},
    "a mark below none": {"bos": -2},
    "a mark of 40 bits": {"unk": 1 << 40},
    "an end token that is a list": {"others": [[1]]},
    "an end token below 0": {"others": [-1]},
    "marks that are a number": {"marks": 1},
    "a source that is a number": {"source": 1},
    "a target that is a list": {"target": []},
}


@pytest.mark.parametrize("name", WRONG)
def test_every_part_has_its_type_and_range(name: str) -> None:
    sound = json.loads(ImportedTokenizer(json.dumps(LLAMA)).to_json())
    ImportedTokenizer.from_json(json.dumps(sound))
    with pytest.raises(DataError, match=f"another {next(iter(WRONG[name]))}"):
        ImportedTokenizer.from_json(json.dumps({**sound, **WRONG[name]}))


@pytest.mark.parametrize("name", ["pad", "bos", "eos", "unk", "others"])
def test_marks_are_tokens_that_the_model_reads(name: str) -> None:
    sound = json.loads(ImportedTokenizer(json.dumps(LLAMA)).to_json())
    wrong = json.dumps({**sound, name: [40] if name == "others" else 40})
    ImportedTokenizer.from_json(wrong, 41)
    with pytest.raises(DataError, match=f"another {name}"):
        ImportedTokenizer.from_json(wrong, 40)


def test_a_text_with_a_token_that_the_model_lacks() -> None:
    tokenizer = ImportedTokenizer(json.dumps(LLAMA), limit=12)
    with pytest.raises(DataError, match=r"tokens of a model that reads 12; got the token \d+"):
        tokenizer.encode("banana", target=False)
