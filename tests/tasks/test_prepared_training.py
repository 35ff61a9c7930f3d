"""Trainings that read a prepared corpus: every item once an epoch, exact resuming, and no byte that is not checked."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import refused, run, succeeded
from tests.pairs import fast
from tests.tasks.corpora import prepared, write_pairs, write_text
from tests.training.together import together
from torch import nn

import qkv
from qkv.checkpoint.json_values import encode
from qkv.checkpoint.manifest import StoredFile
from qkv.errors import ConfigError, DataError, QkvError
from qkv.tasks.corpora import pairs as prepared_pairs
from qkv.tasks.corpora.pairs import PreparedPairs
from qkv.tasks.corpora.prepared import PreparedCorpus
from qkv.tasks.corpora.text import PreparedText, WindowBatches
from qkv.tasks.generate import recipe as generate
from qkv.tasks.run import train_run
from qkv.tasks.translate import recipe as translate
from qkv.training.batches import batches_of, expect_same_batches
from qkv.training.trainer import Trainer
from qkv.training_settings import Settings

pytestmark = pytest.mark.forks

TINY = {"width": 16, "heads": 2, "feed_forward": 16, "dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {"generate": {**TINY, "layers": 1, "context": 16}, "translate": TINY}
UPDATES = {"batch_tokens": 96, "accumulate": 4, "warmup": 0, "schedule": "constant", "validate_every": 4, "steps": 8}
RECIPES: dict[str, Any] = {"generate": generate.RECIPE, "translate": translate.RECIPE}


@cache
def _corpus(task: str) -> "TemporaryDirectory[str]":
    """Files and their corpus, prepared once: most tests prepare nothing else."""
    made = TemporaryDirectory()
    folder = Path(made.name)
    files = write_text(folder) if task == "generate" else [write_pairs(folder)]
    prepared(files, folder / "corpus", pairs=task == "translate")
    return made


def corpus_of(folder: Path, task: str) -> Path:
    """A copy of a corpus, in a folder with its files."""
    shutil.copytree(_corpus(task).name, folder, dirs_exist_ok=True)
    return folder / "corpus"


def tables(task: str, corpus: Path, **training: Any) -> dict[str, Any]:
    return {"data": {"prepared": corpus}, "model": MODELS[task], "training": {**UPDATES, **training}}


def trained(task: str, out: Path, given: dict[str, Any]) -> str:
    recipe = RECIPES[task]
    return str(train_run(recipe, recipe.load_settings(given), out).digest)


@pytest.mark.parametrize("task", fast(RECIPES, "translate"))
def test_resuming_is_exact_on_any_number_of_processes(tmp_path: Path, task: str) -> None:
    corpus = corpus_of(tmp_path, task)

    def train(name: str, steps: int, size: int) -> str:
        return str(
            together(tmp_path, size, lambda _: trained(task, tmp_path / name, tables(task, corpus, steps=steps)))[0]
        )

    whole = train("whole", 8, 1)
    assert len(whole) == 64
    for steps, size in ((4, 2), (8, 4)):
        parts = train("parts", steps, size)
    assert parts == whole


@given(tokens=st.integers(10, 400), context=st.integers(1, 9), rows=st.integers(1, 5), epoch=st.integers(0, 3))
def test_an_epoch_of_windows_predicts_no_token_twice(tokens: int, context: int, rows: int, epoch: int) -> None:
    batches = WindowBatches(tokens, context, rows, "random", f"{epoch}")
    starts = sorted(start for place in range(batches.end) for start in batches.at(place))
    assert starts == list(range(starts[0], tokens - context, context))
    assert starts[0] < context
    ordered = WindowBatches(tokens, context, rows, "sequential", f"{epoch}")
    in_order = [start for place in range(ordered.end) for start in ordered.at(place)]
    assert in_order == list(range(0, tokens - context, context))


def test_windows_are_those_of_the_tokens(tmp_path: Path) -> None:
    corpus = PreparedCorpus.load(corpus_of(tmp_path, "generate"), "text")
    text = PreparedText(corpus)
    ids = torch.cat([torch.tensor(corpus.ids(number).tolist()) for number in range(len(corpus.manifest.shards))])
    starts = [0, *range(3, text.tokens - 600, 97), text.tokens - 600]
    assert torch.equal(text.take(starts, 599), ids[torch.tensor(starts)[:, None] + torch.arange(600)])


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedPairs:
    """Pairs of several windows."""
    monkeypatch.setattr(prepared_pairs, "WINDOW", 64)
    return PreparedPairs(PreparedCorpus.load(corpus_of(tmp_path, "translate"), "pairs"))


class Sides:
    """A task of pairs that has batches alone."""

    def __init__(self, pairs: PreparedPairs, rows: int | None = None) -> None:
        self.pairs, self.rows = pairs, rows

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Any:
        return self.pairs.batches(tokens, seed, epoch, self.rows)


@pytest.mark.parametrize("rows", [None, 7])
def test_an_epoch_of_pairs_has_each_once(pairs: PreparedPairs, rows: int | None) -> None:
    settings = Settings(batch_tokens=96)
    orders = []
    for epoch in range(2):
        listed = batches_of(Sides(pairs, rows), settings, epoch)  # type: ignore[arg-type]
        batches, position = list[Any](), 0
        while position < listed.end:
            batches.append(listed.at(position))
            position = listed.after(position)
        assert len(batches) == listed.total()
        order = [place for batch in batches for place in batch]
        assert sorted(order) == list(range(len(pairs)))
        orders.append(order)
        for batch in batches:
            examples = pairs.take(batch)
            widest = max(max(len(each.source), len(each.target) + 2) for each in examples)
            assert len(batch) == rows or widest * len(batch) <= 96 or rows is not None
    assert orders[0] != orders[1]


def test_batches_of_pairs_begin_anywhere(pairs: PreparedPairs) -> None:
    def trainer(epoch: int = 0, position: int = 0) -> Trainer:
        trainer = Trainer(Sides(pairs), nn.Linear(1, 1), Settings(batch_tokens=96), {})  # type: ignore[arg-type]
        trainer.go_to(epoch, position)
        return trainer

    for before in range(0, 90, 7):
        first = trainer()
        first.take(before)
        again = trainer(first.state.epoch, first.state.position)
        assert again.batches.fingerprint() == first.batches.fingerprint()
        assert again.take(5) == first.take(5)
    with pytest.raises(QkvError):
        expect_same_batches(first.batches, first.state.epoch, 63, first.batches.fingerprint())


def test_pairs_longer_than_a_batch_are_refused(pairs: PreparedPairs) -> None:
    with pytest.raises(ConfigError) as caught:
        pairs.batches(5, 0, 0)
    assert caught.value.argument == "batch_tokens"


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as someone does who knows how its digest is computed."""
    path = folder / "MANIFEST.json"
    value = json.loads(path.read_bytes())
    del value["digest"]
    change(value)
    value["digest"] = sha256(encode(value, "manifest")).hexdigest()
    path.write_bytes(encode(value, "manifest"))


