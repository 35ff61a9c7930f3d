"""Training a classifier or tagger: the task in the form that `qkv.training` expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batches import (
    NO_LABEL,
    Example,
    collate_sources,
    device_of,
    inference_batches,
    restore_order,
    token_batches,
)
from qkv.decode.likeliest import expect_numbers
from qkv.metrics.figure import Figure
from qkv.metrics.labels import LabelReport, label_report, span_report
from qkv.metrics.matches import accuracy, macro_f1
from qkv.metrics.spans import names_spans, span_f1
from qkv.models.reader import TextClassifier, TextTagger
from qkv.tasks.classify.data import EncodedText, LabeledText
from qkv.tasks.notes import counted

if TYPE_CHECKING:
    from qkv.tasks.recipe import RecipeSettings

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


@final
@dataclass(frozen=True)
class LabelTask:
    """Labeled texts, a model and its evaluation.

    Args:
        model: the model to train.
        text: what is trained and validated on.
        settings: of the training.
    """

    model: ReaderModel
    text: LabeledText
    settings: "RecipeSettings[Any, Any]"

    @property
    def unit(self) -> str:
        """The unit that the objective counts."""
        return "labels"

    def batches(self, *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
        """Batch texts of about equal length."""
        examples = [Example(item.ids, (), item.line) for item in self.text.train]
        return token_batches(examples, tokens, seed, epoch, self.settings.training.batch_size)

    def collate(self, indices: Sequence[int]) -> LabelBatch:
        """Stack texts, on the model's device."""
        return stack([self.text.train[index] for index in indices], self.text.tokenizer.pad, device_of(self.model))

    def objective(self, batch: LabelBatch) -> tuple[Tensor, int]:
        """Compute the smoothed cross entropy of each label."""
        scores = label_scores(self.model, batch)
        loss = F.cross_entropy(
            scores.float().flatten(0, -2),
            batch.labels.flatten(),
            ignore_index=NO_LABEL,
            reduction="sum",
            label_smoothing=self.settings.training.label_smoothing,
        )
        return loss, batch.known

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers of texts in the user's file."""
        return [self.text.train[index].line for index in indices]

    def validate(self) -> list[Figure]:
        """Compute accuracy, F1 and loss on the validation texts."""
        labels, valid = self.text.labels, self.text.valid
        results = predict(self.model, valid, self.text.tokenizer.pad)
        predicted = [[labels[int(number)] for number in scores.argmax(-1)] for scores in results]
        truth = [[labels[number] for number in item.labels] for item in valid]
        right = torch.cat([torch.tensor(item.labels, dtype=torch.int64, device="cpu") for item in valid])
        loss = float(F.cross_entropy(torch.cat(results).double(), right))
        return [*judge_labels(predicted, truth), Figure("loss", loss, "nats per label", higher_is_better=False)]


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
