"""SentencePiece models are read, whatever their settings; folders of Marian split and join texts as in transformers.

The answers are stored: `make_sentencepieces.py` asks the libraries.
"""

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data.make_sentencepieces import (
    FOLDERS,
    MARIAN,
    SETTINGS,
    STORED,
    marian,
    marian_models,
    probes,
    write_folder,
)

from qkv.data.imported_tokenizer import ImportedTokenizer
from qkv.data.numbered_pieces import FILES
from qkv.data.sentencepieces import SentencePieces
from qkv.data.tokenizer import Tokenizer
from qkv.errors import DataError

DOCUMENT: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
MODELS = {name: base64.b64decode(stored["model"]) for name, stored in DOCUMENT["models"].items()}


def _ours(model: SentencePieces, text: str) -> list[Any]:
    pieces = model.encode(text)
    names = [piece.text for piece in pieces]
    return [model.normalize(text), names, [[piece.start, piece.end] for piece in pieces], model.decode(names)]


def _expect_same(model: SentencePieces, texts: list[str], answers: list[list[Any]], *, of_bytes: bool) -> None:
    for text, expected in zip(texts, answers, strict=True):
        found = _ours(model, text)
        if of_bytes:  # the library gives a character's place to the last of its bytes alone
            del found[2], expected[2]
        assert found == expected, ascii(text)


@pytest.mark.parametrize("name", SETTINGS)
def test_stored_answers(name: str) -> None:
    answers = DOCUMENT["models"][name]["answers"]
    _expect_same(SentencePieces(MODELS[name], name), probes(60, 0), answers, of_bytes="bytes" in name)


def _field(number: int, body: bytes | int) -> bytes:
    if isinstance(body, int):
        return _varint(number << 3) + _varint(body)
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])


def _piece(text: str, kind: int) -> bytes:
    score = _varint(2 << 3 | 5) + struct.pack("<f", -1.0)
    return _field(1, _field(1, text.encode()) + score + _field(3, kind))


UNKNOWN, A = _piece("<unk>", 2), _piece("a", 1)


def _with_rules(model: bytes) -> bytes:
    return UNKNOWN + A + model


def _charsmap(units: list[int], texts: bytes) -> bytes:
    return _field(3, _field(2, struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts))


REFUSED: dict[str, tuple[bytes, str]] = {
    "a field that ends early": (b"\x0a", "a field that ends early"),
    "a piece twice": (UNKNOWN + A + A, "a is already defined"),
    "no unknown piece": (A, "unk is not defined"),
    "two unknown pieces": (UNKNOWN + _piece("?", 2), "unk is already defined"),
    "an empty piece": (UNKNOWN + _piece("", 1), "piece must not be empty"),
    "a byte alone": (UNKNOWN + _piece("<0x41>", 6), "byte piece <0x41>"),
    "rules that end early": (UNKNOWN + A + _field(3, _field(2, b"\x08\0\0\0abcd")), "Trie data size"),
    "rules that make much": (UNKNOWN + A + _charsmap([0], b"x" * 300 + b"\0"), "one that makes 300"),
    "rules of decoded texts that make much": (UNKNOWN + A + _field(5, _field(2, bytes(4) + b"x" * 300)), "makes 300"),
    "rules that lead nowhere": (UNKNOWN + A + _charsmap([1 << 10], b"b\0"), "Trie data size"),
    "no UTF-8": (UNKNOWN + _field(1, _field(1, b"\xff")), "codec can't decode"),
}


