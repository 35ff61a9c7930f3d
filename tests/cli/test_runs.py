"""`qkv runs`, and what a training says at its end: what was trained, on what, how well, and how to use it."""

import json
import shlex
from pathlib import Path

import pytest
from tests.cli.command import commands, refused, run, succeeded
from tests.cli.shelf import TRAININGS, Shelf

import qkv
from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import best
from qkv.cli.app import app


@pytest.fixture(autouse=True)
def within(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf.folder)


@pytest.mark.parametrize("task", TRAININGS)
def test_a_run_says_what_it_is(task: str, shelf: Shelf) -> None:
    folder = Path(shelf.run(task))
    (one,) = [json.loads(line) for line in succeeded(run("runs", folder, "--json")).stdout.splitlines()]
    assert (one["run"], one["task"]) == (str(folder), task)
    described = {"run", "task", "model", "files", "settings", "step", "steps", "seconds", "best_step", "figures"}
    assert set(one) == {*described, "commands"}
    assert one["files"]["text.train"] == TRAININGS[task][1]
    checkpoint = best(folder)
    assert one["figures"] == {figure.name: pytest.approx(figure.value) for figure in load(checkpoint).figures}
    assert checkpoint.name == f"step-{one['best_step']:08d}"
    given = dict(zip(TRAININGS[task][::2], TRAININGS[task][1::2], strict=True))
    for name, value in one["settings"].items():
        flag = "--" + name.partition(".")[2].replace("_", "-")
        assert flag not in given or (",".join(value) if isinstance(value, list) else str(value)) == given[flag]
    assert ("--steps" in given) == ("training.steps" in one["settings"])
    assert [(str(each.folder), each.task, each.files["text.train"]) for each in qkv.runs(folder)] == [
        (one["run"], task, one["files"]["text.train"])
    ]
    text = succeeded(run("runs", folder)).stdout
    assert all(part in text for part in (TRAININGS[task][1], *one["commands"]))


@pytest.mark.parametrize("task", TRAININGS)
def test_the_next_commands_exist(task: str, tmp_path: Path) -> None:
    done = succeeded(run("train", task, *TRAININGS[task], "--out", tmp_path / "my run"))
    _, *following = done.stderr.partition("; best: ")[2].splitlines()
    assert len(following) >= 2
    for line in following:
        words = shlex.split(line.rpartition("| ")[2])
        assert words[0] == "qkv"
        assert str(tmp_path / "my run") in words
        command = commands(app).commands[words[1]]  # type: ignore[attr-defined]
        if words[1] == "evaluate":
            command = command.commands[task]
        command.make_context(words[1], words[2:])


def test_runs_are_found_below_a_folder(shelf: Shelf, tmp_path: Path) -> None:
    for task in ("classify", "regress"):
        folder = Path(shelf.run(task))
    header, *lines = succeeded(run("runs", folder.parent)).stdout.splitlines()
    assert header.split() == ["run", "task", "model", "trained", "on", "trained", "best"]
    assert {"runs/classify", "runs/regress"} <= {
        line.split()[0].removeprefix(str(shelf.folder) + "/") for line in lines
    }
    assert succeeded(run("runs", tmp_path)).stdout == ""
    refused(run("runs", tmp_path / "nowhere"), "nowhere", "no such folder")


def test_quiet_says_nothing_at_the_end(tmp_path: Path) -> None:
    assert succeeded(run("train", "regress", *TRAININGS["regress"], "--out", tmp_path, "--quiet")).stderr == ""
