"""What `qkv classify` writes: labels of texts and their probabilities."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qkv.tasks.answering import Answers, Lines, format_answers
from qkv.tasks.classify.predict import Classification, Classifier
from qkv.tasks.classify.settings import ClassifyAnswers
from qkv.tasks.drawing import Drawing
from qkv.tasks.tokenizing import UnknownCounter, unknown_name


def open_answers(runs: Sequence[Path], settings: ClassifyAnswers) -> Answers:
    """Load a model that labels lines, see `qkv.tasks.task.OpenAnswers`."""
    classifier = Classifier.load(runs[0], settings.device)
    drawing = Drawing(settings.attention, terminal=settings.show)
    count = len(classifier.labels) if settings.probabilities else 1

    def as_lines(answers: Sequence[Classification]) -> Iterator[str]:
        for classification in answers:
            yield _line(list(classification.probabilities.items())[:count], named=settings.probabilities)

    def classified(parts: Iterable[Lines], file: Path | None = None) -> Iterator[str]:
        unknown = UnknownCounter(unknown_name(classifier.tokenizer))

        def answer(lines: Lines, first: int) -> list[Classification]:
            results = classifier.classify_fully(lines, attention=drawing.active, first=first)
            unknown.add(result.tokens for result in results)
            return results

        yield from format_answers("classifying", parts, answer, as_lines, drawing, file)
        unknown.report(file)

    return Answers(classified, drawing)


def _line(shares: list[tuple[str, float]], *, named: bool) -> str:
    if named:
        return "\t".join(f"{label}={share:.4f}" for label, share in shares)
    label, share = shares[0]
    return f"{label}\t{share:.4f}"
