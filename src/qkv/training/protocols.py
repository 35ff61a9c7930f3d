"""The interface between training and a task."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from qkv.metrics.figure import Figure

B = TypeVar("B")


@runtime_checkable
class Batches(Protocol):
    """The batches of one epoch by their positions, for an epoch that is never listed.

    Positions start at 0 and increase from batch to batch, not always by 1.
    """

    @property
    def end(self) -> int:
        """A number beyond the last position; 0 if there is no batch."""

    def at(self, position: int) -> Sequence[int]:
        """Return the indices of the examples of a batch.

        Raises:
            LookupError: no batch has this position.
        """

    def after(self, position: int) -> int:
        """Return the position of the next batch; `end` or more after the last one."""

    def total(self) -> int:
        """Return how many batches there are, which can take a while."""

    def fingerprint(self) -> str:
        """Return a sha256 that no other batches have."""


class Task(Protocol[B]):
    """The data of models, their objective and evaluation. Training treats batches as opaque."""

    @property
    def unit(self) -> str:
        """The unit that the objective counts, in the plural: "tokens"."""

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]] | Batches:
        """Group the examples of one epoch.

        Args:
            tokens: size of a batch in tokens, padding included.
            seed: the run's seed.
            epoch: from 0.

        Returns:
            The indices of the examples of each batch, listed or computed. It must be a pure function of the arguments:
            resuming relies on that.
        """

    def collate(self, indices: Sequence[int], device: torch.device) -> B:
        """Build a batch of examples.

        Args:
            indices: indices of its examples.
            device: that of the model.

        Returns:
            The batch.
        """

    def objective(self, model: Any, batch: B) -> tuple[Tensor, int]:
        """Compute the loss.

        Args:
            model: of the task.
            batch: built by `collate`.

        Returns:
            The loss, a differentiable scalar summed over units (tokens, for example), and the number of units.
        """

    def validate(self, model: Any) -> Sequence[Figure]:
        """Evaluate a model on held-out data.

        Args:
            model: of the task, in evaluation mode without gradients; generators are restored afterwards.

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
