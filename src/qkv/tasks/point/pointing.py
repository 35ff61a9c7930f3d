"""Lines of elements as tensors, the answers of a pointer network, and how they are judged."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from qkv.data.batches import NO_LABEL, collate_sources, device_of, inference_batches, restore_order
from qkv.data.pointing import Pointed
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.protocol import Hypothesis
from qkv.metrics.figure import Figure, require_same_length
from qkv.models.pointer import END, PointerNetwork
from qkv.tasks.notes import counted
from qkv.tasks.point.settings import AnswerOrder

BATCH_ELEMENTS = 8192
UNKNOWN = "<unk>"


@final
class ElementVocabulary:
    """Words to ids; None for numbers.

    Args:
        words: known words; the first stands for all others.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def ids(self, words: Iterable[Any]) -> list[int]:
        """Return the id of each word."""
        return [self._ids.get(word, 0) for word in words]


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
    batches = inference_batches([len(item.elements) for item in items], max(1, BATCH_ELEMENTS // width))
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
