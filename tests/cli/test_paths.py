"""Flags of files and folders: one path each, and none that is empty, in every command."""

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import commands, refused, run

from qkv.cli.app import app
from qkv.cli.paths import has_path

_COMMANDS: Any = commands(app)
COMMANDS: dict[tuple[str, ...], Any] = {
    **{(name,): command for name, command in _COMMANDS.commands.items() if not hasattr(command, "commands")},
    **{("train", name): command for name, command in _COMMANDS.commands["train"].commands.items()},
    ("evaluate", "example"): _COMMANDS.commands["evaluate"].commands["translate"],
}
FLAGS = [
    (words, option.opts[0], option.multiple)
    for words, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option"
    and option.name in (parameters := signature(command.callback).parameters)
    and has_path(parameters[option.name].annotation)
]


def test_every_kind_of_command_has_some() -> None:
    assert {words for words, _, _ in FLAGS} == COMMANDS.keys() - {("explain",), ("runs",), ("serve",), ("tune",)}


@pytest.mark.parametrize(("words", "flag", "several"), FLAGS, ids=str)
def test_a_second_or_an_empty_path_is_refused_by_its_flag(words: tuple[str, ...], flag: str, several: bool) -> None:
    takes_run = any(each.param_type_name == "argument" for each in COMMANDS[words].params)
    needed = ["run"] if takes_run and "example" not in words else []
    refused(run(*words, *needed, flag, ""), flag, "empty path")
    if not several:
        refused(run(*words, *needed, flag, "one", f"{flag}=other"), flag, "given 2 times")


def test_an_empty_run_and_an_empty_file_are_refused() -> None:
    refused(run("translate", ""), "RUNS", "empty path")
    refused(run("prepare", "one.txt", "", "--out", "corpus"), "FILES", "empty path")


def test_other_flags_may_be_given_again(tmp_path: Path) -> None:
    done = run("train", "tag", "--steps", "3", "--steps", "7", "--data", tmp_path / "x", "--print-config")
    assert done.exit_code == 0
    assert "steps = 7" in done.stdout
