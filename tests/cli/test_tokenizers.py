"""Every kind of tokenizer in every task, and a vocabulary each for sources and targets."""

import json
from pathlib import Path

import pytest
import tokenizers
from tests.cli.command import refused, run, succeeded

from qkv.data.segments import SPECIALS
from qkv.data.vocabulary import KINDS

LINES = [f"{a}n {b}og .\t{b}in {a}und !" for a in "abdefgh" for b in "dhklmnp"]
GRU = """
[model]
model = "gru"
embedding = 8
hidden = 8
attention = 8
[training]
steps = 2
validate_every = 2
"""
TRANSFORMER = """
[model]
width = 8
heads = 2
feed_forward = 8
encoder_layers = 1
decoder_layers = 1
[training]
steps = 2
validate_every = 2
"""
SMALL = ["--width", "8", "--steps", "2", "--vocabulary", "280"]
TASKS = {
    "translate": ["--data", "pairs.tsv", "--model", "gru"],
    "generate": ["--text", "text.txt", "--model", "gru", "--context", "8"],
    "classify": ["--data", "labels.tsv"],
    "tag": ["--data", "words.conll"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every task, and runs of two vocabularies."""
    folder = tmp_path_factory.mktemp("tokenizers")
    texts = [line.split("\t")[0] for line in LINES]
    (folder / "pairs.tsv").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "source").write_text("".join(f"{text}\n" for text in texts))
    (folder / "target").write_text("".join(line.split("\t")[1] + "\n" for line in LINES))
    (folder / "text.txt").write_text("\n".join(texts))
    (folder / "labels.tsv").write_text("".join(f"{text[0]}\t{text}\n" for text in texts))
    tagged = ("".join(f"{word}\t{word[0]}\n" for word in text.split()) for text in texts)
    (folder / "words.conll").write_text("\n".join(tagged))
    for name, config, kinds in (("gru", GRU, ("char", "word")), ("transformer", TRANSFORMER, ("unigram", "none"))):
        (folder / f"{name}.toml").write_text(config)
        given = ["--data", folder / "pairs.tsv", "--config", folder / f"{name}.toml", "--vocabulary", "270"]
        two = ["--source-tokenizer", kinds[0], "--target-tokenizer", kinds[1]]
        done = succeeded(run("train", "translate", *given, *two, "--out", folder / name))
        assert "source vocabulary of" in done.stderr
    return folder


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        pytest.param(task, kind, marks=[] if turn == index % len(TASKS) else pytest.mark.slow)
        for turn, task in enumerate(TASKS)
        for index, kind in enumerate(KINDS)
    ],
)
def test_every_task_has_every_kind(folder: Path, tmp_path: Path, task: str, kind: str) -> None:
    flag, name, *more = TASKS[task]
    succeeded(run("train", task, flag, folder / name, *more, *SMALL, "--tokenizer", kind, "--out", tmp_path / "run"))
    stored = next((tmp_path / "run").glob("**/tokenizer.json")).read_text()
    assert json.loads(stored)["kind"] == kind
    feed = "an dog .\n"
    if task == "generate":
        succeeded(run("generate", tmp_path / "run", "--prompt", "an ", "--tokens", "3"))
    else:
        assert succeeded(run(task, tmp_path / "run", feed=feed)).stdout


both = pytest.mark.parametrize("name", ["gru", "transformer"])


@pytest.mark.parametrize("name", ["gru", pytest.param("transformer", marks=pytest.mark.slow)])
def test_every_command_reads_two_vocabularies(folder: Path, tmp_path: Path, name: str) -> None:
    feed = "an dog .\nqz 漢 .\n"
    pairs = ["--source", folder / "source", "--target", folder / "target"]
    for more in ([], ["--beam", "3"], ["--show"], ["--attention", tmp_path / "map.html"], ["--replace-unknown"]):
        if more == ["--replace-unknown"] and name == "transformer":
            refused(run("translate", folder / name, *more, feed=feed), "pieces of bytes")
            continue
        assert len(succeeded(run("translate", folder / name, *more, feed=feed)).stdout.splitlines()) >= 2
    assert "bleu" in succeeded(run("evaluate", folder / name, *pairs)).stdout
    links = succeeded(run("align", folder / name, *pairs, "--json")).stdout.splitlines()
    assert [json.loads(line)["source"] for line in links] == [line.split("\t")[0].split() for line in LINES]
    succeeded(run("view", folder / name, "--text", "an dog .", "--export", tmp_path / "page.html"))
    assert '"an"' in (tmp_path / "page.html").read_text() or '"a"' in (tmp_path / "page.html").read_text()


@both
def test_stored_vocabularies_are_those_of_each_side(folder: Path, name: str) -> None:
    stored = json.loads(next((folder / name).glob("**/tokenizer.json")).read_text())
    assert set(stored) == {"format", "source", "target"}
    kinds = [stored[side]["kind"] for side in ("source", "target")]
    assert kinds == (["char", "word"] if name == "gru" else ["unigram", "none"])
    assert not {"bin", "aund", "hund"} & set(stored["source"]["pieces"])
    assert not {"dog", "an", "og"} & set(stored["target"]["pieces"])


@pytest.mark.usefixtures("own_threads")
def test_exported_vocabularies_are_those_of_each_side(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    succeeded(run("export", folder / "transformer", "--to", "ctranslate2", "--out", tmp_path / "fast"))
    source, target = (json.loads((tmp_path / "fast" / f"{side}_vocabulary.json").read_text()) for side in SIDES)
    readers = [tokenizers.Tokenizer.from_file(str(tmp_path / "fast" / name)) for name in FILES]
    for pieces, reader in zip((source, target), readers, strict=True):
        own = range(len(SPECIALS), len(pieces))  # special tokens have names there that no text has
        assert [pieces[number] for number in own] == [reader.id_to_token(number) for number in own]
    import ctranslate2

    from qkv.tasks.translate.predict import Translator

    ours = Translator.load(folder / "transformer")
    pieces = [source[number] for number in ours.tokenizer.source.encode("an dog .")]
    theirs = ctranslate2.Translator(str(tmp_path / "fast")).translate_batch(
        [pieces], beam_size=1, max_decoding_length=6, suppress_sequences=[["<pad>"], ["<bos>"]]
    )
    written = theirs[0].hypotheses[0]
    assert ours.translate_fully(["an dog ."])[0].target_tokens[: len(written)] == tuple(written)


SIDES, FILES = ("source", "target"), ("source_tokenizer.json", "tokenizer.json")


def test_a_run_of_two_vocabularies_is_resumed_and_started_from(folder: Path, tmp_path: Path) -> None:
    given = ["--data", folder / "pairs.tsv", "--config", folder / "gru.toml", "--vocabulary", "270"]
    two = ["--source-tokenizer", "char", "--target-tokenizer", "word"]
    train = ["train", "translate", *given]
    succeeded(run(*train, *two, "--steps", "3", "--out", folder / "gru"))
    refused(run(*train, "--out", folder / "gru"), "--source-tokenizer null (it was char)")
    succeeded(run(*train, "--from", folder / "gru", "--out", tmp_path / "tuned"))
    refused(
        run(*train, "--from", folder / "gru", "--source-tokenizer", "word", "--out", tmp_path / "other"),
        "--source-tokenizer: expected char, as in the tokenizer of the other",
    )
    succeeded(run(*train, "--out", tmp_path / "one"))
    refused(
        run(*train, "--from", tmp_path / "one", "--source-tokenizer", "char", "--out", tmp_path / "other"),
        "--source-tokenizer: expected none",
    )
    refused(run("translate", folder / "gru", tmp_path / "one", feed="an\n"), "expected the tokenizer of")
    text = ["--text", folder / "text.txt", "--tokenizer-from", folder / "gru", "--out", tmp_path / "text"]
    refused(
        run("train", "generate", *text), "--tokenizer-from: expected a run with one vocabulary", "char for its sources"
    )
    several = ["--ensemble", "2", "--both-directions", "--out", tmp_path / "both"]
    succeeded(run(*train, *two, *several))
    assert succeeded(run("translate", tmp_path / "both", "--beam", "2", feed="an dog .\n")).stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--source-tokenizer", "chars"], "--source-tokenizer"),
        (["--copy", "mixture", "--target-tokenizer", "char"], "--copy"),
        (["--features", "separate"], "--features-col 3"),
        (["--features", "apart", "--features-col", "3"], "--features"),
        (["--features", "separate", "--features-col", "3", "--tokenizer", "char"], "none, with which each feature"),
        (
            ["--features", "separate", "--features-col", "3", "--source-tokenizer", "bpe"],
            "none, with which each feature",
        ),
        (
            ["--features", "separate", "--features-col", "3", "--model", "gru", "--score", "none"],
            "--score",
        ),
        (
            ["--features", "separate", "--features-col", "3", "--model", "gru", "--alignment", "monotonic-1"],
            "--alignment: expected soft with separate features",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_reading(tmp_path: Path, more: list[str], words: str) -> None:
    missing = ["--data", tmp_path / "missing.tsv", "--out", tmp_path / "run"]
    refused(run("train", "translate", *missing, *more), words)
