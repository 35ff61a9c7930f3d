"""`qkv point`: point at elements of standard input."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import PICTURES, expect_output_file
from qkv.tasks.translate.settings import DecodingSettings


@guarded
def point(
    run: f.Run,
    beam: Annotated[int, f.decoding("beam")] = DecodingSettings.beam,
    write: Annotated[str, typer.Option(help="What to write: positions (default) or elements.")] = "positions",
    attention: Annotated[Path | None, f.picture_option("the probabilities")] = None,
    show: Annotated[bool, f.terminal_option("the probabilities")] = False,
    line_buffered: f.LineBuffered = False,
    device: f.OnDevice = "cpu",
) -> None:
    """Point at elements of standard input, one line per example. Writes positions, counted from 1.

    Example: echo "30 10 20" | qkv point runs/sort --show
    """
    from qkv.errors import expect_name, setting
    from qkv.tasks.answering import format_answers, parts_of_stdin
    from qkv.tasks.drawing import Drawing
    from qkv.tasks.point.predict import ElementPointer, Pointing
    from qkv.tasks.streams import write_text
    from qkv.tasks.tokenizing import UnknownCounter

    expect_output_file("attention", attention, PICTURES)
    expect_name(setting("write"), write, ("positions", "elements"))
    pointer = ElementPointer.load(run, device)
    drawing = Drawing(attention, terminal=show)

    unknown = UnknownCounter(0, "elements")

    def answer(lines: list[str], first: int) -> list[Pointing]:
        results = pointer.point_fully(lines, beam=beam, attention=drawing.active, first=first)
        if pointer.vocabulary is not None:
            unknown.add(pointer.vocabulary.ids(result.elements) for result in results)
        return results

    def as_lines(answers: Sequence[Pointing]) -> Iterator[str]:
        for pointing in answers:
            yield " ".join(map(str, pointing.positions) if write == "positions" else pointing.chosen)

    parts = parts_of_stdin(line_buffered=line_buffered)
    write_text(format_answers("pointing", parts, answer, as_lines, drawing))
    unknown.report()
    drawing.finish()
