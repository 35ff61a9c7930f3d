"""What `qkv regress` writes: a table of predictions and the ends of their intervals."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.data.table import FieldTable, parse_table_in_parts
from qkv.tasks.answering import STDIN, Answers, Lines, answered
from qkv.tasks.drawing import Drawing
from qkv.tasks.notes import as_json, note
from qkv.tasks.regress.predict import Array, Prediction, Regressor
from qkv.tasks.regress.settings import RegressAnswers, RegressRequest
from qkv.tasks.streams import format_json, format_lines, stdin_is_terminal, stream_stdin


def open_answers(runs: Sequence[Path], settings: RegressAnswers) -> Answers:
    """Load a regression, see `qkv.tasks.task.OpenAnswers`. It reads standard input as a table."""
    regressor = Regressor.load(runs[0])
    drawing = Drawing(settings.attention, terminal=settings.show)
    how = _how(settings)
    ends = settings.interval != "none"

    def answer(part: FieldTable | Array, _: int) -> list[Prediction]:
        rows = regressor.rows_of(part, settings.decimal) if isinstance(part, FieldTable) else part
        if drawing.active:
            drawing.add(regressor.alignments(rows))
        return regressor.predict_fully(rows, **how)

    def predicted(_: Iterable[Lines], __: Path | None = None) -> Iterator[str]:
        total = without = 0
        for first, results in answered("predicting", _parts(regressor, settings), answer):
            if as_json():
                yield from format_json(_objects(regressor, results, ends=ends))
            else:
                yield format_lines(_lines(regressor, results, ends=ends, header=first == 1))
            total += len(results)
            without += sum(math.isnan(result.low) for result in results)
        if ends and without:
            reason = "they are far from all training points, or a single one has all the weight"
            note(f"qkv: {without:,} of {total:,} predictions have no interval: {reason}.")
        if settings.picture is not None:
            from qkv.tasks.regress.picture import save_picture  # matplotlib

            save_picture(regressor, settings.picture, **how)

    def requested(rows: Sequence[Sequence[float]], request: RegressRequest) -> list[Mapping[str, object]]:
        predictions = regressor.predict_fully(rows, **_how(request))
        return list(_objects(regressor, predictions, ends=request.interval != "none"))

    return Answers(predicted, drawing, requested=requested)


def _how(settings: RegressRequest) -> dict[str, Any]:
    return {"interval": settings.interval, "level": settings.level, "seed": settings.seed}


def _parts(regressor: Regressor, settings: RegressAnswers) -> Iterable[FieldTable | Array]:
    if settings.curve is not None:
        return [regressor.curve(settings.curve)]
    return parse_table_in_parts(stream_stdin(), STDIN, line_buffered=settings.line_buffered or stdin_is_terminal())


def _objects(regressor: Regressor, predictions: list[Prediction], *, ends: bool) -> Iterator[dict[str, object]]:
    for prediction in predictions:
        interval = {"low": prediction.low, "high": prediction.high} if ends else {}
        yield {**dict(zip(regressor.x, prediction.x, strict=True)), str(regressor.y): prediction.y, **interval}


def _lines(regressor: Regressor, predictions: list[Prediction], *, ends: bool, header: bool) -> list[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if header:
        writer.writerow([*regressor.x, regressor.y, *(("low", "high") if ends else ())])
    for prediction in predictions:
        numbers = (*prediction.x, prediction.y, *((prediction.low, prediction.high) if ends else ()))
        writer.writerow(["" if math.isnan(number) else f"{number:.10g}" for number in numbers])
    return buffer.getvalue().splitlines()
