"""A published tokenizer.json: what it says of padding changes no text, and what fails in it is a typed error."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer

import qkv
from qkv.data.imported_tokenizer import ImportedTokenizer, with_flags
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, DataError, QkvError
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.language_model import LanguageModel
from qkv.tasks.generate.predict import Generator

LLAMA = (Path(__file__).parent / "families" / "llama" / "tokenizer.json").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = Tokenizer.learn(["a dog runs over the green field"] * 3, size=300)
    network = LanguageModel(DecoderConfig(size=tokenizer.size, width=16, heads=2, layers=1))
    qkv.hub.save(Generator(network, tokenizer), tmp_path / "model")
    return tmp_path / "model"


def _changed(folder: Path, **parts: object) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))


def test_padding_and_truncation_of_the_file_are_not_applied(folder: Path) -> None:
    expected = qkv.load(folder, task="generate").tokenizer.encode("a dog runs")
    padding = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>", "pad_to_multiple_of": None}
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    _changed(folder, padding={**padding, "strategy": {"Fixed": 10**9}}, truncation=truncation)
    assert qkv.load(folder, task="generate").tokenizer.encode("a dog runs") == expected


def test_a_file_at_which_the_library_panics_is_a_typed_error(folder: Path) -> None:
    _changed(folder, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(QkvError, match=r"tokenizer\.json"):
        qkv.load(folder)


@pytest.mark.parametrize("key", ['"version":"1.0",', '"model":{},', '"added_tokens":[],'])
def test_a_key_that_is_there_twice(key: str, folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace("{", "{" + key, 1))
    with pytest.raises(CheckpointError, match=f"^{folder}/tokenizer.json: expected JSON; got the same key twice"):
        qkv.load(folder)


def test_a_piece_with_two_numbers(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    place = text.index("{", text.index('"vocab"')) + 1
    (folder / "tokenizer.json").write_text(f'{text[:place]}"new":7,"new":8,{text[place:]}')
    with pytest.raises(CheckpointError, match="the same key twice"):
        qkv.load(folder)


def test_messages_name_the_file_and_end_sentences_once(folder: Path) -> None:
    _changed(folder, model={"type": "Nothing"})
    with pytest.raises(CheckpointError) as raised:
        qkv.load(folder)
    assert str(raised.value).startswith(f"{folder}/tokenizer.json: expected a tokenizer; got ")
    assert ".." not in str(raised.value).replace("...", "")


_CATASTROPHE = {"Regex": "(a+)+$"}
_SPECIAL = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
_ONE: list[dict[str, Any]] = [{"Sequence": {"id": "B", "type_id": 0}}]
FAILS: dict[str, tuple[str, Any]] = {
    "split": ("pre_tokenizer", {"type": "Split", "pattern": _CATASTROPHE, "behavior": "Isolated", "invert": False}),
    "replace": ("normalizer", {"type": "Replace", "pattern": _CATASTROPHE, "content": "x"}),
    "template": (
        "post_processor",
        {"type": "TemplateProcessing", "single": _ONE, "pair": [], "special_tokens": _SPECIAL},
    ),
    "unknown": ("model", {"type": "WordLevel", "unk_token": "?", "vocab": {"b": 0}}),
}
_FAILING_DECODER = {"type": "Strip", "content": "a", "start": 10**6, "stop": 5}


def _with(part: str, value: Any) -> ImportedTokenizer:
    return ImportedTokenizer(json.dumps({**json.loads(LLAMA), part: value}), where="/home/x/tokenizer.json")


@pytest.mark.parametrize("name", FAILS)
@pytest.mark.parametrize(
    "use",
    [lambda made: made.encode("a" * 60 + "b", target=False), lambda made: made.encode_words(["a" * 60 + "b"])],
    ids=["encode", "encode_words"],
)
def test_rules_that_fail_on_a_text(name: str, use: Callable[[ImportedTokenizer], Any]) -> None:
    """The library panics, or raises a bare exception; neither is one that a caller could catch by type."""
    made = _with(*FAILS[name])
    with pytest.raises(DataError, match=r"^/home/x/tokenizer\.json: expected a tokenizer that encodes this text; got "):
        use(made)


def test_rules_that_fail_on_ids() -> None:
    made = _with("decoder", _FAILING_DECODER)
    with pytest.raises(DataError, match=r"^/home/x/tokenizer\.json: expected a tokenizer that decodes these ids; got "):
        made.decode([5, 6, 7])


def _normalizer(folder: Path, **parts: Any) -> None:
    rule = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    _changed(folder, normalizer={**rule, "lowercase": False, **parts})


FLAGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"do_lower_case": True}, {"lowercase": True}),
    ({"do_lower_case": True, "strip_accents": False}, {"lowercase": True, "strip_accents": False}),
    ({"strip_accents": True}, {"strip_accents": True}),
    ({"tokenize_chinese_chars": False}, {"handle_chinese_chars": False}),
    ({"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ({"do_lower_case": None}, {}),
]
_CASED = "A Dog runs Ünder 日本 É"


@pytest.mark.parametrize(("flags", "rules"), FLAGS, ids=str)
def test_flags_of_the_tokenizer_win_over_its_rules(flags: dict[str, Any], rules: dict[str, Any], folder: Path) -> None:
    _normalizer(folder, **rules)
    (folder / "tokenizer_config.json").unlink()
    expected = qkv.load(folder, task="generate").tokenizer.encode(_CASED)
    _normalizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(flags))
    found = qkv.load(folder, task="generate")
    assert found.tokenizer.encode(_CASED) == expected
    qkv.hub.save(found, folder.parent / "again")
    assert qkv.load(folder.parent / "again").tokenizer.encode(_CASED) == expected


def test_a_flag_that_is_none_is_refused_by_name(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": "yes"}')
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: do_lower_case: expected true or false"):
        qkv.load(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "RobertaTokenizer"])
def test_the_flag_of_a_space_in_front_is_theirs(kind: str, prefix: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(["a dog runs over the green field"] * 3, vocab_size=280, show_progress=False)
    pieces.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>", "<mask>"])
    (tmp_path / "tokenizer.json").write_text(pieces._tokenizer.to_str())
    flags = {"tokenizer_class": kind, "add_prefix_space": prefix}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(flags))
    theirs = getattr(transformers, kind).from_pretrained(tmp_path)
    source = with_flags((tmp_path / "tokenizer.json").read_text(), {"add_prefix_space": prefix})
    ours = ImportedTokenizer(source, marks=False)
    for text in ("dog runs", " dog", "the field", ""):
        assert ours.encode(text, target=True) == theirs(text, add_special_tokens=False)["input_ids"]
