"""`qkv export`: export a trained model for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def export(
    run: Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")],
    to: Annotated[str, typer.Option(help="ctranslate2 (translation Transformers) or onnx.")],
    out: Annotated[Path, typer.Option(help="Output folder; must not exist yet.")],
) -> None:
    """Export a trained model to CTranslate2 or ONNX Runtime.

    Example: qkv export runs/de-en --to onnx --out de-en.onnx
    """
    from qkv.tasks import exporting

    for name in exporting.export(run, to, out):
        typer.echo(out / name)
