"""What a published tokenizer.json says about padding and truncation does not change what a text is."""

import json
from pathlib import Path

import pytest
import torch

import qkv
from qkv.data.tokenizer import Tokenizer
from qkv.errors import QkvError
from qkv.models.decoder import DecoderConfig, LanguageModel
from qkv.tasks.generator import Generator


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
