"""What training needs to know of a task, and nothing more."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from qkv.metrics.figure import Figure

B = TypeVar("B")


class Task(Protocol[B]):
    """A model's job: its data, its objective and how it is judged. Training never looks into a batch."""

    @property
    def unit(self) -> str:
        """What the objective counts, in the plural: "tokens"."""

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]]:
        """Group the examples of one epoch.

        Args:
            tokens: size of a batch in tokens, padding included.
            seed: of the run.
            epoch: from 0 on.

        Returns:
            For each batch the places of its examples. A pure function of the arguments: going on after an
            interruption relies on it.
        """

    def collate(self, places: Sequence[int]) -> B:
        """Make the batch of these examples, on the model's device.

        Args:
            places: of its examples.

        Returns:
            The batch.
        """

    def objective(self, batch: B) -> tuple[Tensor, int]:
        """Compute what is to become small.

        Args:
            batch: made by `collate`.

        Returns:
            The loss, a scalar with a gradient, summed over what it counts (tokens, say), and their number.
        """

    def validate(self) -> Sequence[Figure]:
        """Judge the model on held-out data; it is in evaluation mode, without gradients, and chance is put back after.

        Returns:
            Figures, the most important one first; may be empty.
        """

    def lines(self, places: Sequence[int]) -> Sequence[int]:
        """Say on which lines of the user's files examples stand.

        Args:
            places: of the examples.

        Returns:
            For each its line, from 1 on.
        """
