"""The order of examples: a position in a list that is a pure function of seed and epoch."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, final

from qkv.errors import CheckpointError, DataError, setting
from qkv.training.protocols import Task
from qkv.training.settings import Settings


@final
class Feed:
    """Batches in order, starting at any position of any epoch.

    Args:
        task: groups the examples.
        settings: batch size, seed.
        epoch: first epoch.
        place: number of its batches that are done.
    """

    def __init__(self, task: Task[Any], settings: Settings, epoch: int = 0, place: int = 0) -> None:
        """Start at a position."""
        self._task, self._settings = task, settings
        self.epoch, self.place = epoch, place
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
        taken = []
        for _ in range(count):
            if self.place >= len(self._batches):
                self.epoch, self.place = self.epoch + 1, 0
                self._batches = self._list()
            taken.append(self._batches[self.place])
            self.place += 1
        return taken

    def go_to(self, epoch: int, place: int) -> None:
        """Return to a position.

        Args:
            epoch: its epoch.
            place: number of batches of that epoch that are done.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._batches = self._list()
        self.place = place

    def fingerprint(self) -> str:
        """Return a sha256 of the epoch's list of batches, so that resuming with other data is detected."""
        return sha256(json.dumps([list(batch) for batch in self._batches]).encode()).hexdigest()

    def check(self, fingerprint: str) -> None:
        """Refuse to resume with other data than before.

        Args:
            fingerprint: previous fingerprint of the same epoch.

        Raises:
            CheckpointError: the list of batches differs.
        """
        if fingerprint != self.fingerprint() or self.place > len(self._batches):
            hint = f"Give the same training data as before, or another {setting('out')}."
            expected = f"the batches of epoch {self.epoch} that this run was trained on"
            raise CheckpointError("training data", expected, "others", hint)

    def _list(self) -> Sequence[Sequence[int]]:
        batches = self._task.batches(tokens=self._settings.batch_tokens, seed=self._settings.seed, epoch=self.epoch)
        if not batches:
            hint = "Check the training files."
            raise DataError("training data", "at least one batch", "none", hint)
        return batches
