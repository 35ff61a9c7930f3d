"""Commands name a bad line by its file and number, and count the words that a model does not know."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import refused, run, succeeded
from tests.cli.shelf import TRAININGS, Shelf

from qkv.tasks.translate.predict import Translation, Translator

LONG = "a " * 600
LINES = {
    "translate": ("a b\n", LONG + "\n"),
    "classify": ("a film\n", LONG + "\n"),
    "tag": ("Ada wrote\n", LONG + "\n"),
}
"""For each command that answers shards: a good line and a bad one."""
TABLES = {
    "translate": ("a b\tb a\n", f"{LONG}\ta\n", 2),
    "classify": ("good\ta film\n", f"good\t{LONG}\n", 2),
    "tag": ("Ada B-PER\nwrote O\n\n", "a O\n" * 600, 4),
}
"""For each task: a file's good part and its bad part, and the line where that begins."""
STRANGE = {
    "translate": "a z\tb a\n",
    "classify": "good\tfilm\nbad\tfilmeins\n",
    "tag": "Ada B-PER\nwrote O\n\nNix B-LOC\n\n",
}
"""One unknown word for each task, in a file of its form."""


@pytest.fixture(autouse=True)
def within(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)


@pytest.mark.parametrize("name", LINES)
def test_a_bad_line_of_a_shard(name: str, shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(LINES[name]))
    out = str(tmp_path / "out")
    refused(run(name, shelf.run(name), "--shards", tmp_path / "in.txt", "--out", out), "in.txt:2: expected")


@pytest.mark.parametrize("task", TABLES)
def test_a_bad_line_of_a_file_to_evaluate(task: str, shelf: Shelf, tmp_path: Path) -> None:
    good, bad, line = TABLES[task]
    (tmp_path / "test.data").write_text(good + bad)
    refused(run("evaluate", shelf.run(task), "--data", tmp_path / "test.data"), f"test.data:{line}: expected")


@pytest.mark.parametrize("task", STRANGE)
def test_unknown_tokens_are_counted(task: str, tmp_path: Path) -> None:
    start, out = tmp_path / "start", tmp_path / "next"
    words = [*TRAININGS[task], "--tokenizer", "word", "--minimum", "1"]
    assert "tokens unknown" not in succeeded(run("train", task, *words, "--out", start)).stderr
    strange = tmp_path / "strange"
    strange.write_text(STRANGE[task])
    files = ["--data", strange, "--valid-data", TRAININGS[task][1]]
    done = succeeded(run("train", task, *files, "--from", start, "--steps", "1", "--out", out))
    assert " (1 of the training tokens unknown)" in done.stderr
    done = succeeded(run("evaluate", start, "--data", strange))
    assert f"qkv: the model does not know 1 of {3 if task == 'tag' else 2} tokens." in done.stderr
    lines = {"translate": "a z\n\nz a\n", "classify": "a film\n\nfilmeins\n", "tag": "Ada wrote\n\nNix\n"}[task]
    many = 2 if task == "translate" else 1
    done = succeeded(run(task, start, feed=lines))
    total = 4 if task == "translate" else 3
    assert f"qkv: the model does not know {many} of {total} tokens.\n" in done.stderr
    (tmp_path / "in.txt").write_text(lines)
    done = succeeded(run(task, start, "--shards", tmp_path / "in.txt", "--out", tmp_path / "answers"))
    assert f"in.txt: the model does not know {many} of " in done.stderr
    if task == "translate":
        done = succeeded(run("align", start, "--data", strange))
        assert "the model does not know 1 of 4 tokens." in done.stderr


def test_unknown_elements_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("b a\t2 1\na b\t1 2\n" * 10)
    Path("b.tsv").write_text("b c\t1 2\na b\t1 2\n" * 10)
    small = ["--width", "8", "--steps", "1", "--vocabulary", "3"]
    done = succeeded(run("train", "point", "--data", "a.tsv", *small, "--out", "start"))
    assert "unknown" not in done.stderr
    # Its tokenizer is none: a run to start from has words alone.
    done = succeeded(run("train", "point", "--data", "b.tsv", "--steps", "1", "--from", "start", "--out", "next"))
    assert "of the training elements unknown" in done.stderr
    done = succeeded(run("evaluate", "start", "--data", "b.tsv"))
    assert "qkv: the model does not know 10 of 40 elements." in done.stderr
    done = succeeded(run("point", "start", feed="a b\n\nb c\n"))
    assert done.stderr == "qkv: the model does not know 1 of 4 elements.\n"


@pytest.mark.parametrize("turned", [False, True])
def test_a_long_line_to_align_is_named_by_its_file(turned: bool, shelf: Shelf, tmp_path: Path) -> None:
    """By the number of the line, a header included; in both directions by the file that the user gave."""
    (tmp_path / "table.tsv").write_text(f"source\ttarget\na b\tb a\na\t{LONG}\n")
    model = shelf.run("translate")
    both = ["--reverse", model] if turned else []
    done = run("align", model, *both, "--data", tmp_path / "table.tsv")
    refused(done, "table.tsv:3: expected from 1 to 256 tokens")
    for name, text in (("a.txt", f"a b\n{LONG}\n"), ("b.txt", "b a\nb\n"), ("gold", "\n\n")):
        (tmp_path / name).write_text(text)
    names = ("b.txt", "a.txt") if turned else ("a.txt", "b.txt")
    source, target = (tmp_path / name for name in names)
    done = run("align", model, *both, "--source", source, "--target", target)
    refused(done, "a.txt:2: expected from 1 to 256 tokens")
    chosen = ["--valid-source", source, "--valid-target", target, "--valid-gold", tmp_path / "gold"]
    done = run("align", model, *both, "--source", "a", "--target", "b", *chosen)
    refused(done, "a.txt:2: expected from 1 to 256 tokens")


def test_a_line_feed_in_a_translation_shifts_no_line(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Translator.translate_fully

    def broken(self: Translator, *arguments: Any, **more: Any) -> list[Translation]:
        return [replace(each, text="a\nb") for each in honest(self, *arguments, **more)]

    monkeypatch.setattr(Translator, "translate_fully", broken)
    model = shelf.run("translate")
    succeeded(run("evaluate", model, "--data", "test.tsv", "--out", tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "a b\na b\n"


def test_only_a_file_is_replaced_by_an_output(shelf: Shelf, tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("films.tsv")
    for path in (pipe, link):
        done = run("evaluate", shelf.run("classify"), "--data", "films.tsv", "--out", path)
        refused(done, "--out: expected a writable file")
    assert pipe.is_fifo()
    assert link.is_symlink()
