"""`qkv regress`: predict the target of rows from standard input."""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.place import PICTURES, expect_place

if TYPE_CHECKING:
    from qkv.tasks.regressor import Prediction, Regressor


@guarded
def regress(
    run: f.Run,
    curve: Annotated[
        int | None,
        typer.Option(help="Instead of reading rows, predict this many points over the range of the first column."),
    ] = None,
    interval: Annotated[str, typer.Option(help="Confidence interval: normal (default), bootstrap or none.")] = "normal",
    level: Annotated[float, typer.Option(help="Probability that the interval covers the smoothed curve.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Random seed of the bootstrap.")] = 0,
    decimal: Annotated[str, typer.Option(help="What separates decimals in the input: point or comma.")] = "point",
    picture: Annotated[
        Path | None, typer.Option(help="Also draw points, curve and interval: FILE.svg or FILE.png.")
    ] = None,
    attention: Annotated[
        Path | None, typer.Option(help="Also draw which points each prediction attends to: FILE.html, .svg or .png.")
    ] = None,
    show: Annotated[bool, f.shown("the attention")] = False,
) -> None:
    """Predict the target of the rows of a CSV table from standard input; writes CSV with the interval's ends.

    The first line names the columns, or all fields are numbers in the order of training.

    Example: echo 75 | qkv regress runs/rent --show
    """
    from qkv.tasks.notes import as_json, working
    from qkv.tasks.regressor import Regressor, as_decimal
    from qkv.tasks.streams import read_stdin, write_json, write_lines

    expect_place("--picture", picture, (".svg", ".png"))
    expect_place("--attention", attention, PICTURES)
    read = as_decimal(decimal)
    regressor = Regressor.load(run)
    if curve is not None:
        rows = regressor.curve(curve)
    else:
        from qkv.data.table import parse_table

        rows = regressor.rows_of(parse_table(read_stdin(), "standard input"), read)
    with working("predicting"):
        found = regressor.predict_fully(rows, interval=interval, level=level, seed=seed)
    if as_json():
        write_json(_objects(regressor, found, interval))
    else:
        write_lines(_lines(regressor, found, interval))
    if show or attention is not None:
        from qkv.tasks.drawing import draw_alignments

        draw_alignments(regressor.alignments(rows), attention, terminal=show)
    if picture is not None:
        from qkv.tasks.regression_picture import save_picture

        save_picture(regressor, picture, interval=interval, level=level, seed=seed)


def _objects(regressor: "Regressor", found: "list[Prediction]", interval: str) -> Iterator[dict[str, object]]:
    for each in found:
        ends = {} if interval == "none" else {"low": each.low, "high": each.high}
        yield {**dict(zip(regressor.x, each.x, strict=True)), str(regressor.y): each.y, **ends}


def _lines(regressor: "Regressor", found: "list[Prediction]", interval: str) -> list[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    ends = interval != "none"
    writer.writerow([*regressor.x, regressor.y, *(("low", "high") if ends else ())])
    for each in found:
        numbers = (*each.x, each.y, *((each.low, each.high) if ends else ()))
        writer.writerow(["" if math.isnan(number) else f"{number:.10g}" for number in numbers])
    return buffer.getvalue().splitlines()