def replaced(folder: Path, name: str, place: int, data: bytes) -> None:
    """Change bytes of a shard, and its sha256 in the manifest."""
    path = folder / name
    body = bytearray(path.read_bytes())
    body[place : place + len(data)] = data
    path.write_bytes(body)
    kind = "ids" if name.endswith("ids") else "index"
    entry = StoredFile(len(body), sha256(body).hexdigest())
    rewritten(folder, lambda value: value["shards"][0][kind].update(bytes=entry.bytes, sha256=entry.sha256))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a token beyond the vocabulary": lambda folder: replaced(folder, "shard-00000.ids", 40, b"\xff\xff"),
    "a pair beyond the shard": lambda folder: replaced(folder, "shard-00000.pairs", 0, b"\xff\xff\xff\xff"),
    "a changed byte": lambda folder: (folder / "shard-00000.ids").write_bytes(
        b"\7" + (folder / "shard-00000.ids").read_bytes()[1:]
    ),
    "a shorter file": lambda folder: os.truncate(folder / "shard-00001.pairs", 32),
    "a missing file": lambda folder: (folder / "shard-00001.ids").unlink(),
    "a link": lambda folder: (
        (folder / "shard-00000.ids").rename(folder.parent / "x"),
        (folder / "shard-00000.ids").symlink_to(folder.parent / "x"),
    ),
    "another tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "no manifest": lambda folder: (folder / "MANIFEST.json").unlink(),
    "a manifest with another number": lambda folder: (folder / "MANIFEST.json").write_bytes(
        (folder / "MANIFEST.json").read_bytes().replace(b'"line": 1,', b'"line": 2,')
    ),
    "a manifest of a newer version": lambda folder: rewritten(folder, lambda value: value.update(version=2)),
    "a manifest of another width": lambda folder: rewritten(folder, lambda value: value.update(width=4)),
    "a manifest with a negative number": lambda folder: rewritten(
        folder, lambda value: value["shards"][0].update(pairs=-1)
    ),
    "a manifest with a huge number": lambda folder: rewritten(
        folder, lambda value: value["shards"][0].update(tokens=2**60)
    ),
    "a manifest of lists": lambda folder: rewritten(folder, lambda value: value.update(shards={})),
    "a manifest that is a list": lambda folder: (folder / "MANIFEST.json").write_text("[]"),
    "an entry that is no text": lambda folder: (folder / "valid.jsonl").write_text("[]\n"),
}


