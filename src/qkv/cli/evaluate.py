"""`qkv evaluate`: score a trained model on files."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder that training wrote, or one checkpoint in it.")],
    source: Annotated[Path | None, typer.Option(help="Source sentences, one per line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    data: Annotated[Path | None, typer.Option(help="Or one file with source<TAB>target on each line.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the translations to this file.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
) -> None:
    """Score a model: sacreBLEU with its signature, chrF and exact match, by the code that training uses.

    Example: qkv evaluate runs/de-en --source test.de --target test.en
    """
    from qkv.tasks.evaluation import evaluate_translation
    from qkv.tasks.parallel import Files

    files = Files(source=source, target=target, data=data)
    for figure in evaluate_translation(run, files, device, out):
        typer.echo(f"{figure.name}\t{figure.value:.4f}\t{figure.signature}")
