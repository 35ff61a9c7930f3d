"""`qkv runs`: what was trained in a folder, on what, how well, and how to use it."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[RUN]", help="A run, or a folder with runs.")] = Path(),
) -> None:
    """List what was trained: on what, how well; of one run also its settings, and how to use it.

    Example: qkv runs runs/de-en
    """
    from qkv.tasks import overview
    from qkv.tasks.notes import as_json, note, working
    from qkv.tasks.streams import aligned, write
    from qkv.training.screen import show_figures

    with working("looking for runs"):
        overviews = overview.runs(folder)
    names = ("run", "task", "model", "trained on", "trained", "best")
    rows = [
        (
            str(run.folder),
            run.task,
            run.model,
            run.files.get("text.train", ""),
            run.trained,
            show_figures(run.figures[:1]),
        )
        for run in overviews
    ]
    lines = overviews[0].lines() if len(rows) == 1 else aligned([names, *rows]) if rows else []
    write((run.to_json_value() for run in overviews), lines)
    if not rows and not as_json():
        note(f"qkv: no run in {folder}: train one, for example by qkv demo")
