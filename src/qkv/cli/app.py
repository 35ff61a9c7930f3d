"""The subcommands of `qkv`; each has its own file."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from qkv._version import VERSION
from qkv.cli.align import align
from qkv.cli.answer import command_of as answering
from qkv.cli.check import command_of as checking
from qkv.cli.compare import command_of as comparing
from qkv.cli.demo import demo
from qkv.cli.embed import embed
from qkv.cli.evaluate import ANY_FLAGS, EvaluateCommand, evaluate
from qkv.cli.explain import explain
from qkv.cli.export import export
from qkv.cli.flags import DEPLOY, LOOK, TRAIN, USE
from qkv.cli.paths import CommandOfPaths
from qkv.cli.runs import runs
from qkv.cli.serve import serve
from qkv.cli.train import command_of as training
from qkv.cli.train import prepare_command
from qkv.cli.tune import tune
from qkv.cli.view import view


class MadeCommands(Mapping[str, Any]):
    """Commands by name, made when they are asked for, so that no other command waits for them.

    Args:
        names: returns the names, in the order of the help.
        make: makes the command of a name.
    """

    def __init__(self, names: Callable[[], Iterable[str]], make: Callable[[str], Any]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(list(self._names()))


def _trained(_: Iterable[str]) -> Iterable[str]:
    from qkv.tasks.catalog import TASKS

    return TASKS


def _all(fixed: Iterable[str]) -> Iterable[str]:
    from qkv.tasks.catalog import ANSWERS

    # typer lists groups after all commands, but all else needs `train` first.
    return ["train", *ANSWERS, *(name for name in fixed if name != "train")]


def _group(names: Callable[[Iterable[str]], Iterable[str]], make: Callable[[str], Any]) -> type[TyperGroup]:
    """Return a group of the commands that are added to it, and of those that are made when they are asked for.

    Args:
        names: returns the names of all from those of the first, in the order of the help.
        make: makes the command of a name.
    """

    class Group(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            fixed = dict(self.commands)
            # It is only read.
            self.commands = MadeCommands(lambda: names(fixed), lambda name: fixed.get(name) or make(name))  # type: ignore[assignment]

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    return Group


app = typer.Typer(
    name="qkv",
    cls=_group(_all, answering),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add_group(name: str, help: str, make: Callable[[str], Any]) -> None:
    """Add a group with a command for each task that is trained."""
    group = typer.Typer(name=name, cls=_group(_trained, make), no_args_is_help=True, help=help)
    app.add_typer(group, rich_help_panel=TRAIN)


_add_group("train", "Train a model from text files; again to resume.", training)
_add_group("check", "Report what is wrong or odd in the data of a training.", checking)
_add_group("compare", "Train combinations of settings and rank them.", comparing)
app.command("prepare", cls=CommandOfPaths, rich_help_panel=TRAIN)(prepare_command)
app.command(cls=CommandOfPaths, rich_help_panel=TRAIN)(demo)
_LOOKS: tuple[Any, ...] = (runs, view, align, explain, tune)
app.command("evaluate", cls=EvaluateCommand, context_settings=ANY_FLAGS, rich_help_panel=USE)(evaluate)
app.command(cls=CommandOfPaths, rich_help_panel=USE)(embed)
for command in _LOOKS:
    app.command(cls=CommandOfPaths, rich_help_panel=LOOK)(command)
for command in (export, serve):
    app.command(cls=CommandOfPaths, rich_help_panel=DEPLOY)(command)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"qkv {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Any attention mechanism, exact and fast: train models with it from text files, and inspect its weights.

    Before you train: `qkv translate example` and `qkv view example` use a small translator from the package.
    """
