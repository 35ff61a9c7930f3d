"""One update of the weights: the gradient of its batches, summed in an order that no number of processes changes."""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from qkv.errors import DataError
from qkv.training.faults import not_finite, show_lines
from qkv.training.optimizer import clip_gradient, scale_gradient
from qkv.training.precision import computing
from qkv.training.processes import Node, Processes, Tree, part_seed
from qkv.training.schedules import learning_rate
from qkv.training.seeds import seed_everything
from qkv.training.training_session import TrainingSession


class Gradient(NamedTuple):
    """The loss of an update's batches; the gradient itself is stored with the parameters.

    Attributes:
        batches: the examples of each.
        loss: summed over units.
        units: how many there are.
    """

    batches: Sequence[Sequence[int]]
    loss: float
    units: int


@final
class Updates:
    """Updates the weights of a session.

    Args:
        session: the session.
        processes: those that compute an update together.
    """

    def __init__(self, session: TrainingSession, processes: Processes) -> None:
        self._session, self._processes = session, processes
        self._job, self._settings = session.job, session.job.settings
        self.parameters = [p for p in self._job.model.parameters() if p.requires_grad]
        self._device = self.parameters[0].device

    def differentiate(self, step: int) -> Gradient:
        """Compute the gradient of the next batches, summed over their units.

        Args:
            step: number of the update.

        Raises:
            TrainingError: a loss is not finite.
            DataError: the batches have nothing to learn.
        """
        pieces = self._settings.parts or 1
        batches = self._session.feed.take(self._settings.accumulate)
        # Every so many examples, so that the parts of a batch have about equal lengths; a small batch has empty ones.
        parts = [batch[first::pieces] for batch in batches for first in range(pieces)] if pieces > 1 else batches
        self._job.model.zero_grad(set_to_none=True)
        in_tree = self._session.state.sums == "tree"
        rows = self._in_tree(parts, step) if in_tree else [self._backward(part, step) for part in parts]
        # Losses are added one after another, in whichever order gradients are.
        loss, count = sum(row[0] for row in rows), int(sum(row[1] for row in rows))
        if count < 1:
            lines = show_lines(self._job.task.lines([index for batch in batches for index in batch]))
            hint = "Remove these lines."
            raise DataError("training data", "at least one token to learn in every batch", f"nothing in {lines}", hint)
        return Gradient(batches, loss, count)

    def apply(self, gradient: Gradient, step: int) -> tuple[float, float]:
        """Change the weights.

        Args:
            gradient: of this update.
            step: its number.

        Returns:
            The learning rate, and the norm of the gradient before clipping.

        Raises:
            TrainingError: the norm is not finite.
        """
        scale_gradient(self.parameters, 1 / gradient.units)
        norm = clip_gradient(self.parameters, self._settings.clip)
        if not math.isfinite(norm):
            raise not_finite(self._job.task, gradient.batches, step, "norm of the gradient", norm)
        rate = learning_rate(self._settings, step)
        for group in self._session.optimizer.param_groups:
            group["lr"] = rate
        self._session.optimizer.step()
        state = self._session.state
        state.step, state.tokens = step, state.tokens + gradient.units
        return rate, norm

    def _backward(self, indices: Sequence[int], step: int) -> tuple[float, float]:
        """Add the gradient of one batch, and return its loss and number of units."""
        batch = self._job.task.collate(indices)
        with computing(self._session.state.precision, self._device):
            loss, count = self._job.task.objective(batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise not_finite(self._job.task, [indices], step, "loss", value)
        loss.backward()
        return value, count

    def _in_tree(self, parts: Sequence[Sequence[int]], step: int) -> list[list[float]]:
        """Sum gradients in the order of a tree; each part has its own seed, so that any process can compute it."""
        tree, rows = Tree(), list[tuple[float, float]]()
        present = [False] * len(self.parameters)
        for number in self._processes.part(len(parts)):
            self._job.model.zero_grad(set_to_none=True)
            seed_everything(part_seed(self._settings.seed, step, number))
            rows.append(self._backward(parts[number], step) if len(parts[number]) else (0.0, 0))
            present = [p.grad is not None or before for p, before in zip(self.parameters, present, strict=True)]
            tree.add(Node(number, 0, _vectors(self.parameters)))
        seed_everything(part_seed(self._settings.seed, step, len(parts)))
        rows_of_all = self._processes.gather(rows, len(parts))
        self._set(self._processes.total(tree, len(parts)), self._processes.any(present))
        return rows_of_all

    def _set(self, vectors: list[Tensor], present: Sequence[bool]) -> None:
        """Set the gradients from their sums; a parameter that no batch used has none."""
        parts = {
            dtype: iter(torch.split(vector, [p.numel() for p in group]))
            for vector, (dtype, group) in zip(vectors, _by_dtype(self.parameters).items(), strict=True)
        }
        for parameter, used in zip(self.parameters, present, strict=True):
            part = next(parts[parameter.dtype])
            parameter.grad = part.view_as(parameter) if used else None


def _by_dtype(parameters: Sequence[nn.Parameter]) -> dict[torch.dtype, list[nn.Parameter]]:
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return groups


def _vectors(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients as one vector for each dtype; 0 for a parameter that the batch did not use."""
    return [
        torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in group])
        for group in _by_dtype(parameters).values()
    ]
