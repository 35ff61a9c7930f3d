"""Scoring a classifier or a tagger on labeled texts."""

from collections.abc import Callable, Sequence
from typing import Any

from qkv.data.labeled import Unit
from qkv.data.tagged import Tagged
from qkv.tasks.classify.data import as_lines, encode_words
from qkv.tasks.classify.labeling import judge_labels, report_labels
from qkv.tasks.length import naming_line
from qkv.tasks.notes import note
from qkv.tasks.task import Scored
from qkv.tasks.tokenizing import report_unknown

Labels = tuple[str, ...]


def score_labels(
    model: Any,
    texts: Sequence[Tagged],
    data: object,
    answer: Callable[[Sequence[Tagged]], Sequence[Labels]],
    unit: Unit,
) -> Scored:
    """Label texts and compare.

    Args:
        model: a loaded classifier or tagger.
        texts: with their labels. Those that training never saw count as wrong, and are reported on standard error.
        data: where the texts come from, for messages.
        answer: returns the labels of texts.
        unit: what has labels: texts, or the words of sentences.

    Raises:
        DataError: a text is too long.
    """
    unseen = [(text.line, label) for text in texts for label in text.tags if label not in model.labels]
    if unseen:
        line, label = unseen[0]
        count = sum(len(text.tags) for text in texts)
        note(
            f'qkv: {data}:{line}: training never saw the label "{label}"; such labels, {len(unseen):,} of '
            f"{count:,}, count as wrong."
        )
    report_unknown((encode_words(text.words, model.tokenizer)[0] for text in texts), model.tokenizer.unk)
    with naming_line(data, [text.line for text in texts]):
        predicted = answer(texts)
    lines = (line for text, labels in zip(texts, predicted, strict=True) for line in as_lines(text, labels, unit))

    def credits() -> list[float]:
        """Return the share of right labels of each text."""
        return [
            sum(a == b for a, b in zip(text.tags, labels, strict=True)) / max(1, len(labels))
            for text, labels in zip(texts, predicted, strict=True)
        ]

    truth = [text.tags for text in texts]
    return Scored(judge_labels(predicted, truth), lines, {"accuracy": credits}, lambda: report_labels(predicted, truth))
