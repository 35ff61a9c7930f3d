"""Sequences of ids grouped by length, padded and stacked as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, DataError
from qkv.values.rows import real_positions

FRAME = 2
"""`bos` and `eos`, which `collate` adds to every target."""
NO_LABEL = -1
"""The label that losses ignore. Not the padding token: that of a published model can be its end token."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Example:
    """One source and its target as ids, without `bos` and `eos` around the target.

    Args:
        source: the ids that the encoder reads.
        target: the ids to predict.
        index: identifies the example, usually its position in the corpus.

    Example:
        >>> Example((5, 6), (7,), 0).target
        (7,)
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Examples as tensors, padded with `pad` on the right.

    Args:
        source: ids, (B, S) int64.
        source_lengths: (B,) int64.
        target: ids, `bos` first, then the target, then `eos`, (B, T) int64.
        target_lengths: (B,) int64, including `bos` and `eos`.
        indices: the `index` of each example.
        count: how many tokens of the target follow another one: the labels that count.

    Example:
        >>> batch = collate([Example((5, 6), (7,), 0)], pad=0, bos=1, eos=2)
        >>> batch.target.tolist(), batch.target_lengths.tolist()
        ([[1, 7, 2]], [3])
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor
    indices: tuple[int, ...]
    count: int

    @property
    def labels(self) -> Tensor:
        """The token that follows each of the target but the last, (B, T − 1); `NO_LABEL` from the end of a row on.

        Example:
            >>> batch = collate([Example((5,), (7,), 0), Example((5,), (7, 8), 1)], pad=2, bos=1, eos=2)
            >>> batch.labels.tolist()
            [[7, 2, -1], [7, 8, 2]]
        """
        real = real_positions(self.target_lengths, self.target.shape[1])
        return self.target.masked_fill(~real, NO_LABEL)[:, 1:]

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device.

        Args:
            device: the target device.

        Returns:
            The batch on that device; itself if it is there already.

        Example:
            >>> batch = collate([Example((5, 6), (7,), 0)], pad=0, bos=1, eos=2)
            >>> batch.to("cpu").source.device.type
            'cpu'
        """
        return Batch(
            self.source.to(device),
            self.source_lengths.to(device),
            self.target.to(device),
            self.target_lengths.to(device),
            self.indices,
            self.count,
        )


def token_batches(
    examples: Sequence[Example], tokens: int, seed: int, epoch: int, rows: int | None = None
) -> list[list[int]]:
    """Group examples of about equal length into batches for one epoch of training.

    The result depends only on the lengths, `tokens`, `seed` and `epoch`: resuming within an epoch takes its number and
    the position in the list. The composition and the order of batches change with the epoch.

    Args:
        examples: all examples; only their lengths are used.
        tokens: maximum number of ids, padding, `bos` and `eos` included, in a batch's source and in its target.
        seed: random seed of the order.
        epoch: number of the epoch, from 0.
        rows: number of examples in a batch, whatever their size; None for as many as `tokens` allows.

    Returns:
        The indices of the examples of each batch; each index occurs once.

    Raises:
        DataError: there are no examples.
        ConfigError: an example is longer than `tokens`.

    Example:
        >>> examples = [Example((1,) * n, (1,) * n, n) for n in (3, 9, 3, 8)]
        >>> sorted(sorted(batch) for batch in token_batches(examples, tokens=22, seed=0, epoch=0))
        [[0, 2], [1, 3]]
    """
    if not examples:
        raise DataError("examples", "at least one", "none", "Check the training files.")
    lengths = [(len(example.source), len(example.target) + FRAME) for example in examples]
    widths = [max(pair) for pair in lengths]
    longest = max(range(len(widths)), key=widths.__getitem__)
    if rows is None:
        expect_fitting(tokens, widths[longest], f"example {examples[longest].index}")
    random = Random(f"batches:{seed}:{epoch}")
    noise = [random.random() for _ in examples]
    order = sorted(range(len(examples)), key=lambda index: (widths[index], sum(lengths[index]), noise[index]))
    batches = cut_batches(order, widths, tokens) if rows is None else in_batches(order, rows)
    shuffled = [random.random() for _ in batches]
    return [batches[number] for number in sorted(range(len(batches)), key=shuffled.__getitem__)]


def in_batches(items: Sequence[R], rows: int) -> list[list[R]]:
    """Group items in the given order.

    Args:
        items: examples, their indices, or where windows begin.
        rows: number of items in each batch; the last one can have fewer.

    Example:
        >>> in_batches([4, 0, 8], rows=2)
        [[4, 0], [8]]
    """
    return [list(items[start : start + rows]) for start in range(0, len(items), rows)]


