"""What the command does with good input: results on standard output, everything else on standard error."""

import shlex
import subprocess
from contextlib import chdir
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from click.testing import Result
from tests.cli.command import QKV, process, refused, run, succeeded

from qkv.data.dates import splits
from qkv.tasks.demo import program


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """To generate, read and validate as many dates as a user's demonstration takes seconds."""
    folder = tmp_path_factory.mktemp("demo")
    few = partial(splits, 900, 20)
    with chdir(folder), patch("qkv.tasks.demo.splits", lambda train, valid, unseen, seed: few(unseen, seed)):
        return folder, succeeded(run("demo", "--steps", "3"))


def test_demo_trains_scores_and_draws(demo: tuple[Path, Result]) -> None:
    folder, done = demo
    assert "of 1,000 unseen dates are read correctly" in done.stdout
    assert done.stdout.count("→") >= 5
    assert "qkv train translate" in done.stderr
    assert (folder / "demo" / "attention.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (folder / "demo" / "run" / "loss.png").exists()


def test_the_demonstration_names_the_command_as_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo` leaves it in a folder that is not on the search path."""
    monkeypatch.setenv("PATH", str(QKV.parent))
    assert program() == "qkv"
    monkeypatch.setenv("PATH", "")
    done = subprocess.run([*shlex.split(program()), "--version"], check=True, capture_output=True)
    assert done.stdout.startswith(b"qkv ")


def test_translate_writes_one_line_for_each_and_the_pictures_asked_for(
    demo: tuple[Path, Result], tmp_path: Path
) -> None:
    model = demo[0] / "demo" / "run"
    picture = tmp_path / "a.svg"
    done = succeeded(run("translate", model, "--show", "--attention", picture, feed="3 May 2011\n\n5/3/11\n"))
    assert done.stdout.count("\n") == 3
    assert "░" in done.stderr or "▒" in done.stderr
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_evaluate_prints_figures_with_signatures(demo: tuple[Path, Result], tmp_path: Path) -> None:
    few = tmp_path / "few.tsv"
    few.write_text("".join((demo[0] / "demo" / "unseen.tsv").read_text().splitlines(keepends=True)[:40]))
    done = succeeded(run("evaluate", demo[0] / "demo" / "run", "--data", few))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["bleu", "chrf", "exact_match", "word_error_rate"]
    assert "version:" in rows[0][2]


def test_explain_tells_which_backend_and_why() -> None:
    done = succeeded(run("explain", "--queries", "4096", "--keys", "4096", "--mask", "causal"))
    assert "sdpa" in done.stdout
    assert "not matrix.reference" in done.stdout


def test_explain_gives_the_nearest_score() -> None:
    refused(run("explain", "--score", "aditive"), 'Did you mean "additive"?')


def test_a_process_of_its_own_ends_the_same_way() -> None:
    done = process("explain", "--score", "aditive")
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode() == run("explain", "--score", "aditive").stderr


def test_version() -> None:
    done = process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith(b"qkv ")
