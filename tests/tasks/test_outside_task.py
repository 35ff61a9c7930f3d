"""A task from outside the package, added by one registration, is found everywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs._site import reference
from tests.cli.command import run, succeeded
from tests.tasks import outside_task

import qkv
from qkv.cli.answer import command_of as answering
from qkv.cli.evaluate import _command_of
from qkv.cli.train import command_of
from qkv.errors import ConfigError
from qkv.tasks import answerers, catalog
from qkv.tasks.run import train_run

LINES = "good a fine film\nbad a dull film\n" * 12


@pytest.fixture(autouse=True)
def sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The task is there for one test; commands run in a folder with its lines."""
    tables = (catalog.TASKS, catalog.RECIPES, catalog.ANSWERS, answerers.ANSWERERS)
    outside_task.add()
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text(LINES)
    yield
    for table in tables:
        del table["sort"]
    for commands in (command_of, answering, _command_of):
        commands.cache_clear()


def train(*flags: str) -> str:
    return succeeded(run("train", "sort", "--lines", "lines.txt", "--out", "run", *flags)).stderr


def test_it_trains_resumes_answers_and_is_scored_and_shown() -> None:
    train("--steps", "5")
    assert "Resuming from step-00000005" in train("--steps", "40")
    trained = qkv.load("run")
    assert isinstance(trained, outside_task.Sorter)
    assert trained.sort(["a fine film", "a dull film"]) == ["good", "bad"]
    assert succeeded(run("sort", "run", feed="a dull film\na fine film\n")).stdout == "bad\ngood\n"
    scored = succeeded(run("evaluate", "run", "--lines", "lines.txt", "--out", "answers.txt"))
    assert scored.stdout.startswith("accuracy\t100.0000")
    assert Path("answers.txt").read_text() == "good\nbad\n" * 12
    succeeded(run("view", "run", "--text", "a fine film", "--export", "page.html"))
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert trained.scene("a fine film").title == "a fine film"


def test_it_trains_from_python_with_the_same_settings() -> None:
    call: Any = qkv.train  # whose type knows the tasks of the package alone
    trained = call("sort", lines="lines.txt", out="run", width=12, quiet=True)
    assert trained.outcome.step == 40
    assert trained.load().model.config.width == 12
    with pytest.raises(ConfigError, match="steps"):
        call("sort", lines="lines.txt", out="run", stepz=1)


def test_its_help_and_its_settings_are_shown() -> None:
    assert "sort" in succeeded(run("train", "--help")).stdout
    assert "Sort standard input" in succeeded(run("--help")).stdout
    assert "--line-buffered" in succeeded(run("sort", "--help")).stdout
    assert "--lines" in succeeded(run("train", "sort", "--help")).stdout
    assert "width = 8" in succeeded(run("train", "sort", "--lines", "lines.txt", "--print-config")).stdout
    train("--steps", "1")
    assert "--lines" in succeeded(run("evaluate", "run", "--help")).stdout
    assert "## qkv train sort" in reference._settings_page()


@pytest.mark.parametrize("name", ["data", "model", "task"])
def test_what_defines_its_runs_replaces_no_table(name: str) -> None:
    class Wrong(outside_task.SortTask):
        def identity(self) -> dict[str, Any]:
            return {name: "of the task's own"}

    with pytest.raises(ConfigError, match=f'"{name}"'):
        train_run(Wrong, Wrong.load_settings({"data": {"lines": "lines.txt"}}), Path("run"))


def test_a_second_task_of_a_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="sort"):
        outside_task.add()
