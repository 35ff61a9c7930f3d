"""Training a pointer network: the task in the form that `qkv.training` expects, and how its answers are judged."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from qkv.data.pointing import Pointed
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Hypothesis
from qkv.metrics.figure import Figure, require_same_length
from qkv.models.pointer import END, PointerNetwork
from qkv.tasks.notes import counted
from qkv.tasks.point.data import ElementVocabulary, PointLines
from qkv.tasks.point.settings import AnswerOrder, PointFiles

if TYPE_CHECKING:
    from qkv.tasks.recipe import RecipeSettings

_BATCH_ELEMENTS = 8192


class PointBatch(NamedTuple):
    """Lines as tensors.

    Attributes:
        elements: numbers (B, S, F), or ids of words (B, S).
        lengths: (B,), int64.
        previous: `END`, then the target (B, T), int64, 0 in the padding.
        target: the target, then `END` (B, T), int64, −100 in the padding.
        known: how many positions the targets have, `END` included.
    """

    elements: Tensor
    lengths: Tensor
    previous: Tensor
    target: Tensor
    known: int


@final
@dataclass(frozen=True)
class PointTask:
    """Lines with target positions, a model and its evaluation.

    Args:
        model: the model to train.
        text: the lines.
        settings: of the training.
        examples: the sizes of the training lines.
    """

    model: PointerNetwork
    text: PointLines
    settings: "RecipeSettings[PointFiles, Any]"
    examples: list[Example] = field(init=False)

    def __post_init__(self) -> None:
        longest = max(len(item.elements) for item in self.text.train)
        zeros = (0,) * longest  # batches only look at the lengths
        sized = [Example(zeros[: len(item.elements)], item.target, item.line) for item in self.text.train]
        object.__setattr__(self, "examples", sized)

    @property
    def unit(self) -> str:
        """The unit that the objective counts."""
        return "positions"

    def batches(self, *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
        """Batch lines of about equal length."""
        return token_batches(self.examples, tokens, seed, epoch, self.settings.training.batch_size)

    def collate(self, indices: Sequence[int]) -> PointBatch:
        """Stack lines, on the model's device."""
        return stack([self.text.train[index] for index in indices], self.text.vocabulary, device_of(self.model))

    def objective(self, batch: PointBatch) -> tuple[Tensor, int]:
        """Compute the cross entropy of each next position and of the end."""
        return self._loss(batch, self.settings.training.label_smoothing)

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers in the user's file."""
        return [self.text.train[index].line for index in indices]

    def validate(self) -> list[Figure]:
        """Compute the share of right positions and of right answers, and the loss, on the validation lines."""
        text = self.text
        answers = point(self.model, text.valid, text.vocabulary, text.longest)
        sides = [answer.ids for answer in answers], [item.target for item in text.valid]
        return [*judge_positions(*sides, self.settings.data.order), self._validation_loss()]

    def _validation_loss(self) -> Figure:
        total, count = 0.0, 0
        for indices in inference_batches([len(item.elements) for item in self.text.valid], _BATCH_ELEMENTS):
            batch = stack([self.text.valid[index] for index in indices], self.text.vocabulary, device_of(self.model))
            loss, positions = self._loss(batch, 0.0)
            total, count = total + float(loss), count + positions
        return Figure("loss", total / count, "nats per position", higher_is_better=False)

    def _loss(self, batch: PointBatch, smoothing: float) -> tuple[Tensor, int]:
        chances = self.model(batch.elements, batch.lengths, batch.previous).float()
        loss = F.nll_loss(chances.flatten(0, 1), batch.target.flatten(), ignore_index=NO_LABEL, reduction="sum")
        if smoothing:
            # What cannot be pointed at has probability 0 and takes no part in the smoothing.
            possible = chances > -torch.inf
            spread = -chances.masked_fill(~possible, 0).sum(-1) / possible.sum(-1).clamp(min=1)
            real = torch.nonzero_static(batch.target.flatten() != NO_LABEL, size=batch.known)[:, 0]
            loss = (1 - smoothing) * loss + smoothing * spread.flatten()[real].sum()
        return loss, batch.known


