"""The run in the package: its name works wherever a run is named, and it translates what its grammar writes."""

from pathlib import Path

import pytest
from tests.cli.command import run, succeeded

import qkv
from qkv.data.phrases import generate
from qkv.errors import CheckpointError
from qkv.tasks.example import FOLDER, SENTENCES, is_example


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 1_000_000


def test_it_translates_new_sentences() -> None:
    translator = qkv.load("example", task="translate")
    pairs = generate(25_000, seed=0)[-100:]  # beyond those of its training
    texts = translator.translate([pair.source for pair in pairs])
    right = sum(text == pair.target for text, pair in zip(texts, pairs, strict=True))
    assert right >= 80, "more than four of five, word for word"


def test_its_words_are_the_grammars() -> None:
    tokenizer = qkv.load("example", task="translate").tokenizer
    for sentence in SENTENCES:
        assert tokenizer.unk not in tokenizer.encode(sentence)


def test_commands_take_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert succeeded(run("translate", "example", feed=SENTENCES[0] + "\n")).stdout.strip().endswith(".")
    succeeded(run("view", "example", "--export", "page.html"))
    assert Path("page.html").stat().st_size > 10_000


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("example").mkdir()
    assert not is_example(Path("example"))
    with pytest.raises(CheckpointError):
        qkv.load("example")
