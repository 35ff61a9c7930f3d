"""The order of examples: a position among batches that are a pure function of seed and epoch."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, final

from qkv.errors import CheckpointError, DataError, setting
from qkv.training.protocols import Batches, Task
from qkv.training.settings import Settings


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


@final
class Feed:
    """Batches in order, starting at any position of any epoch.

    Args:
        task: groups the examples.
        settings: batch size, seed.
        epoch: first epoch.
        position: that of its next batch: the number of those that are done, if batches are listed.
    """

    def __init__(self, task: Task[Any], settings: Settings, epoch: int = 0, position: int = 0) -> None:
        """Start at a position."""
        self._task, self._settings = task, settings
        self.epoch, self.position = epoch, position
        self._batches = self._list()

    def take(self, count: int) -> list[Sequence[int]]:
        """Advance by some batches, into the next epoch if this one ends.

        Args:
            count: number of batches.

        Returns:
            The indices of the examples of each batch.

        Raises:
            DataError: an epoch has no batches.
        """
        batches = []
        for _ in range(count):
            if self.position >= self._batches.end:
                self.epoch, self.position = self.epoch + 1, 0
                self._batches = self._list()
            batches.append(self._batches.at(self.position))
            self.position = self._batches.after(self.position)
        return batches

    def go_to(self, epoch: int, position: int) -> None:
        """Return to a position.

        Args:
            epoch: its epoch.
            position: that of its next batch.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._batches = self._list()
        self.position = position

    def total(self) -> int:
        """Return the number of the epoch's batches."""
        return self._batches.total()

    def fingerprint(self) -> str:
        """Return a sha256 of the epoch's batches, so that resuming with other data is detected."""
        return self._batches.fingerprint()

    def check(self, fingerprint: str) -> None:
        """Refuse to resume with other data than before.

        Args:
            fingerprint: previous fingerprint of the same epoch.

        Raises:
            CheckpointError: the batches differ.
        """
        if fingerprint != self.fingerprint() or not self._is_position():
            hint = f"Give the same training data as before, or another {setting('out')}."
            expected = f"the batches of epoch {self.epoch} that this run was trained on"
            raise CheckpointError("training data", expected, "others", hint)

    def _is_position(self) -> bool:
        """Return whether a batch, or the end of the epoch, has this position."""
        try:
            return self.position == self._batches.end or bool(self._batches.at(self.position))
        except LookupError:
            return False

    def _list(self) -> Batches:
        grouped = self._task.batches(tokens=self._settings.batch_tokens, seed=self._settings.seed, epoch=self.epoch)
        batches = grouped if isinstance(grouped, Batches) else ListedBatches(grouped)
        if not batches.end:
            hint = "Check the training files."
            raise DataError("training data", "at least one batch", "none", hint)
        return batches
