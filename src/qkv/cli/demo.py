"""`qkv demo`: learn to read dates in a minute, and show what the model attends to."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, model and pictures.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Number of training steps.", min=1)] = None,
) -> None:
    """Watch a model learn to read dates ("Tue, 3rd of May 2011" → 2011-05-03), and see what it attends to.

    Example: qkv demo
    """
    from qkv.tasks.demo import run_demo

    code = run_demo(out, seed, steps)
    if code:
        raise typer.Exit(code)
