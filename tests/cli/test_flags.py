"""Messages about a flag name the flag, and output paths are checked before any work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import commands, refused, run, succeeded

from qkv.cli.app import app

# Out-of-range values for each number, and the other arguments the command needs.
BELOW = {"--coverage": ["--beam", "2"], "--head": ["--layer", "attention"]}
DRAWN = ("--temperature", "--top-k", "--top-p")
FREE = ("--seed",)
"""Any integer is a valid seed."""


def numeric(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every option of every command that takes a number, as the parser knows it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from numeric(inner, (*path, name))
    for given in getattr(command, "params", ()):
        kind = getattr(getattr(given, "type_descriptor", None), "annotation", None)
        if kind in (int, float) and given.opts[0].startswith("--") and given.opts[0] not in FREE:
            yield path, given.opts[0]


NUMERIC = sorted(set(numeric(commands(app))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of every kind, and two barely trained models."""
    made = tmp_path_factory.mktemp("flags")
    lines = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    (made / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (made / "l.tsv").write_text("".join(f"{line[0]}\t{line}\n" for line in lines))
    (made / "t.conll").write_text("".join(f"{line} {line[0]}\n\n" for line in lines))
    (made / "text").write_text("\n".join(lines) * 20)
    both = ["--source", made / "a.txt", "--target", made / "a.txt"]
    small = ["--model", "gru", "--width", "16", "--tokenizer", "char", "--steps", "1"]
    succeeded(run("train", "translate", *both, *small, "--out", made / "translate"))
    sizes = ["--width", "8", "--heads", "2", "--layers", "1", "--steps", "1"]
    succeeded(run("train", "generate", "--text", made / "text", *sizes, "--out", made / "generate"))
    (made / "p.tsv").write_text("".join(f"{a} {b}\t1\n" for a in range(8) for b in range(8)))
    succeeded(run("train", "point", "--data", made / "p.tsv", "--steps", "1", "--width", "8", "--out", made / "point"))
    (made / "c.csv").write_text("x,y\n1,2\n2,3\n3,5\n")
    succeeded(run("train", "regress", "--data", made / "c.csv", "--x", "x", "--y", "y", "--out", made / "regress"))
    return made


def needed(path: tuple[str, ...], folder: Path) -> list[str | Path]:
    both: list[str | Path] = ["--source", folder / "a.txt", "--target", folder / "a.txt"]
    if path[0] == "compare":  # it has the settings of its trainings, and folders of its own
        return [*needed(("train", *path[1:]), folder)[:-1], folder / "compared"]
    if path[0] == "check":  # it writes nothing
        return needed(("train", *path[1:]), folder)[:-2]
    return {
        ("train", "translate"): [*both, "--out", folder / "never"],
        ("train", "classify"): ["--data", folder / "l.tsv", "--out", folder / "never"],
        ("train", "tag"): ["--data", folder / "t.conll", "--out", folder / "never"],
        ("train", "generate"): ["--text", folder / "text", "--out", folder / "never"],
        ("train", "point"): ["--data", folder / "p.tsv", "--out", folder / "never"],
        ("train", "regress"): ["--data", folder / "c.csv", "--x", "x", "--y", "y", "--out", folder / "never"],
        ("point",): [folder / "point"],
        ("regress",): [folder / "regress"],
        ("translate",): [folder / "translate"],
        ("generate",): [folder / "generate"],
        ("evaluate", "translate"): [folder / "translate", *both],
        ("evaluate", "point"): [folder / "point", "--data", folder / "p.tsv"],
        ("align",): [folder / "translate", *both],
        ("view",): [folder / "translate", "--text", "ab"],
        ("serve",): [folder / "translate"],
        ("explain",): [],
        ("demo",): ["--out", folder / "never"],
        ("prepare",): [folder / "text", "--out", folder / "never"],
    }[path]


@pytest.mark.parametrize(("path", "flag"), NUMERIC, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_a_number_out_of_range_is_named_by_its_flag(path: tuple[str, ...], flag: str, folder: Path) -> None:
    more = ["--sample"] if path == ("translate",) and flag in DRAWN else BELOW.get(flag, [])
    feed = "1 2\n" if path == ("point",) else "1\n" if path == ("regress",) else "ab\n"
    words = path[:1] if path[0] == "evaluate" else path  # whose task is that of the run
    refused(run(*words, *needed(path, folder), *more, flag, "-1", feed=feed), flag)
    assert not (folder / "never").exists() or not list((folder / "never").glob("step-*"))


def test_the_vocabulary_is_called_by_its_flag(folder: Path) -> None:
    for kind in ("translate", "classify", "tag", "generate"):
        more = ["--tokens", "subwords"] if kind == "generate" else []
        done = run("train", kind, *needed(("train", kind), folder), *more, "--vocabulary", "0")
        refused(done, "qkv: --vocabulary: expected ")


@pytest.mark.parametrize("flag", ["--beam", "--max-tokens"])
def test_numbers_that_no_tensor_takes_are_named(flag: str, folder: Path) -> None:
    refused(run("translate", folder / "translate", flag, "9" * 23, feed="ab\n"), flag, "at most 1,000,000")


OUTPUTS = [
    ("translate", "--attention", "x.gif", ".gif"),
    ("classify", "--attention", "x.gif", ".gif"),
    ("tag", "--attention", "x.gif", ".gif"),
    ("generate", "--attention", "x.gif", ".gif"),
    ("point", "--attention", "x.gif", ".gif"),
    ("regress", "--attention", "x.gif", ".gif"),
    ("regress", "--picture", "x.html", ".html"),
    ("view", "--export", "x.gif", ".gif"),
    ("translate", "--attention", "none/x.png", "no folder"),
    ("classify", "--attention", "none/x.png", "no folder"),
    ("view", "--export", "none/x.html", "no folder"),
    ("evaluate", "--out", "none/x", "no folder"),
    ("evaluate", "--out", ".", "a folder"),
]


@pytest.mark.parametrize(("command", "flag", "name", "word"), OUTPUTS)
def test_a_file_that_cannot_be_written_is_said_before_any_work(
    command: str, flag: str, name: str, word: str, tmp_path: Path
) -> None:
    """The run does not exist, where flags do not depend on it: checking it first would raise that error instead."""
    model = "example" if command == "evaluate" else tmp_path / "no run"
    refused(run(command, model, flag, tmp_path / name, feed="ab\n"), f"qkv: {flag}: expected", word)


def test_a_folder_that_cannot_be_made_is_said_before_a_model_is_exported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(run("export", tmp_path / "no run", "--to", "onnx", "--out", tmp_path / "file" / "out"), "file", "folder")


@pytest.mark.parametrize(("number", "expected"), [("x", "an integer"), ("0", "at least 1")])
def test_options_of_a_training_are_checked_before_its_settings_are_printed(number: str, expected: str) -> None:
    refused(run("train", "classify", "--processes", number, "--print-config"), "--processes", expected)
