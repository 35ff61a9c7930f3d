"""A default is the same wherever it stands: flag, help, Python, documentation."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import qkv
from qkv.cli.app import app
from qkv.settings import options_of, shown_default
from qkv.tasks.catalog import TASKS
from qkv.tasks.demo import run_demo
from qkv.tasks.explaining import Question
from qkv.tasks.generate.predict import Generator
from qkv.tasks.point.predict import ElementPointer
from qkv.tasks.regress.picture import save_picture
from qkv.tasks.regress.predict import Regressor
from qkv.tasks.translate.aligner import MUTUAL
from qkv.tasks.translate.decoding import Decoding

DOCUMENTS = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    command = command or get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if path and not hasattr(command, "commands"):
        yield " ".join(path), command


COMMANDS = dict(commands())
DEFAULTS = {
    name: {option.name: option.default for option in command.params if option.opts[0].startswith("--")}
    for name, command in COMMANDS.items()
}


def python_defaults(code: Callable[..., Any]) -> dict[str, Any]:
    if is_dataclass(code):
        return {field.name: field.default for field in fields(code)}
    return {name: part.default for name, part in inspect.signature(code).parameters.items()}


TWINS: list[tuple[str, Callable[..., Any], int]] = [
    ("translate", Decoding, 8),
    ("evaluate translate", Decoding, 7),
    ("generate", Generator.generate, 5),
    ("generate", Generator.stream, 4),
    ("generate", qkv.load, 1),
    ("point", ElementPointer.point, 1),
    ("regress", Regressor.predict_fully, 3),
    ("regress", save_picture, 3),
    ("explain", Question, 12),
    ("prepare", qkv.prepare, 1),
    ("demo", run_demo, 2),
    *((f"train {task}", qkv.train, 1) for task in TASKS if task != "regress"),
]
"""Commands, what does the same in Python, and how many settings of one name both have at least."""


@pytest.mark.parametrize(("command", "code", "least"), TWINS)
def test_flags_and_python_have_the_same_defaults(command: str, code: Callable[..., Any], least: int) -> None:
    python = {name: value for name, value in python_defaults(code).items() if value is not inspect.Parameter.empty}
    shared = DEFAULTS[command].keys() & python.keys()
    assert len(shared) >= least, shared
    assert {name: DEFAULTS[command][name] for name in shared} == {name: python[name] for name in shared}


def test_columns_of_a_run_are_by_default_those_of_its_training() -> None:
    shown = {
        (command, option.name): option.help
        for command, parts in COMMANDS.items()
        for option in parts.params
        if option.name.endswith(("_col", "_sep")) and command in ("translate", "evaluate translate", "view")
    }
    assert len(shown) >= 10
    assert all(text.endswith(" (as in training).") for text in shown.values()), shown


def test_two_directions_are_combined_as_the_flag_says_by_default() -> None:
    assert DEFAULTS["align"]["symmetrize"] == MUTUAL


def settings() -> dict[str, set[str]]:
    """The defaults of every setting by its flag, as text."""
    shown: dict[str, set[str]] = {}
    for task in TASKS.values():
        for name, table in task.tables.items():
            for setting, option in options_of(table).items():
                value = task.defaults.get(name, {}).get(setting, shown_default(table, setting))
                flag = option.flag or setting.replace("_", "-")
                values = value.values() if isinstance(value, Mapping) else [value]
                shown.setdefault(flag, set()).update(map(str, values))
    return shown


def test_a_default_in_a_document_is_that_of_its_setting() -> None:
    known, rows, marks = settings(), 0, 0
    for values in DEFAULTS.values():
        for name, value in values.items():
            known.setdefault(name.replace("_", "-"), set()).add(str(value))
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for flag, value in re.findall(r"`--([a-z-]+) ([\w.-]+)` \(default\)", text):
            assert value in known[flag], (path, flag)
            marks += 1
        for table in re.findall(r"\| flag \|[^\n]*\| default \|\n\|[-| ]*\n((?:\|.*\n)+)", text):
            for line in table.splitlines():
                first, *_, last = line.strip("|").split("|")
                flags = re.findall(r"`--([a-z-]+)`", first)
                values = [value.strip().strip("`").replace('""', "") for value in last.split(",")]
                for flag, value in zip(flags, values if len(values) > 1 else values * len(flags), strict=True):
                    assert value in known[flag], (path, flag)
                    rows += 1
    assert rows >= 7
    assert marks >= 1
