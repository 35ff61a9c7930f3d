"""What `qkv regress` writes: a table of predictions and the ends of their intervals."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.data.table import FieldTable, parse_table_in_parts, skipped_text
from qkv.system import stdin_is_terminal
from qkv.tasks.answering import STDIN, Answers, Lines, answered
from qkv.tasks.as_trained import with_columns
from qkv.tasks.drawing import Drawing
from qkv.tasks.notes import as_json, note
from qkv.tasks.regress.data import separator_in
from qkv.tasks.regress.predict import Prediction, Regressor, Rows, covered
from qkv.tasks.regress.settings import RegressAnswers, RegressRequest
from qkv.tasks.runs import load_model
from qkv.tasks.settings import columns_of
from qkv.tasks.streams import csv_text, format_json, format_lines, stream_stdin


def open_answers(runs: Sequence[Path], settings: RegressAnswers) -> Answers:
    """Load a regression, see `qkv.tasks.task.OpenAnswers`. It reads standard input as a table."""
    regressor: Regressor = load_model(runs[0], task="regress")
    drawing = Drawing(settings.attention, terminal=settings.show)
    table = settings if settings.curve is not None else with_columns(settings, columns_of(regressor.table))
    how = _how(settings)
    ends = settings.interval != "none"
    skipped = 0

    def answer(part: FieldTable | Rows, _: int) -> list[Prediction]:
        nonlocal skipped
        rows = part
        if isinstance(part, FieldTable):
            rows, lacking = regressor.rows_of(part, table)
            skipped += lacking
        if drawing.active:
            drawing.add(regressor.alignments(rows))
        return regressor.predict_fully(rows, **how)

    def predicted(_: Iterable[Lines], __: Path | None = None) -> Iterator[str]:
        total = without = beyond = 0
        for first, results in answered("predicting", _parts(regressor, table), answer):
            if as_json():
                yield from format_json(_objects(regressor, results, ends=ends))
            else:
                yield format_lines(_lines(regressor, results, ends=ends, header=first == 1))
            total += len(results)
            without += sum(math.isnan(result.low) for result in results)
            beyond += sum(not result.supported for result in results)
        _report(regressor, settings, total, without, beyond)
        if skipped:
            note(f"qkv: {STDIN}: {skipped_text(skipped, skipped + total)}")
        if settings.picture is not None:
            from qkv.tasks.regress.picture import save_picture  # matplotlib

            save_picture(regressor, settings.picture, **how)

    def requested(rows: Sequence[Sequence[float]], request: RegressRequest) -> list[Mapping[str, object]]:
        predictions = regressor.predict_fully(rows, **_how(request))
        return list(_objects(regressor, predictions, ends=request.interval != "none"))

    return Answers(predicted, drawing, requested=requested)


def _report(regressor: Regressor, settings: RegressAnswers, total: int, without: int, beyond: int) -> None:
    """Say what the intervals cover, how many rows have none, and which predictions are not the kernel's."""
    ends = settings.interval != "none"
    if ends and total:
        note(f"qkv: low and high: {covered(settings.interval, settings.level, settings.simultaneous)}.")
    if beyond:
        what = {"nearest": "the nearest point's target", "mean": "the mean of all targets", "nan": "empty"}
        told = f"their prediction is {what[regressor.estimator.beyond]}"
        note(f"qkv: {beyond:,} of {total:,} rows are out of the support of the training points: {told}.")
    if ends and without:
        reason = "they are far from all training points, or a single one has all the weight"
        note(f"qkv: {without:,} of {total:,} predictions have no interval: {reason}.")


def _how(settings: RegressRequest) -> dict[str, Any]:
    names = ("interval", "level", "seed", "simultaneous")
    return {name: getattr(settings, name) for name in names}


def _parts(regressor: Regressor, settings: RegressAnswers) -> Iterable[FieldTable | Rows]:
    if settings.curve is not None:
        return [regressor.curve(settings.curve)]
    line_buffered = settings.line_buffered or stdin_is_terminal()
    return parse_table_in_parts(stream_stdin(), STDIN, separator_in(settings), line_buffered=line_buffered)


def _objects(regressor: Regressor, predictions: list[Prediction], *, ends: bool) -> Iterator[dict[str, object]]:
    for prediction in predictions:
        interval = {"low": prediction.low, "high": prediction.high} if ends else {}
        yield {**dict(zip(regressor.x, prediction.x, strict=True)), str(regressor.y): prediction.y, **interval}


def _cell(item: float | str) -> str:
    return item if isinstance(item, str) else "" if math.isnan(item) else f"{item:.10g}"


def _lines(regressor: Regressor, predictions: list[Prediction], *, ends: bool, header: bool) -> list[str]:
    rows: list[list[str]] = [[*regressor.x, str(regressor.y), *(("low", "high") if ends else ())]] if header else []
    for prediction in predictions:
        numbers = (*prediction.x, prediction.y, *((prediction.low, prediction.high) if ends else ()))
        rows.append([_cell(number) for number in numbers])
    return csv_text(rows).splitlines()
