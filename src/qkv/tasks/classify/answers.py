"""What `qkv classify` writes: labels of texts and their probabilities."""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

from qkv.tasks.answering import Answers, line_answers
from qkv.tasks.classify.predict import Classification, Classifier
from qkv.tasks.classify.settings import ClassifyAnswers
from qkv.tasks.drawing import Drawing
from qkv.tasks.runs import load_model
from qkv.tasks.tokenizing import UnknownCounter, unknown_name


def open_answers(runs: Sequence[Path], settings: ClassifyAnswers) -> Answers:
    """Load a model that labels lines, see `qkv.tasks.task.OpenAnswers`."""
    classifier: Classifier = load_model(runs[0], settings.device, "classify")
    drawing = Drawing(settings.attention, terminal=settings.show)

    def as_lines(answer: Classification) -> Iterator[str]:
        if settings.probabilities:
            yield "\t".join(f"{label}={share:.4f}" for label, share in answer.probabilities.items())
        else:
            yield f"{answer.label}\t{answer.probabilities[answer.label]:.4f}"

    unknown = partial(UnknownCounter, unknown_name(classifier.tokenizer))
    return line_answers("classifying", classifier.classify_fully, as_lines, drawing, unknown, attrgetter("tokens"))
