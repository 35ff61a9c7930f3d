"""The interface between training and a task."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from qkv.metrics.figure import Figure

B = TypeVar("B")


class Task(Protocol[B]):
    """A model's data, objective and evaluation. Training never looks into a batch."""

    @property
    def unit(self) -> str:
        """The unit that the objective counts, in the plural: "tokens"."""

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]]:
        """Group the examples of one epoch.

        Args:
            tokens: size of a batch in tokens, padding included.
            seed: the run's seed.
            epoch: from 0.

        Returns:
            The indices of the examples of each batch. It must be a pure function of the arguments: resuming relies on
            that.
        """

    def collate(self, indices: Sequence[int]) -> B:
        """Build a batch of examples, on the model's device.

        Args:
            indices: indices of its examples.

        Returns:
            The batch.
        """

    def objective(self, batch: B) -> tuple[Tensor, int]:
        """Compute the loss.

        Args:
            batch: built by `collate`.

        Returns:
            The loss, a differentiable scalar summed over units (tokens, for example), and the number of units.
        """

    def validate(self) -> Sequence[Figure]:
        """Evaluate the model on held-out data, in evaluation mode without gradients; generators are restored
        afterwards.

        Returns:
            Figures, the most important one first; can be empty.
        """

    def lines(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the line numbers of examples in the user's files.

        Args:
            indices: indices of the examples.

        Returns:
            The line number of each, from 1.
        """
