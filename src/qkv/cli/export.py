"""`qkv export`: a trained model as files that other programs run."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def export(
    run: Annotated[Path, typer.Argument(help="The folder that training wrote, or one checkpoint in it.")],
    to: Annotated[str, typer.Option(help="ctranslate2 (a Transformer that translates) or onnx.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist yet.")],
) -> None:
    """Write a trained model as CTranslate2 or ONNX Runtime read it.

    Example: qkv export runs/de-en --to onnx --out de-en.onnx
    """
    from qkv.tasks import exporting

    for name in exporting.export(run, to, out):
        typer.echo(out / name)