@pytest.mark.parametrize(
    ("kind", "pieces"), [(3, ["▁a", "▁a"]), (4, ["▁", "a", "▁", "a"])], ids=["words", "characters"]
)
def test_models_of_any_kind_are_read(kind: int, pieces: list[str]) -> None:
    known = UNKNOWN + A + _piece("▁", 1) + _piece("▁a", 1)
    model = SentencePieces(known + _field(2, _field(3, kind)), "x.spm")
    assert [piece.text for piece in model.encode("a a")] == pieces


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_model_is_refused_by_name(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(DataError, match=f"^x.spm: expected .*; got .*{message}"):
        SentencePieces(data, "x.spm")


def _marian_models() -> tuple[tuple[bytes, bytes], list[list[str]]]:
    return marian_models({name: item["model"] for name, item in DOCUMENT["models"].items()})


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    write_folder(tmp_path, request.param, *_marian_models())
    return request.param, tmp_path


def _read(folder: Path) -> Tokenizer:
    files = {
        name: base64.b64encode((folder / name).read_bytes()).decode() for name in FILES if (folder / name).exists()
    }
    return Tokenizer.of_imported(ImportedTokenizer("", files=files, eos=0, pad=1, where=str(folder)))


def _expect_marian(tokenizer: Tokenizer, expected: dict[str, Any]) -> None:
    for index, text in enumerate(MARIAN):
        ids = tokenizer.encode(text, target=True)
        assert tokenizer.source.encode(text) == expected["sources"][index], text
        assert ids == expected["targets"][index], text
        assert tokenizer.decode(ids) == expected["written"][index], text


def test_a_folder_of_marian_is_read_as_transformers_does(folder: tuple[str, Path]) -> None:
    name, path = folder
    _expect_marian(_read(path), DOCUMENT["marian"][name])
    assert _read(path).shared is (name != "a vocabulary each")


def test_a_folder_of_marian_with_transformers_itself(folder: tuple[str, Path]) -> None:
    pytest.importorskip("transformers")
    _expect_marian(_read(folder[1]), marian(folder[1]))


def test_a_run_keeps_the_files(folder: tuple[str, Path], tmp_path: Path) -> None:
    tokenizer = _read(folder[1])
    again = Tokenizer.from_json(tokenizer.to_json())
    _expect_marian(again, DOCUMENT["marian"][folder[0]])
    assert again.imported is not None
    assert again.imported.original() == {
        name: (folder[1] / name).read_bytes() for name in FILES if (folder[1] / name).exists()
    }


def test_a_run_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    write_folder(tmp_path, "one vocabulary", *_marian_models())
    tokenizer = _read(tmp_path)
    document = json.loads(tokenizer.to_json())
    document["files"] = {name: document["files"][name] for name in ("source.spm", "target.spm")}
    document |= {"source": "{}", "target": "{}", "numbers": json.loads((tmp_path / "vocab.json").read_text())}
    _expect_marian(Tokenizer.from_json(json.dumps(document)), DOCUMENT["marian"]["one vocabulary"])


def test_pieces_of_sources_have_the_names_of_their_vocabulary(folder: tuple[str, Path]) -> None:
    tokenizer = _read(folder[1])
    ids = tokenizer.source.encode(">>fra<< the cat")
    assert tokenizer.source.pieces(ids)[0] == ">>fra<<"
    assert "".join(tokenizer.source.pieces(ids[1:-1])).replace("▁", " ").strip() == "the cat"


BROKEN: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "no unknown token": ("vocab.json", lambda table: {"</s>": 0}, "vocab.json: expected the unknown token <unk>"),
    "a number that is a text": ("vocab.json", lambda table: {**table, "a": "1"}, "vocab.json: expected a number"),
    "a list": ("added_tokens.json", lambda table: [], "added_tokens.json: expected a JSON object; got a list"),
    "no second vocabulary": (
        "tokenizer_config.json",
        lambda table: {"separate_vocabs": True},
        "tokenizer_config.json: expected target_vocab.json beside separate_vocabs",
    ),
    "no end token": ("tokenizer_config.json", lambda table: {"eos_token": None}, "expected a token as eos_token"),
    "a token without a text": (
        "tokenizer_config.json",
        lambda table: {"added_tokens_decoder": {"3": {}}},
        "added_tokens_decoder",
    ),
    "a number of many digits": (
        "tokenizer_config.json",
        lambda table: {"added_tokens_decoder": {"9" * 5000: {"content": "x"}}},
        "added_tokens_decoder",
    ),
    "extra tokens that are none": (
        "special_tokens_map.json",
        lambda table: {"extra_special_tokens": 7},
        "extra_special",
    ),
    "a word alone": (
        "tokenizer_config.json",
        lambda table: {"added_tokens_decoder": {"3": {"content": "x", "single_word": True}}},
        "single_word",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_folder_lacks_is_named(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, "one vocabulary", *_marian_models())
    file, change, message = BROKEN[name]
    path = tmp_path / file
    path.write_text(json.dumps(change(json.loads(path.read_text()) if path.exists() else {})))
    with pytest.raises(DataError, match=message):
        _read(tmp_path)
