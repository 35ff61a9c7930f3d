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
    from qkv.tasks.streams import aligned, write_json, write_lines
    from qkv.training.screen import show_figures

    with working("looking for runs"):
        overviews = overview.runs(folder)
    if as_json():
        write_json(run.to_json_value() for run in overviews)
    elif len(overviews) == 1:
        write_lines(overviews[0].lines())
    elif overviews:
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
        write_lines(aligned([("run", "task", "model", "trained on", "trained", "best"), *rows]))
    else:
        note(f"qkv: no run in {folder}: train one, for example by qkv demo")
