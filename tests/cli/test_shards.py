"""`--shards`: the same bytes as one command for each file."""

import gzip
from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded
from tests.cli.shelf import Shelf

TEXTS = {
    "translate": ["a b\nc d\n\nd c b a\n", "b a\n" * 5, ""],
    "classify": ["a funny film\n\n", "a dull film\n" * 5, ""],
    "tag": ["Ada sleeps\nBonn\n", "wrote Ada\n" * 5, ""],
    "align": ["a b\tb a\nc d\td c\n", "d c\tc d\n" * 5],
}
CASES = [
    ("translate", []),
    ("translate", ["--beam", "3", "--n-best", "2", "--json"]),
    ("translate", ["--sample", "--n-best", "2", "--seed", "3"]),
    ("classify", ["--probabilities"]),
    ("classify", ["--json"]),
    ("tag", []),
    ("tag", ["--json"]),
    ("align", []),
    ("align", ["--json"]),
]


def trained(shelf: Shelf, task: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        patch.chdir(shelf.folder)
        return shelf.run("translate" if task == "align" else task)


def write(folder: Path, task: str) -> str:
    folder.mkdir()
    for number, text in enumerate(TEXTS[task]):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return str(folder / "*.txt")


@pytest.mark.parametrize(("task", "more"), CASES, ids=lambda case: "".join(case) or "plain")
def test_answers_are_those_of_a_command_for_each_file(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, more: list[str]
) -> None:
    model, pattern = trained(shelf, task, monkeypatch), write(tmp_path / "in", task)
    done = succeeded(run(task, model, "--shards", pattern, "--out", tmp_path / "out", *more))
    assert done.stdout == ""
    for path in (tmp_path / "in").iterdir():
        feed = path.read_text(encoding="utf-8")
        alone = run(task, model, "--data", path, *more) if task == "align" else run(task, model, *more, feed=feed)
        assert (tmp_path / "out" / path.name).read_text(encoding="utf-8") == succeeded(alone).stdout, path
    again = succeeded(run(task, model, "--shards", pattern, "--out", tmp_path / "out", *more))
    assert "0 " in again.stderr
    assert f"{len(TEXTS[task])} complete" in again.stderr


def test_a_compressed_shard_is_answered_as_its_text(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(shelf, "translate", monkeypatch)
    text = TEXTS["translate"][0]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    succeeded(run("translate", model, "--shards", tmp_path / "*.gz", "--out", tmp_path / "out"))
    assert (tmp_path / "out" / "a.txt").read_text() == run("translate", model, feed=text).stdout


@pytest.mark.parametrize(
    ("task", "bad", "line"),
    [
        ("translate", b"a b\n\xff\n", 2),
        ("translate", b"a b\n" + b"a " * 400 + b"\n", 2),
        ("classify", b"x\ny\n" + b"film " * 900 + b"\n", 3),
        ("tag", b"Ada " * 900 + b"\n", 1),
        ("align", b"a b\tb a\na b\n", 2),
        ("align", b"a b\tb a\n" + b"a " * 400 + b"\tb\n", 2),
    ],
)
def test_a_bad_line_is_named_by_file_and_stops_no_other_shard(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, bad: bytes, line: int
) -> None:
    model, pattern = trained(shelf, task, monkeypatch), write(tmp_path / "in", task)
    for name in ("0bad.txt", "9bad.txt"):
        (tmp_path / "in" / name).write_bytes(bad)
    done = run(task, model, "--shards", pattern, "--out", tmp_path / "out", "--quiet")
    refused(done, *(f"{tmp_path / 'in' / name}:{line}: expected" for name in ("0bad.txt", "9bad.txt")))
    assert done.stderr.count("\n") == 2
    assert sorted(path.name for path in (tmp_path / "out").glob("*.txt")) == [
        f"{n}.txt" for n in range(len(TEXTS[task]))
    ]


def test_settings_and_models_are_not_mixed(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pattern = trained(shelf, "translate", monkeypatch), write(tmp_path / "in", "translate")
    given = ["--shards", pattern, "--out", tmp_path / "out"]
    succeeded(run("translate", model, *given))
    refused(run("translate", model, *given, "--beam", "3"), "--out", "--beam 3 (it was 1)")
    refused(run("translate", model, model, *given), "--out", "model")
    refused(run("translate", "example", *given), "--out", "model")
    done = run("align", model, *given)
    refused(done, "--out", "`qkv align`", "`qkv translate`")
    assert "--command" not in done.stderr


def test_alignments_of_other_columns_are_not_mixed(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pattern = trained(shelf, "align", monkeypatch), write(tmp_path / "in", "align")
    given = ["--shards", pattern, "--out", tmp_path / "out"]
    succeeded(run("align", model, *given))
    turned = run("align", model, *given, "--source-col", "2", "--target-col", "1")
    refused(turned, "--out", "--source-col 2", "--target-col 1")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--shards", "*.txt"], ["--shards", "--out as well"]),
        (["--out", "out"], ["--out", "--shards as well"]),
        (["--shards", "*.none", "--out", "out"], ["--shards", "quotes"]),
        (["--shards", "*.txt", "--out", "out", "--show"], ["--show", "no --shards"]),
        (["--shards", "*.txt", "--out", "out", "--line-buffered"], ["--line-buffered", "no --shards"]),
        (["--shards", "*.txt", "--out", "out", "--attention", "a.svg"], ["--attention", "no --shards"]),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("Ein Hund\n")
    refused(run("translate", "example", *given), *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]