def expect_fitting(tokens: int, widest: int, example: str) -> None:
    """Check that the longest example fits in a batch.

    Args:
        tokens: maximum number of ids of a batch.
        widest: the number of ids of the longest side of an example.
        example: the example.

    Raises:
        ConfigError: it does not fit.

    Example:
        >>> expect_fitting(22, 11, "example 3")
    """
    if widest > tokens:
        got, hint = f"{tokens:,}; {example} alone has {widest:,}", "Raise it, or remove such long texts."
        raise ConfigError("batch_tokens", "at least the size of the longest example", got, hint)


def inference_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Group sequences of about equal length, longest first, deterministically.

    Args:
        lengths: number of ids of each sequence.
        tokens: maximum number of ids per batch, padding included; a longer sequence gets its own batch.

    Returns:
        The indices of the sequences of each batch; each index occurs once.

    Raises:
        ConfigError: `tokens` is less than 1.

    Example:
        >>> inference_batches([2, 9, 3, 1], tokens=6)
        [[1], [2, 0], [3]]
    """
    if tokens < 1:
        raise ConfigError("tokens", "at least 1", str(tokens), "A few thousand suit most machines.")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return cut_batches(order, lengths, tokens)


def restore_order(batches: Sequence[Sequence[int]], results: Sequence[Sequence[R]]) -> list[R]:
    """Restore the original order of results that were computed batch by batch.

    Args:
        batches: the indices, from `inference_batches`.
        results: one result per index, for each batch.

    Returns:
        The result of index 0, of index 1, and so on.

    Example:
        >>> restore_order([[1], [2, 0]], [["b"], ["c", "a"]])
        ['a', 'b', 'c']
    """
    flat = {
        index: result
        for batch, answers in zip(batches, results, strict=True)
        for index, result in zip(batch, answers, strict=True)
    }
    return [flat[index] for index in range(len(flat))]


def collate(
    examples: Sequence[Example], pad: int, bos: int, eos: int, device: torch.device | str | None = None
) -> Batch:
    """Stack examples as tensors.

    Args:
        examples: at least one.
        pad: the padding id.
        bos: the id before every target.
        eos: the id after every target.
        device: where the tensors go.

    Returns:
        The batch.

    Raises:
        DataError: there are no examples.

    Example:
        >>> batch = collate([Example((5, 6), (7,), 0), Example((5,), (7, 8), 1)], pad=0, bos=1, eos=2)
        >>> batch.source.tolist(), batch.target.tolist()
        ([[5, 6], [5, 0]], [[1, 7, 2, 0], [1, 7, 8, 2]])
    """
    source_BS, source_lengths_B = collate_sources([example.source for example in examples], pad, device)
    target_BT, target_lengths_B = collate_sources([(bos, *example.target, eos) for example in examples], pad, device)
    indices = tuple(example.index for example in examples)
    count = sum(len(example.target) + 1 for example in examples)
    return Batch(source_BS, source_lengths_B, target_BT, target_lengths_B, indices, count)


def collate_sources(
    sources: Sequence[Sequence[int]], pad: int, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Stack sequences of ids as one tensor.

    Args:
        sources: at least one sequence.
        pad: the padding id.
        device: where the tensors go.

    Returns:
        The ids (B, S) int64 and the lengths (B,) int64.

    Raises:
        DataError: there are no sequences.

    Example:
        >>> ids, lengths = collate_sources([(5, 6), (7,)], pad=0)
        >>> ids.tolist(), lengths.tolist()
        ([[5, 6], [7, 0]], [2, 1])
    """
    if not sources:
        raise DataError("examples", "at least one", "none", "Skip empty batches.")
    lengths = [len(source) for source in sources]
    longest = max(lengths)
    rows = [[*source, *[pad] * (longest - len(source))] for source in sources]
    ids_BS = torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(sources), longest)
    return ids_BS, torch.tensor(lengths, dtype=torch.int64, device=device)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters, to which its batches go.

    Example:
        >>> device_of(nn.Linear(2, 3))
        device(type='cpu')
    """
    return next(model.parameters()).device


def cut_batches(order: Sequence[int], widths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cut a list of indices into batches whose size, rows times longest row, is at most `tokens`.

    Args:
        order: the indices.
        widths: the length of each index.
        tokens: maximum size of a batch; a longer example gets its own.

    Example:
        >>> cut_batches([0, 1, 2], [2, 3, 4], tokens=6)
        [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    widest = 0
    for index in order:
        widest = max(widest, widths[index])
        if batches and widest * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            widest = widths[index]
    return batches
