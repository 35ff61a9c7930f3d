"""`qkv point`: point at elements of standard input."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.output_files import PICTURES, expect_output_file


@guarded
def point(
    run: f.Run,
    beam: Annotated[int, typer.Option(help="Beam width; 1 is greedy.")] = 1,
    write: Annotated[str, typer.Option(help="What to write: positions (default) or elements.")] = "positions",
    attention: Annotated[Path | None, f.drawn("the probabilities")] = None,
    show: Annotated[bool, f.shown("the probabilities")] = False,
    line_buffered: f.LineBuffered = False,
    device: f.OnDevice = "cpu",
) -> None:
    """Point at elements of standard input, one line per example. Writes positions, counted from 1.

    Example: echo "30 10 20" | qkv point runs/sort --show
    """
    from qkv.errors import expect_name
    from qkv.tasks.answering import answered, parts_of_stdin
    from qkv.tasks.drawing import Drawing, alignments
    from qkv.tasks.notes import as_json
    from qkv.tasks.point.predict import ElementPointer, Pointing
    from qkv.tasks.streams import write_lines, write_results
    from qkv.tasks.tokenizing import UnknownCounter

    expect_output_file("--attention", attention, PICTURES)
    expect_name("--write", write, ("positions", "elements"))
    pointer = ElementPointer.load(run, device)
    drawing = Drawing(attention, terminal=show)

    def answer(lines: list[str], first: int) -> list[Pointing]:
        return pointer.point_fully(lines, beam=beam, attention=drawing.active, first=first)

    unknown = UnknownCounter(0, "elements")
    for first, results in answered("pointing", parts_of_stdin(line_buffered=line_buffered), answer):
        if as_json():
            write_results(results, first)
        else:
            write_lines(" ".join(map(str, each.positions) if write == "positions" else each.chosen) for each in results)
        drawing.add(alignments(results))
        if pointer.vocabulary is not None:
            unknown.add(pointer.vocabulary.ids(each.elements) for each in results)
    unknown.tell()
    drawing.finish()
