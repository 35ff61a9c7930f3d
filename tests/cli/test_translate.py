"""`qkv translate` and `qkv evaluate` of translators: ensembles, averages, beam stops, limits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.cli.command import refused, run, succeeded
from tests.fuzz.models import families

from qkv.checkpoint.average import average_checkpoints
from qkv.checkpoint.folder import save
from qkv.checkpoint.rotation import present
from qkv.tasks.translate.predict import Translator

LETTERS = "abcdefgh"
LINES = "ab\nhgf\ncdecde\n"
CONFIG = """
[tokenizer]
tokenizer = "char"
[model]
model = "gru"
embedding = 8
hidden = 8
attention = 8
[training]
steps = 4
learning_rate = 0.0005
validate_every = 1
keep = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with one tokenizer, and the files they were trained on."""
    folder = tmp_path_factory.mktemp("translate")
    pairs = "".join(f"{a}{b}\t{b}{a}\n" for a in LETTERS for b in LETTERS)
    (folder / "pairs.tsv").write_text(pairs)
    (folder / "others.tsv").write_text(pairs.replace("a", "x"))
    (folder / "run.toml").write_text(CONFIG)
    train(folder, "pairs.tsv", "first")
    train(folder, "others.tsv", "second", "--seed", "1", "--tokenizer-from", folder / "first")
    return folder


def train(folder: Path, data: str, out: str, *more: str | Path) -> None:
    given = ["--data", folder / data, "--config", folder / "run.toml", "--out", folder / out]
    succeeded(run("train", "translate", *given, *more))


def test_runs_of_one_tokenizer_translate_together(folder: Path) -> None:
    runs = [folder / "first", folder / "second"]
    together = succeeded(run("translate", *runs, "--beam", "3", "--max-tokens", "5", feed=LINES))
    assert together.stdout.count("\n") == 3
    # The same command resumes the same run.
    train(folder, "others.tsv", "second", "--seed", "1", "--tokenizer-from", folder / "first")
    turned = succeeded(run("translate", *runs[::-1], "--beam", "3", "--max-tokens", "5", feed=LINES))
    assert turned.stdout == together.stdout


def test_runs_of_other_tokenizers_do_not_and_the_mend_is_a_flag_there_is(folder: Path) -> None:
    train(folder, "others.tsv", "third")
    refused(run("translate", folder / "first", folder / "third", feed=LINES), "--tokenizer-from", "another one")
    assert "--tokenizer-from" in run("train", "translate", "--help").stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--from"], ["--tokenizer-from", "no --from"]),
        (["--tokenizer", "word"], ["--tokenizer: expected char", "got word"]),
        (["--lowercase"], ["--lowercase: expected False", "got True"]),
    ],
)
def test_a_tokenizer_comes_from_one_place(folder: Path, tmp_path: Path, more: list[str], words: list[str]) -> None:
    first, plain = folder / "first", folder / "plain.toml"
    plain.write_text(CONFIG.replace('tokenizer = "char"', "", 1))
    given = ["--data", folder / "others.tsv", "--config", plain, "--out", tmp_path / "run", "--tokenizer-from", first]
    refused(run("train", "translate", *given, *more, *([first] if more == ["--from"] else [])), *words)


def test_the_mean_of_the_newest_checkpoints_translates(folder: Path) -> None:
    done = succeeded(run("translate", folder / "first", "--average", "3", feed=LINES))
    newest = present(folder / "first")[-3:]
    by_hand = Translator.load(newest[-1])
    by_hand.model.load_state_dict(average_checkpoints(newest))
    assert done.stdout.splitlines() == [each.text for each in by_hand.translate_fully(LINES.splitlines())]
    last = Translator.load(newest[-1]).model.state_dict()
    assert not all(torch.equal(tensor, last[name]) for name, tensor in by_hand.model.state_dict().items())
    refused(
        run("translate", folder / "first", "--average", "9", feed=LINES),
        "expected 9 checkpoints",
        "as many as keep says",
    )
    refused(
        run("translate", newest[0], "--average", "2", feed=LINES), "a run folder, whose checkpoints can be averaged"
    )
    refused(run("translate", folder / "first", "--average", "0", feed=LINES), "--average: expected at least 1")


def test_a_beam_ends_as_asked(folder: Path, tmp_path: Path) -> None:
    contents = families()["gru"]
    torch.manual_seed(0)
    model = {name: torch.randn(tensor.shape) for name, tensor in contents.model.items()}
    # Neither padding nor begin tokens, and an occasional end token.
    model["output.bias"][:3] = torch.tensor([-9.0, -9.0, 1.0])
    save(tmp_path / "run", replace(contents, model=model))
    said = {}
    for stop in ("proved", "filled"):
        done = succeeded(run("translate", tmp_path / "run", "--beam", "2", "--stop", stop, feed="mat\n"))
        (said[stop],) = done.stdout.splitlines()
    assert said == {"proved": "cat dog cat", "filled": "cat"}, "the first that end are not the best"
    refused(run("translate", folder / "first", "--beam", "3", "--stop", "fill"), "--stop", '"filled"')
    refused(run("translate", folder / "first", "--stop", "filled"), "stop", "without a beam", "--beam 5")


def test_a_translation_that_is_cut_is_told_of(folder: Path) -> None:
    """After four updates no model ends a line."""
    done = succeeded(run("translate", folder / "first", "--max-tokens", "2", feed=LINES))
    assert [len(line) for line in done.stdout.splitlines()] == [2, 2, 2]
    assert done.stderr == (
        "qkv: 3 of 3 translations were cut at the length limit, the first in line 1. Increase --max-tokens, "
        "or train a model that repeats itself for longer.\n"
    )
    refused(run("translate", folder / "first", "--max-tokens", "0"), "--max-tokens: expected an integer, at least 1")
    ended = Translator.load(folder / "first")
    with torch.no_grad():
        ended.model.output.bias[ended.tokenizer.eos] = 100
    assert ended.translate(["ab"]) == [""], "and nothing is said"


def test_a_beam_is_scored_too(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    given = [folder / "first", "--data", folder / "pairs.tsv", "--max-tokens", "3", "--out", out]
    done = succeeded(run("evaluate", *given, "--beam", "2"))
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [
        "bleu",
        "chrf",
        "exact_match",
        "word_error_rate",
    ]
    assert "--max-tokens" in done.stderr
    sources = "".join(line.split("\t")[0] + "\n" for line in (folder / "pairs.tsv").read_text().splitlines())
    translated = run("translate", folder / "first", "--max-tokens", "3", "--beam", "2", feed=sources)
    assert out.read_text() == translated.stdout
