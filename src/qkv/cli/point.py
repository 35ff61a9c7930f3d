"""`qkv point`: point at elements of standard input."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.place import PICTURES, expect_place


@guarded
def point(
    run: Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")],
    beam: Annotated[int, typer.Option(help="Beam width; 1 is greedy.")] = 1,
    write: Annotated[str, typer.Option(help="What to write: positions (default) or elements.")] = "positions",
    attention: Annotated[
        Path | None, typer.Option(help="Also draw the probabilities: FILE.html, FILE.svg or FILE.png.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Also draw the probabilities in the terminal, on standard error.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
) -> None:
    """Point at elements of standard input, one line per example. Writes positions, counted from 1.

    Example: echo "30 10 20" | qkv point runs/sort --show
    """
    from qkv.errors import ConfigError, error_message, nearest
    from qkv.tasks.element_pointer import ElementPointer
    from qkv.tasks.streams import read_stdin, write_lines

    expect_place("--attention", attention, PICTURES)
    if write not in ("positions", "elements"):
        hint = nearest(write, ("positions", "elements"))
        raise ConfigError(error_message("--write", '"positions" or "elements"', f'"{write}"', hint))
    pointer = ElementPointer.load(run, device)
    looks = show or attention is not None
    found = pointer.point_fully(read_stdin(), beam=beam, attention=looks)
    write_lines(" ".join(map(str, each.positions) if write == "positions" else each.chosen) for each in found)
    if looks:
        from qkv.tasks.drawing import draw_pointing

        draw_pointing(found, attention, terminal=show)
