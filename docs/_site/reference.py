"""Generate the reference: the public names by module, the command line and the settings."""

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from qkv.settings import options_of, range_of
from qkv.tasks.catalog import TASKS
from qkv.tasks.settings import TaskSettings

MODULES = {
    "qkv": "attention and its siblings; loading, training and recording",
    "qkv.scores": "how well a query matches a key",
    "qkv.normalizers": "from scores to weights",
    "qkv.masks": "which keys a query may see",
    "qkv.biases": "what a position adds to a score",
    "qkv.nn": "layers with parameters",
    "qkv.models": "models of each kind",
    "qkv.introspect": "weights at any length",
    "qkv.recording": "what a running model attends to",
    "qkv.hub": "models of other libraries",
    "qkv.distributed": "one sequence over several processes",
    "qkv.training": "the training loop",
    "qkv.data": "texts, tokenizers and batches",
    "qkv.decode": "greedy search, beams and sampling",
    "qkv.metrics": "scores of quality",
    "qkv.checkpoint": "run folders",
    "qkv.view": "the viewer",
    "qkv.errors": "what is raised",
}


def write(folder: Path) -> None:
    """Write all pages of the reference that are generated.

    Args:
        folder: the folder `reference` of the pages.
    """
    api = folder / "api"
    api.mkdir(parents=True, exist_ok=True)
    rows = []
    for module, what in MODULES.items():
        (api / f"{module}.md").write_text(_module_page(module, what), encoding="utf-8")
        rows.append(f"| [{module}]({module}.md) | {what} |")
    table = "\n".join(["| module | what it holds |", "|---|---|", *rows])
    names = "\n".join(MODULES)
    (api / "index.md").write_text(
        "# Find a function or class\n\nEvery public name, from its docstring. The tests run every example on these "
        f"pages.\n\n{table}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n",
        encoding="utf-8",
    )
    (folder / "command_line.md").write_text(_command_page(), encoding="utf-8")
    (folder / "settings.md").write_text(_settings_page(), encoding="utf-8")


def public_names(module: str) -> list[str]:
    """Return the public names of a module, without the modules among them.

    Example:
        >>> "Softmax" in public_names("qkv.normalizers")
        True
    """
    loaded = importlib.import_module(module)
    listed = getattr(loaded, "__all__", None)
    if listed is None:
        listed = [name for name, item in vars(loaded).items() if getattr(item, "__module__", None) == module]
    return [
        name for name in listed if not name.startswith("_") and not isinstance(getattr(loaded, name), types.ModuleType)
    ]


def _kind(item: Any) -> str:
    if inspect.isclass(item):
        return "exception" if issubclass(item, BaseException) else "class"
    return "function" if callable(item) and hasattr(item, "__name__") else "data"


def _module_page(module: str, what: str) -> str:
    loaded = importlib.import_module(module)
    names = sorted(
        public_names(module),
        key=lambda name: ("function", "class", "data", "exception").index(_kind(getattr(loaded, name))),
    )
    if module != "qkv":  # documented where it is defined
        names = [name for name in names if name not in public_names("qkv")]
    lines = [f"# {module}: {what}", "", "```{eval-rst}", f".. currentmodule:: {module}", "", ".. autosummary::", ""]
    lines += [f"   {name}" for name in names]
    for name in names:
        kind = _kind(getattr(loaded, name))
        members = ["   :members:", "   :show-inheritance:"] if kind in ("class", "exception") else []
        if members and (hidden := _described_above(getattr(loaded, name), [getattr(loaded, other) for other in names])):
            members.append(f"   :exclude-members: {', '.join(hidden)}")
        lines += ["", f".. auto{kind}:: {module}.{name}", *members]
    return "\n".join([*lines, "```", ""])


def _described_above(kind: type, public: list[Any]) -> list[str]:
    """Return the members that a class takes from a public class of its module and only computes in its own way."""
    bases = [base for base in kind.__mro__[1:] if any(base is item for item in public)]
    return sorted({name for base in bases for name in vars(base) if name in vars(kind) and not name.startswith("_")})


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands below a group; typer has a copy of click's classes that differs between its versions."""
    parts = getattr(command, "commands", None)
    if parts is None:
        yield name, command
        return
    for part, below in parts.items():
        yield from _commands(below, f"{name} {part}")


def _command_page() -> str:
    from qkv.cli.app import app

    lines = ["# Every command and flag", ""]
    lines += ["Every command takes `--help`, `--quiet`, `--verbose` and `--json` ([what it prints](json.md))."]
    for name, command in _commands(get_command(app), "qkv"):
        lines += ["", f"## {name}", "", _prose(command.help or "")]
        if rows := [_flag_row(parameter) for parameter in command.params]:
            lines += ["", "| argument | meaning | default |", "|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def _prose(text: str) -> str:
    """The help of a command: its example becomes a block of code."""
    head, found, example = inspect.cleandoc(text).partition("Example: ")
    return head.strip() + (f"\n\n```sh\n{example.strip()}\n```" if found else "")


def _flag_row(parameter: Any) -> str:
    names = ", ".join(f"`{option}`" for option in parameter.opts)
    default = parameter.default
    plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool)
    shown = f"`{default}`" if plain else ""
    return f"| {names} | {_cell(parameter.help or '')} | {shown} |"


def _cell(text: str) -> str:
    """A text for people within a table: no column, tag or emphasis begins in it."""
    return re.sub(r"([|<*])", r"\\\1", " ".join(text.split()))


def _settings_page() -> str:
    lines = [
        "# Every setting",
        "",
        "Each setting is a flag of `qkv train TASK` (`--batch-tokens`), an argument of `qkv.train` (`batch_tokens=`), "
        "and a line of a settings file (`batch_tokens = 2048` under `[training]`). `qkv train TASK --print-config` "
        "prints all settings of a task as TOML, in these tables, and `--config run.toml` reads them back; flags win. "
        "An unknown setting is an error that names the closest one.",
    ]
    for task in TASKS.values():
        lines += ["", f"## qkv train {task.name}"]
        for table, settings in task.tables.items():
            lines += [
                "",
                f"### [{table}] to {task.name}",
                "",
                "| setting | meaning and default | range |",
                "|---|---|---|",
            ]
            lines += [_setting_row(task, settings, name) for name in options_of(settings)]
    return "\n".join([*lines, ""])


def _setting_row(task: TaskSettings, table: type, name: str) -> str:
    return f"| `{name}` | {_cell(task.help_of(name))} | {range_of(table, name)} |"
