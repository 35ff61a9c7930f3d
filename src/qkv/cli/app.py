"""The subcommands of `qkv`; each has its own file."""

from typing import Annotated

import typer

from qkv._version import VERSION
from qkv.cli.align import align
from qkv.cli.demo import demo
from qkv.cli.evaluate import evaluate
from qkv.cli.explain import explain
from qkv.cli.export import export
from qkv.cli.generate import generate
from qkv.cli.label import classify, tag
from qkv.cli.point import point
from qkv.cli.regress import regress
from qkv.cli.train import train_translate
from qkv.cli.train_labels import train_classify, train_tag
from qkv.cli.train_point import train_point
from qkv.cli.train_regress import train_regress
from qkv.cli.train_text import train_generate
from qkv.cli.translate import translate
from qkv.cli.view import view

app = typer.Typer(
    name="qkv",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
train = typer.Typer(name="train", no_args_is_help=True, help="Train a model from text files; again to resume.")

app.command()(demo)
app.add_typer(train)
train.command("translate")(train_translate)
train.command("classify")(train_classify)
train.command("tag")(train_tag)
train.command("generate")(train_generate)
train.command("point")(train_point)
train.command("regress")(train_regress)
app.command()(translate)
app.command()(generate)
app.command()(classify)
app.command()(tag)
app.command()(point)
app.command()(regress)
app.command()(evaluate)
app.command()(export)
app.command()(align)
app.command()(view)
app.command()(explain)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"qkv {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Any attention mechanism, exact and fast: train models with it from text files, and inspect its weights."""
