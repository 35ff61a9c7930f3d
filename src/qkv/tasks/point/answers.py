"""What `qkv point` writes: positions, or the elements there."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from qkv.tasks.answering import Answers, line_answers
from qkv.tasks.drawing import Drawing
from qkv.tasks.point.predict import ElementPointer, Pointing
from qkv.tasks.point.settings import PointAnswers
from qkv.tasks.runs import load_model
from qkv.tasks.tokenizing import UnknownCounter


def open_answers(runs: Sequence[Path], settings: PointAnswers) -> Answers:
    """Load a pointer network, see `qkv.tasks.task.OpenAnswers`."""
    pointer: ElementPointer = load_model(runs[0], settings.device, "point")
    drawing = Drawing(settings.attention, terminal=settings.show)

    def as_lines(pointing: Pointing) -> Iterator[str]:
        yield " ".join(map(str, pointing.positions) if settings.write == "positions" else pointing.chosen)

    def words(pointing: Pointing) -> Sequence[int]:
        return () if pointer.vocabulary is None else pointer.vocabulary.ids(pointing.elements)

    answer, unknown = partial(pointer.point_fully, beam=settings.beam), partial(UnknownCounter, 0, "elements")
    return line_answers("pointing", answer, as_lines, drawing, unknown, words)
