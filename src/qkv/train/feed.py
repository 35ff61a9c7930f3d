"""Which examples come next: a place in a list that is a pure function of seed and epoch."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, final

from qkv.errors import CheckpointError, DataError, error_message
from qkv.train.protocols import Task
from qkv.train.settings import Settings


@final
class Feed:
    """Batches in order, from any place of any epoch on.

    Args:
        task: which groups the examples.
        settings: size of a batch, seed.
        epoch: to begin with.
        place: number of batches of it that are done.
    """

    def __init__(self, task: Task[Any], settings: Settings, epoch: int = 0, place: int = 0) -> None:
        """Begin at a place."""
        self._task, self._settings = task, settings
        self.epoch, self.place = epoch, place
        self._batches = self._list()

    def take(self, count: int) -> list[Sequence[int]]:
        """Go on by some batches, into the next epoch where this one ends.

        Args:
            count: how many.

        Returns:
            For each the places of its examples.

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
        """Stand at a place again.

        Args:
            epoch: that place's.
            place: number of batches of it that are done.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._batches = self._list()
        self.place = place

    def fingerprint(self) -> str:
        """Stand for the epoch's list by a sha256, so that going on with other data is noticed."""
        return sha256(json.dumps([list(batch) for batch in self._batches]).encode()).hexdigest()

    def check(self, fingerprint: str) -> None:
        """Refuse to go on with other data than before.

        Args:
            fingerprint: of the same epoch, before.

        Raises:
            CheckpointError: the list of batches differs.
        """
        if fingerprint != self.fingerprint() or self.place > len(self._batches):
            hint = "Give the same training data as before, or another --out."
            expected = f"the batches of epoch {self.epoch} that this run was trained on"
            raise CheckpointError(error_message("training data", expected, "others", hint))

    def _list(self) -> Sequence[Sequence[int]]:
        batches = self._task.batches(tokens=self._settings.tokens, seed=self._settings.seed, epoch=self.epoch)
        if not batches:
            hint = "Check the training files."
            raise DataError(error_message("training data", "at least one batch", "none", hint))
        return batches
