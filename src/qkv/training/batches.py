"""The batches of an epoch, in an order that is a pure function of seed and epoch."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, final

from qkv.errors import CheckpointError, DataError, setting
from qkv.training.protocols import Batches, Task
from qkv.training_settings import Settings


@final
class ListedBatches:
    """Batches in a list.

    Args:
        batches: the indices of the examples of each.

    Example:
        >>> batches = ListedBatches([[2, 0], [1]])
        >>> batches.at(1), batches.after(1) == batches.end
        ([1], True)
    """

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self._batches = batches

    @property
    def end(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def at(self, position: int) -> Sequence[int]:
        """Return a batch."""
        return self._batches[position]

    def after(self, position: int) -> int:
        """Return the next position."""
        return position + 1

    def total(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def fingerprint(self) -> str:
        """Return a sha256 of the list."""
        return sha256(json.dumps([list(batch) for batch in self._batches]).encode()).hexdigest()


def batches_of(task: Task[Any], settings: Settings, epoch: int) -> Batches:
    """Group the examples of an epoch.

    Args:
        task: groups them.
        settings: batch size, seed.
        epoch: from 0.

    Raises:
        DataError: there are none.
    """
    grouped = task.batches(tokens=settings.batch_tokens, seed=settings.seed, epoch=epoch)
    batches = grouped if isinstance(grouped, Batches) else ListedBatches(grouped)
    if not batches.end:
        hint = "Check the training files."
        raise DataError("training data", "at least one batch", "none", hint)
    return batches


def first_batches(task: Task[Any], settings: Settings, count: int) -> list[Sequence[int]]:
    """Return the examples of the first batches of a training; of few batches, the same again.

    Raises:
        DataError: there are none.
    """
    batches, position, first = batches_of(task, settings, 0), 0, list[Sequence[int]]()
    while len(first) < count:
        first.append(batches.at(position))
        position = batches.after(position)
        position = 0 if position >= batches.end else position
    return first


def expect_same_batches(batches: Batches, epoch: int, position: int, fingerprint: str) -> None:
    """Refuse to resume with other data than before.

    Args:
        batches: those of the epoch.
        epoch: its number.
        position: that of the next batch.
        fingerprint: that of the batches before.

    Raises:
        CheckpointError: the batches differ, or none has the position.
    """
    if fingerprint != batches.fingerprint() or not _is_position(batches, position):
        hint = "Give the same training data as before, or another " + setting("out") + "."
        expected = f"the batches of epoch {epoch} that this run was trained on"
        raise CheckpointError("training data", expected, "others", hint)


def _is_position(batches: Batches, position: int) -> bool:
    """Return whether a batch, or the end of the epoch, has this position."""
    try:
        return position == batches.end or bool(batches.at(position))
    except LookupError:
        return False
