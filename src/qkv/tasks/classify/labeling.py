"""Labeled texts as tensors, the answers of a classifier or tagger, and how they are judged."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.batches import NO_LABEL, collate_sources, device_of, inference_batches, restore_order
from qkv.decode.likeliest import expect_numbers
from qkv.metrics.figure import Figure
from qkv.metrics.labels import LabelReport, label_report, span_report
from qkv.metrics.matches import accuracy, macro_f1
from qkv.metrics.spans import names_spans, span_f1
from qkv.models.reader import TextClassifier, TextTagger
from qkv.tasks.classify.data import EncodedText
from qkv.tasks.notes import counted

ReaderModel = TextClassifier | TextTagger
_BATCH_TOKENS = 8192


class LabelBatch(NamedTuple):
    """Texts as tensors.

    Attributes:
        ids: token ids (B, S), int64.
        lengths: (B,), int64.
        begins: first tokens of words (B, W), int64, 0 in the padding.
        labels: labels of words (B, W), int64, −100 in the padding.
        known: how many labels there are.
        features: features for a wide model (B, F), int64; None for other models.
        counts: number of features of each text (B,), int64; None for other models.
    """

    ids: Tensor
    lengths: Tensor
    begins: Tensor
    labels: Tensor
    known: int
    features: Tensor | None = None
    counts: Tensor | None = None


def judge_labels(predicted: Sequence[Sequence[str]], truth: Sequence[Sequence[str]]) -> list[Figure]:
    """Score labels; used by both training and `qkv evaluate`.

    Args:
        predicted: the labels of each text, or of its words.
        truth: the correct labels.

    Returns:
        Accuracy and macro F1 over all labels; preceded by F1 of spans if labels are spans.
    """
    ours, theirs = ([label for text in side for label in text] for side in (predicted, truth))
    figures = [accuracy(ours, theirs), macro_f1(ours, theirs)]
    return [span_f1(predicted, truth), *figures] if names_spans(sorted(set(theirs))) else figures


def report_labels(predicted: Sequence[Sequence[str]], truth: Sequence[Sequence[str]]) -> LabelReport:
    """Compare labels one by one, or spans type by type if labels are spans; arguments as for `judge_labels`."""
    ours, theirs = ([label for text in side for label in text] for side in (predicted, truth))
    return span_report(predicted, truth) if names_spans(sorted(set(theirs))) else label_report(ours, theirs)


@torch.no_grad()
def predict(model: ReaderModel, items: Sequence[EncodedText], padding: int) -> list[Tensor]:
    """Score all labels of texts, in batches of about equal length; the batch changes no answer.

    Args:
        model: in evaluation mode.
        items: the texts; their labels are ignored.
        padding: the padding id.

    Returns:
        The scores of each text (words, labels), on the CPU.

    Raises:
        QkvError: scores are NaN.
    """
    batches = inference_batches([len(item.ids) for item in items], _BATCH_TOKENS)
    results = []
    for batch in counted(batches):
        stacked = stack([items[index] for index in batch], padding, device_of(model))
        scores = label_scores(model, stacked).cpu()
        expect_numbers(scores, f"one of the texts {min(batch) + 1:,} to {max(batch) + 1:,}")
        results.append([scores[row, : len(items[index].begins)] for row, index in enumerate(batch)])
    return restore_order(batches, results)


def stack(items: Sequence[EncodedText], padding: int, device: torch.device) -> LabelBatch:
    """Stack texts as tensors.

    Example:
        >>> stack([EncodedText((5, 6), (0,), (1,), 1)], 0, torch.device("cpu")).labels
        tensor([[1]])
    """
    ids, lengths = collate_sources([item.ids for item in items], padding)
    begins, _ = collate_sources([item.begins for item in items], 0)
    labels, _ = collate_sources([item.labels or (NO_LABEL,) * len(item.begins) for item in items], NO_LABEL)
    features = [item.features for item in items if item.features is not None]  # of all texts, or of none
    wide = list(collate_sources(features, 0)) if features else []
    known = int((labels != NO_LABEL).sum())
    ids, lengths, begins, labels, *wide = (x.to(device) for x in (ids, lengths, begins, labels, *wide))
    return LabelBatch(ids, lengths, begins, labels, known, *wide)


def label_scores(model: ReaderModel, batch: LabelBatch) -> Tensor:
    """Compute logits (B, W, labels); a text to classify counts as one word."""
    if isinstance(model, TextClassifier):
        return model(batch.ids, batch.lengths, batch.features, batch.counts)[:, None]  # type: ignore[no-any-return]
    return model(batch.ids, batch.lengths, batch.begins)  # type: ignore[no-any-return]