def judge_positions(
    predicted: Sequence[Sequence[int]], truth: Sequence[Sequence[int]], order: AnswerOrder = "sequence"
) -> list[Figure]:
    """Score positions; used by both training and `qkv evaluate`.

    Args:
        predicted: the positions pointed at for each line.
        truth: the right ones.
        order: what makes an answer exact: the same "sequence"; the same "cycle", wherever it starts, as for the corners
            of a polygon; or the same "set".

    Returns:
        The share of right positions, each in its place, and of exact answers, in percent.

    Source: cycles: Vinyals et al. 2015, "Pointer Networks", section 4.2, where polygons are compared.

    Example:
        >>> [figure.value for figure in judge_positions([[1, 2], [3, 1, 2]], [[2, 1], [1, 2, 3]], "cycle")]
        [0.0, 100.0]
    """
    count = require_same_length(predicted, truth)
    right = sum(
        a == b
        for positions, expected in zip(predicted, truth, strict=True)
        for a, b in zip(positions, expected, strict=False)
    )
    exact = sum(
        is_exact(list(positions), list(expected), order) for positions, expected in zip(predicted, truth, strict=True)
    )
    total = sum(map(len, truth))
    signature = "" if order == "sequence" else f"order:{order}"
    return [
        Figure("positions", 100 * right / max(1, total), "in place"),
        Figure("exact", 100 * exact / count, signature),
    ]


def is_exact(positions: list[int], expected: list[int], order: AnswerOrder) -> bool:
    """Return whether an answer is the expected one, as `judge_positions` compares them."""
    if order == "set":
        return set(positions) == set(expected)
    if order == "cycle" and positions and len(positions) == len(expected) and expected[0] in positions:
        start = positions.index(expected[0])
        return positions[start:] + positions[:start] == expected
    return positions == expected


def point(
    model: PointerNetwork, items: Sequence[Pointed], vocabulary: ElementVocabulary | None, longest: int, width: int = 1
) -> list[Hypothesis]:
    """Point at elements; the batch changes no answer.

    Args:
        model: in evaluation mode.
        items: the lines; their targets are ignored.
        vocabulary: words to ids; None for numbers.
        longest: most positions of an answer; for a model that points at each element once, their number at most.
        width: beam width; 1 is greedy.

    Returns:
        The best answer for each line.
    """
    batches = inference_batches([len(item.elements) for item in items], max(1, _BATCH_ELEMENTS // width))
    results = []
    for batch in counted(batches):
        stacked = stack([items[index] for index in batch], vocabulary, device_of(model))
        limit = stacked.lengths + 1 if model.config.once else torch.full_like(stacked.lengths, longest + 1)
        inputs = (model, stacked.elements, stacked.lengths)
        if width == 1:
            results.append(greedy(*inputs, bos=END, eos=END, limit=limit))
        else:
            beams = beam(*inputs, bos=END, eos=END, limit=limit, search=Beam(width))
            results.append([best for best, *_ in beams])
    return restore_order(batches, results)


def stack(items: Sequence[Pointed], vocabulary: ElementVocabulary | None, device: torch.device) -> PointBatch:
    """Stack lines as tensors.

    Example:
        >>> stack([Pointed(("big", "small"), (2, 1), 1)], ElementVocabulary(["?", "big"]), torch.device("cpu")).target
        tensor([[2, 1, 0]])
    """
    lengths = torch.tensor([len(item.elements) for item in items], device="cpu")
    previous, _ = collate_sources([(END, *item.target) for item in items], END)
    target, _ = collate_sources([(*item.target, END) for item in items], NO_LABEL)
    if vocabulary is not None:
        elements, _ = collate_sources([vocabulary.ids(item.elements) for item in items], 0)
    else:
        vectors = [torch.as_tensor(item.elements, dtype=torch.float32, device="cpu") for item in items]
        elements = torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True)
    known = sum(len(item.target) + 1 for item in items)
    elements, lengths, previous, target = (tensor.to(device) for tensor in (elements, lengths, previous, target))
    return PointBatch(elements, lengths, previous, target, known)
