"""What `qkv point` writes: positions, or the elements there."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qkv.tasks.answering import Answers, Lines, format_answers
from qkv.tasks.drawing import Drawing
from qkv.tasks.point.predict import ElementPointer, Pointing
from qkv.tasks.point.settings import PointAnswers
from qkv.tasks.tokenizing import UnknownCounter


def open_answers(runs: Sequence[Path], settings: PointAnswers) -> Answers:
    """Load a pointer network, see `qkv.tasks.task.OpenAnswers`."""
    pointer = ElementPointer.load(runs[0], settings.device)
    drawing = Drawing(settings.attention, terminal=settings.show)

    def as_lines(answers: Sequence[Pointing]) -> Iterator[str]:
        for pointing in answers:
            yield " ".join(map(str, pointing.positions) if settings.write == "positions" else pointing.chosen)

    def pointed(parts: Iterable[Lines], file: Path | None = None) -> Iterator[str]:
        unknown = UnknownCounter(0, "elements")

        def answer(lines: Lines, first: int) -> list[Pointing]:
            results = pointer.point_fully(lines, beam=settings.beam, attention=drawing.active, first=first)
            if pointer.vocabulary is not None:
                unknown.add(pointer.vocabulary.ids(result.elements) for result in results)
            return results

        yield from format_answers("pointing", parts, answer, as_lines, drawing, file)
        unknown.report(file)

    return Answers(pointed, drawing)