@pytest.mark.parametrize("harm", HOSTILE)
def test_damaged_and_hostile_corpora_are_typed_errors(tmp_path: Path, harm: str) -> None:
    corpus = corpus_of(tmp_path, "translate")
    HOSTILE[harm](corpus)
    with pytest.raises(DataError) as caught:
        trained("translate", tmp_path / "run", tables("translate", corpus))
    assert str(corpus) in caught.value.argument


def test_what_does_not_fit_a_corpus_is_refused(tmp_path: Path) -> None:
    text = corpus_of(tmp_path, "generate")
    (tmp_path / "more").mkdir()
    pairs = corpus_of(tmp_path / "more", "translate")
    cases: list[tuple[type[QkvError], str, dict[str, Any]]] = [
        (DataError, "translate", {"data": {"prepared": text}}),
        (DataError, "generate", {"data": {"prepared": pairs}}),
        (DataError, "generate", {"data": {"prepared": tmp_path}}),
        (DataError, "generate", {"data": {"prepared": tmp_path / "none"}}),
        (ConfigError, "generate", {"data": {"prepared": text, "text": tmp_path / "a.txt"}}),
        (ConfigError, "translate", {"data": {"prepared": pairs, "data": tmp_path / "more" / "pairs.tsv"}}),
        (ConfigError, "translate", {"data": {"prepared": pairs}, "model": {"copy": "mixture", "model": "gru"}}),
        (DataError, "generate", {"data": {"prepared": text}, "model": {"context": 10_000_000}}),
    ]
    for kind, task, changes in cases:
        with pytest.raises(kind):
            trained(task, tmp_path / "run", {**tables(task, text), **changes})


