"""The subcommands of `qkv`; each has its own file."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from qkv._version import VERSION
from qkv.cli.align import align
from qkv.cli.demo import demo
from qkv.cli.evaluate import ANY_FLAGS, EvaluateCommand, evaluate
from qkv.cli.explain import explain
from qkv.cli.export import export
from qkv.cli.generate import generate
from qkv.cli.label import classify, tag
from qkv.cli.paths import CommandOfPaths
from qkv.cli.point import point
from qkv.cli.regress import regress
from qkv.cli.train import command_of, prepare_command
from qkv.cli.translate import translate
from qkv.cli.view import view


class RootGroup(TyperGroup):
    """The group `qkv`, whose help shows `train` first: typer lists groups after all commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of their help."""
        return sorted(self.commands, key=lambda name: name != "train")


app = typer.Typer(
    name="qkv",
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class TrainCommands(Mapping[str, Any]):
    """The commands of `qkv train` by task, made when they are asked for, so that no other command waits for them."""

    def __getitem__(self, task: str) -> Any:
        return command_of(task)

    def __iter__(self) -> Iterator[str]:
        from qkv.tasks.catalog import TASKS

        return iter(TASKS)

    def __len__(self) -> int:
        return len(list(iter(self)))


class TrainGroup(TyperGroup):
    """The group `qkv train`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = TrainCommands()  # type: ignore[assignment]  # it is only read


train = typer.Typer(
    name="train", cls=TrainGroup, no_args_is_help=True, help="Train a model from text files; again to resume."
)

TRAIN, USE, LOOK, DEPLOY = "Train", "Use", "Look", "Deploy"
app.add_typer(train, rich_help_panel=TRAIN)
app.command("prepare", cls=CommandOfPaths, rich_help_panel=TRAIN)(prepare_command)
app.command(cls=CommandOfPaths, rich_help_panel=TRAIN)(demo)
_USES: tuple[Any, ...] = (translate, generate, classify, tag, point, regress)
_LOOKS: tuple[Any, ...] = (view, align, explain)
for command in _USES:
    app.command(cls=CommandOfPaths, rich_help_panel=USE)(command)
app.command("evaluate", cls=EvaluateCommand, context_settings=ANY_FLAGS, rich_help_panel=USE)(evaluate)
for command in _LOOKS:
    app.command(cls=CommandOfPaths, rich_help_panel=LOOK)(command)
app.command(cls=CommandOfPaths, rich_help_panel=DEPLOY)(export)


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
