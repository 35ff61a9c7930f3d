"""What the real command does with good input: results on standard output, everything else on standard error."""

import subprocess
import sys
from pathlib import Path

import pytest

QKV = Path(sys.executable).parent / "qkv"


def run(*arguments: str | Path, feed: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QKV, *arguments],
        check=False,
        input=feed,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        timeout=180,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    done = run("demo", "--steps", "3", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_demo_trains_scores_and_draws(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = demo
    assert "of 1,000 dates never seen are read exactly" in done.stdout
    assert done.stdout.count("→") >= 5
    assert "qkv train translate" in done.stderr
    assert (folder / "demo" / "attention.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (folder / "demo" / "run" / "loss.png").exists()


@pytest.mark.slow
def test_translate_writes_one_line_for_each_and_the_pictures_asked_for(
    demo: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    model = demo[0] / "demo" / "run"
    done = run("translate", model, "--show", "--attention", tmp_path / "a.svg", feed="3 May 2011\n\n5/3/11\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 3
    assert "░" in done.stderr or "▒" in done.stderr
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.slow
def test_evaluate_prints_figures_with_signatures(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder = demo[0] / "demo"
    done = run("evaluate", folder / "run", "--data", folder / "unseen.tsv")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["bleu", "chrf", "exact_match"]
    assert "version:" in rows[0][2]


def test_explain_tells_which_backend_and_why() -> None:
    done = run("explain", "--queries", "4096", "--keys", "4096", "--mask", "causal")
    assert done.returncode == 0, done.stderr
    assert "sdpa" in done.stdout
    assert "not reference" in done.stdout


def test_explain_gives_the_nearest_score() -> None:
    done = run("explain", "--score", "aditive")
    assert done.returncode == 2
    assert 'Did you mean "additive"?' in done.stderr


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("qkv ")