def test_a_tokenizer_other_than_that_of_the_corpus_is_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "generate")
    small = {"width": 8, "heads": 2, "feed_forward": 8, "layers": 1, "context": 8, "steps": 1, "quiet": True}
    with pytest.raises(ConfigError) as caught:
        qkv.train("generate", prepared=corpus, vocabulary=400, out=tmp_path / "run", **small)
    assert (caught.value.argument, "350" in caught.value.expected) == ("vocabulary", True)
    other = qkv.train("generate", text=tmp_path / "a.txt", tokenizer="char", out=tmp_path / "other", **small)
    with pytest.raises(ConfigError):
        qkv.train("generate", prepared=corpus, start=other.folder, out=tmp_path / "run", **small)
    files = [tmp_path / "a.txt", tmp_path / "c.txt"]
    same = qkv.prepare(files, out=tmp_path / "same", tokenizer_from=other.folder, quiet=True)
    started = qkv.train("generate", prepared=same.folder, start=other.folder, out=tmp_path / "started", **small)
    assert started.outcome.step == 1
    assert started.load().tokenizer.kind == "char"


def test_python_prepares_and_trains(tmp_path: Path) -> None:
    done = qkv.prepare(str(write_pairs(tmp_path)), out=tmp_path / "corpus", pairs=True, vocabulary=350, quiet=True)
    small = {"width": 8, "heads": 2, "feed_forward": 8, "batch_tokens": 128, "steps": 2, "quiet": True}
    made = qkv.train("translate", prepared=done.folder, out=tmp_path / "run", **small)
    config = json.loads((made.folder / "run.json").read_text())["config"]
    assert config["text"]["train"] == done.digest
    assert config["tokenizer"]["vocabulary"] == 350
    assert made.load().tokenizer.to_json() == PreparedCorpus.load(done.folder, "pairs").tokenizer.to_json()
    with pytest.raises(ConfigError) as caught:
        qkv.prepare([], out=tmp_path / "none", vocabulari=3)
    assert '"vocabulary"' in caught.value.hint


@pytest.mark.parametrize("task", fast(RECIPES, "generate"))
def test_a_run_of_a_corpus_is_used_as_any_other(tmp_path: Path, task: str) -> None:
    files = write_text(tmp_path) if task == "generate" else [write_pairs(tmp_path)]
    flags = ["--out", tmp_path / "corpus", "--vocabulary", "350", "--shard-size", "0.002", "--processes", "2"]
    more = ["--pairs"] if task == "translate" else []
    shown = json.loads(succeeded(run("prepare", *files, *flags, *more, "--json")).stdout)
    assert (shown["shards"] > 3, shown["made"]) == (True, shown["shards"] + (task == "generate"))
    small = ["--width", "8", "--heads", "2", "--feed-forward", "8", "--steps", "2", "--batch-tokens", "128"]
    small += ["--context", "16", "--layers", "1"] if task == "generate" else []
    succeeded(run("train", task, tmp_path / "corpus", "--out", tmp_path / "run", *small))
    again = run("train", task, "--prepared", tmp_path / "corpus", "--out", tmp_path / "run", *small)
    assert "already completed" in succeeded(again).stderr
    held = ["--text", files[0]] if task == "generate" else ["--data", files[0]]
    succeeded(run("evaluate", tmp_path / "run", *held, *([] if task == "generate" else ["--max-tokens", "3"])))
    succeeded(run("view", tmp_path / "run", "--text", "der hund", "--export", tmp_path / "page.html"))
    refused(run("train", task, tmp_path / "corpus", "--prepared", tmp_path, "--out", tmp_path / "x"), "--prepared")
    refused(run("train", task, tmp_path / "corpus", "--vocabulary", "9", "--out", tmp_path / "x"), "--vocabulary")
    refused(run("prepare", *files, "--out", tmp_path / "corpus", "--vocabulary", "300", *more), "vocabulary")
    refused(run("prepare", "--out", tmp_path / "new"), "FILES")
    refused(run("prepare", *files), "--out")


def test_other_validation_text_is_taken(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, "generate")
    text = generate.RECIPE.load_settings({"data": {"prepared": corpus, "valid_text": tmp_path / "a.txt"}})
    read = generate.RECIPE.read(text, None)
    assert read.valid.ids.tolist() == read.tokenizer.encode((tmp_path / "a.txt").read_text("utf-8-sig"))
