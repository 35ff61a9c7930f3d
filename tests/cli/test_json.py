"""`--json`: standard output of every command is lines of JSON, an object each, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import run, succeeded
from tests.cli.shelf import TRAININGS, Shelf
from typer.main import get_command

from qkv.cli.app import app
from qkv.data.dates import splits
from qkv.tasks import demo

TRAINED = {"train", "validation", "checkpoint"}
"""The kinds of objects that a training writes."""
LINKS = {"source", "target", "links"}
FIGURE = {"name", "value", "unit", "signature", "higher_is_better"}
COMMANDS: dict[str, tuple[list[str], str, int, set[str]]] = {
    "translate": (["translate", "--show", "--beam", "2"], "a b\n\n", 2, {"line", "source", "translations"}),
    "classify": (["classify", "--show"], "a film\n\n", 2, {"line", "text", "label", "probabilities", "tokens"}),
    "tag": (["tag", "--show"], "Ada wrote\n", 1, {"line", "words", "tags", "probabilities", "tokens"}),
    "generate": (["generate", "--prompt", "KING", "--tokens", "3", "--show"], "", 1, {"prompt", "text", "seed"}),
    "point": (["point", "--show"], "3 1 2\n\n", 2, {"line", "elements", "positions", "score", "finished"}),
    "regress": (["regress", "--show"], "area\n30\n", 1, {"area", "rent", "low", "high"}),
    "evaluate": (["translate", "--data", "test.tsv"], "", 4, FIGURE),
    "align": (["translate", "--data", "test.tsv"], "", 2, LINKS),
    "export": (["generate", "--to", "transformers", "--out", "exported"], "", 7, {"file"}),
    "view": (["translate", "--text", "a b", "--export", "page.html"], "", 1, {"page"}),
}
"""For each command that reads a run: its run and arguments, what it reads, how many objects it writes, their names."""
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
DOCUMENTED = set(re.findall(r"`(\w+)`", PAGE))
OTHERS = {"demo", "embed", "explain", "prepare", "runs", "serve", "tune"}


@pytest.fixture(autouse=True)
def within(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)


def objects(*arguments: str, feed: str = "") -> list[dict[str, Any]]:
    """Run a command with `--json`, and read its standard output as strictly as a program would."""
    done = succeeded(run(*arguments, "--json", feed=feed))
    found = [json.loads(line, parse_constant=pytest.fail) for line in done.stdout.splitlines()]
    assert all(isinstance(each, dict) for each in found)
    return found


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_report_has_an_object_for_each_label_and_confusion(task: str, shelf: Shelf) -> None:
    data = TRAININGS[task][1]
    figures = objects("evaluate", shelf.run(task), "--data", data)
    report = objects("evaluate", shelf.run(task), "--data", data, "--report")
    assert report[: len(figures)] == figures
    scores = [one for one in report if "support" in one]
    confusions = [one for one in report if "count" in one]
    assert len(scores) >= 2
    assert all(set(one) == {"label", "precision", "recall", "f1", "support"} <= DOCUMENTED for one in scores)
    assert all(set(one) == {"label", "predicted", "count"} <= DOCUMENTED for one in confusions)
    assert report == [*figures, *scores, *confusions]
    if task == "classify":
        right = sum(one["recall"] * one["support"] for one in scores) / sum(one["support"] for one in scores)
        assert right == pytest.approx(figures[0]["value"])
    text = succeeded(run("evaluate", shelf.run(task), "--data", data, "--report")).stdout
    assert all(re.search(rf"^{re.escape(one['label'])} ", text, flags=re.MULTILINE) for one in scores)


def leaves(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield from leaves(command, f"{name} ") if hasattr(command, "commands") else [before + name]


def test_a_prepared_corpus_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("to be\n" * 50)
    (one,) = objects("prepare", str(tmp_path / "text"), "--out", str(tmp_path / "corpus"), "--tokenizer", "char")
    assert set(one) == {"folder", "digest", "tokens", "shards", "made"} <= DOCUMENTED
    assert (one["folder"], one["tokens"], one["made"]) == (str(tmp_path / "corpus"), 288, 2)


def test_every_command_is_looked_at_and_on_the_page() -> None:
    found = set(leaves(get_command(app)))
    assert all(f"`qkv {name.partition(' ')[0]}" in PAGE for name in found)
    by_task = {f"{step} {task}" for task in TRAININGS for step in ("train", "check", "evaluate", "compare")}
    assert found == {*COMMANDS, *OTHERS, *by_task} - {"evaluate"}


@pytest.mark.parametrize("task", TRAININGS)
def test_a_training_writes_its_events(task: str) -> None:
    found = objects("train", task, *TRAININGS[task], "--out", f"told/{task}")
    assert {each["kind"] for each in found} == TRAINED - ({"train"} if task == "regress" else set())
    saved = [each for each in found if each["kind"] == "checkpoint"]
    assert Path(saved[-1]["folder"]).is_dir()


def test_a_comparison_is_one_object() -> None:
    (found,) = objects("compare", "regress", *TRAININGS["regress"], "--kernel", "gaussian,boxcar", "--out", "compared")
    assert {"rows", "p_of", "refused", "missing"} == found.keys()
    assert [row["settings"].keys() for row in found["rows"]] == [{"kernel"}] * 2


@pytest.mark.parametrize("task", TRAININGS)
def test_settings_are_one_object(task: str) -> None:
    (found,) = objects("train", task, "--print-config")
    assert "data" in found


@pytest.mark.parametrize("name", COMMANDS)
def test_results_are_an_object_a_line(name: str, shelf: Shelf) -> None:
    (task, *arguments), feed, count, names = COMMANDS[name]
    found = objects(name, shelf.run(task), *arguments, feed=feed)
    assert len(found) == count
    assert all(names <= set(each) for each in found)
    assert {key for each in found for key in each} - {"area", "rent"} <= DOCUMENTED


@pytest.mark.parametrize("name", ["translate", "classify", "tag", "point"])
def test_answers_have_the_same_names_with_and_without_a_drawing(name: str, shelf: Shelf) -> None:
    (task, *arguments), feed, _, _ = COMMANDS[name]
    drawn, plain = (
        objects(name, shelf.run(task), *flags, feed=feed)
        for flags in (arguments, [flag for flag in arguments if flag != "--show"])
    )
    for one in (drawn[0], plain[0]):
        one.pop("weights", None)
        for translation in one.get("translations", []):
            translation.pop("weights", None)
    assert plain[0] == drawn[0]
    assert all(plain[0].values())


@pytest.mark.parametrize("task", [task for task in TRAININGS if task != "generate"])
def test_figures_of_every_task(task: str, shelf: Shelf) -> None:
    found = objects("evaluate", shelf.run(task), "--data", TRAININGS[task][1])
    assert found
    assert all(set(each) == FIGURE for each in found)


def test_the_demonstration_writes_one_object_after_those_of_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "splits", lambda *sizes: splits(400, 20, 20, seed=0))
    *training, last = objects("demo", "--steps", "2")
    assert {each["kind"] for each in training} == TRAINED
    assert set(last) == {"run", "page", "exact_match", "unseen"}


def test_a_plan_is_an_object() -> None:
    (found,) = objects("explain")
    assert {"backend", "algorithm", "why", "operations", "bytes", "refusals"} <= set(found)
