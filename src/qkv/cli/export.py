"""`qkv export`: export a trained model for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded


@guarded
def export(
    run: f.Run,
    to: Annotated[str, typer.Option(help="ctranslate2 (Transformers that it computes), onnx or transformers.")],
    out: Annotated[Path, typer.Option(help="Output folder; must not exist yet.")],
) -> None:
    """Export a trained model to CTranslate2, ONNX Runtime or transformers.

    Example: qkv export runs/de-en --to onnx --out de-en-onnx
    """
    from qkv.tasks import exporting
    from qkv.tasks.notes import working
    from qkv.tasks.streams import write

    with working("exporting"):
        files = [out / name for name in exporting.export(run, to, out)]
    write(({"file": file} for file in files), map(str, files))
