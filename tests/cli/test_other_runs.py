"""Folders of other tasks, and of ensembles, are named as what they are."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

from qkv.errors import CheckpointError
from qkv.tasks.runs import expect_task, open_members

_PAIRS = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "abcdefgh")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    (made / "pairs.tsv").write_text(_PAIRS)
    small = ("--data", made / "pairs.tsv", "--model", "gru", "--width", "8", "--steps", "1")
    succeeded(run("train", "translate", *small, "--out", made / "one"))
    succeeded(run("train", "translate", *small, "--ensemble", "2", "--both-directions", "--out", made / "two"))
    return made


def test_a_run_that_makes_no_vectors_is_named() -> None:
    done = run("embed", "example", feed="a dog\n")
    refused(done, "expected the folder of an encoder", "one trained to translate", "Use `qkv translate`")
    with pytest.raises(CheckpointError, match="Use `qkv embed`"):
        expect_task(open_members("example")[0][1]._replace(task="fill"), "translate")


def test_a_run_of_another_task_is_named(folder: Path) -> None:
    done = run("train", "classify", "--data", folder / "missing.tsv", "--out", folder / "one")
    refused(done, "--out: expected a new folder, or one of `qkv train classify`", "of `qkv train translate`")


@pytest.mark.parametrize(
    "command",
    [
        ("view", "RUN", "--text", "a b", "--export", "p.html"),
        ("export", "RUN", "--to", "onnx", "--out", "FOLDER"),
        ("align", "RUN", "--data", "pairs.tsv"),
    ],
)
def test_what_looks_at_one_model_refuses_an_ensemble(command: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    places = {"RUN": folder / "two", "pairs.tsv": folder / "pairs.tsv", "p.html": tmp_path / "p.html"}
    places["FOLDER"] = tmp_path / "onnx"
    done = run(*(places.get(part, part) for part in command))
    refused(done, "expected a single model; got an ensemble of 2", str(folder / "two" / "0-ahead"))
    assert not list(tmp_path.iterdir())


def test_names_are_equal_in_any_form_of_unicode(tmp_path: Path) -> None:
    apart, joined = "e\u0301", "\u00e9"
    (tmp_path / "t.tsv").write_text(f"{apart}\tgood film\nb\tbad film\n" * 10)
    (tmp_path / "e.tsv").write_text(f"{joined}\tgood film\nb\tbad film\n" * 3)
    small = ("--width", "8", "--steps", "1", "--out", tmp_path / "run")
    succeeded(run("train", "classify", "--data", tmp_path / "t.tsv", *small))
    done = run("evaluate", tmp_path / "run", "--data", tmp_path / "e.tsv")
    assert "never saw" not in succeeded(done).stderr
    (tmp_path / "n.csv").write_text(f"ag{apart},y\n" + "".join(f"{n},{n}\n" for n in range(9)))
    columns = ("--x", f"ag{joined}", "--y", "y", "--out", tmp_path / "regression")
    succeeded(run("train", "regress", "--data", tmp_path / "n.csv", *columns))


def test_a_short_text_says_which_part_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a few words here\n" * 40)
    done = run("train", "generate", "--text", tmp_path / "t.txt", "--out", tmp_path / "run", "--steps", "1")
    refused(done, "t.txt: expected more than 256 tokens", "got 68 of 680, the end of the text (--holdout)")


def test_ways_to_choose_a_bandwidth_have_one_name(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("x,y\n" + "".join(f"{n},{n}\n" for n in range(9)))
    fixed = ("train", "regress", "--data", tmp_path / "f.csv", "--x", "x", "--y", "y", "--out", tmp_path / "run")
    done = run(*fixed, "--kernel", "Boxcar", "--bandwidth", "learned")
    refused(done, "--bandwidth", "cross-validation")
    assert "leave-one-out" not in done.stderr
    assert "leave-one-out" not in run(*fixed, "--bandwidth", "0").stderr
    refused(run(*fixed[:5], "x,y", *fixed[6:]), "--x", "expected columns that differ")
