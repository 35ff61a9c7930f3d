"""`qkv regress`: predict the target of rows from standard input."""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import PICTURES, expect_output_file
from qkv.data.choices import Decimal
from qkv.tasks.regress.settings import LEVEL

if TYPE_CHECKING:
    from qkv.tasks.regress.predict import Array, Prediction, Regressor


@guarded
def regress(
    run: f.Run,
    curve: Annotated[
        int | None,
        typer.Option(help="Instead of reading rows, predict this many points over the range of the first column."),
    ] = None,
    interval: Annotated[str, typer.Option(help="Confidence interval: normal (default), bootstrap or none.")] = "normal",
    level: Annotated[float, typer.Option(help="Probability that the interval covers the smoothed curve.")] = LEVEL,
    seed: Annotated[int, typer.Option(help="With --interval bootstrap: random seed.")] = 0,
    decimal: Annotated[str, typer.Option(help="What separates decimals in the rows: point or comma.")] = "point",
    picture: Annotated[
        Path | None, typer.Option(help="Also draw points, curve and interval: FILE.svg or FILE.png.")
    ] = None,
    attention: Annotated[
        Path | None, typer.Option(help="Also draw which points each prediction attends to: FILE.html, .svg or .png.")
    ] = None,
    show: Annotated[bool, f.terminal_option("the attention")] = False,
    line_buffered: f.LineBuffered = False,
) -> None:
    """Predict the target of the rows of a CSV table from standard input; writes CSV with the interval's ends.

    The first line names the columns, or all fields are numbers in the order of training.

    Example: echo 75 | qkv regress runs/rent --show
    """
    from qkv.data.table import FieldTable, parse_table_in_parts
    from qkv.errors import ConfigError, expect_name, setting
    from qkv.tasks.answering import answered
    from qkv.tasks.drawing import Drawing
    from qkv.tasks.notes import as_json, note
    from qkv.tasks.regress.predict import Regressor
    from qkv.tasks.streams import stdin_is_terminal, stream_stdin, write_json, write_lines

    expect_output_file("picture", picture, (".svg", ".png"))
    expect_output_file("attention", attention, PICTURES)
    read: Decimal = expect_name(setting("decimal"), decimal, get_args(Decimal))
    if curve is not None and read != "point":
        hint = f"{setting('curve')} reads no rows: omit one of them."
        raise ConfigError(setting("decimal"), "rows to read", setting("curve"), hint)
    regressor = Regressor.load(run)
    drawing = Drawing(attention, terminal=show)
    parts: Iterable[FieldTable | Array]
    if curve is not None:
        parts = [regressor.curve(curve)]
    else:
        buffered = line_buffered or stdin_is_terminal()
        parts = parse_table_in_parts(stream_stdin(), "standard input", line_buffered=buffered)
    total = without = 0

    def answer(part: "FieldTable | Array", _: int) -> "list[Prediction]":
        rows = regressor.rows_of(part, read) if isinstance(part, FieldTable) else part
        if drawing.active:
            drawing.add(regressor.alignments(rows))
        return regressor.predict_fully(rows, interval=interval, level=level, seed=seed)

    for first, results in answered("predicting", parts, answer):
        if as_json():
            write_json(_objects(regressor, results, interval))
        else:
            write_lines(_lines(regressor, results, interval, header=first == 1))
        total += len(results)
        without += sum(math.isnan(result.low) for result in results)
    if interval != "none" and without:
        reason = "they are far from all training points, or a single one has all the weight"
        note(f"qkv: {without:,} of {total:,} predictions have no interval: {reason}.")
    drawing.finish()
    if picture is not None:
        from qkv.tasks.regress.picture import save_picture

        save_picture(regressor, picture, interval=interval, level=level, seed=seed)


def _objects(regressor: "Regressor", predictions: "list[Prediction]", interval: str) -> Iterator[dict[str, object]]:
    for prediction in predictions:
        ends = {} if interval == "none" else {"low": prediction.low, "high": prediction.high}
        yield {**dict(zip(regressor.x, prediction.x, strict=True)), str(regressor.y): prediction.y, **ends}


def _lines(regressor: "Regressor", predictions: "list[Prediction]", interval: str, *, header: bool) -> list[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    ends = interval != "none"
    if header:
        writer.writerow([*regressor.x, regressor.y, *(("low", "high") if ends else ())])
    for prediction in predictions:
        numbers = (*prediction.x, prediction.y, *((prediction.low, prediction.high) if ends else ()))
        writer.writerow(["" if math.isnan(number) else f"{number:.10g}" for number in numbers])
    return buffer.getvalue().splitlines()
