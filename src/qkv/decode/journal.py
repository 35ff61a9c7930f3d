"""The tokens of a decoding, step by step, and the hypotheses that they make."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.errors import QkvError


@dataclass(frozen=True)
class StepJournal:
    """Collects the steps of a shrinking batch, and returns one hypothesis per original row.

    Args:
        rows: the number of original rows.
        steps: the row numbers, tokens and log-probabilities of each step.

    Example:
        >>> journal = StepJournal(rows=2)
        >>> journal.note(torch.tensor([0, 1]), torch.tensor([5, 2]), torch.tensor([-0.5, -0.25]))
        >>> journal.note(torch.tensor([0]), torch.tensor([2]), torch.tensor([-1.0]))
        >>> [(found.ids, found.score) for found in journal.hypotheses(eos=2)]
        [((5,), -1.5), ((), -0.25)]
    """

    rows: int
    steps: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def note(self, rows: Tensor, tokens: Tensor, gains: Tensor) -> None:
        """Add a step.

        Args:
            rows: the original row number of each row that is still decoded (R,), int64.
            tokens: the chosen tokens (R,), int64.
            gains: their log-probabilities (R,), nats.

        Raises:
            QkvError: the model's scores are not numbers.
        """
        if torch.isnan(gains).any():
            row = int(rows[torch.isnan(gains)][0])
            raise QkvError(
                "model",
                "scores that are numbers",
                f"NaN for row {row} at step {len(self.steps)}",
                "The parameters hold NaN or Inf: take an earlier checkpoint.",
            )
        self.steps.append((rows, tokens, gains))

    def hypotheses(self, eos: int) -> list[Hypothesis]:
        """Return the hypotheses.

        Args:
            eos: the end token, which finishes a hypothesis and is not among its ids.

        Returns:
            One hypothesis per original row, in the original order.
        """
        tokens: list[list[int]] = [[] for _ in range(self.rows)]
        gains: list[list[float]] = [[] for _ in range(self.rows)]
        for step in self.steps:
            for row, token, gain in zip(*(part.tolist() for part in step), strict=True):
                tokens[row].append(token)
                gains[row].append(gain)
        return [_hypothesis(ids, parts, eos) for ids, parts in zip(tokens, gains, strict=True)]


def _hypothesis(ids: list[int], gains: list[float], eos: int) -> Hypothesis:
    finished = bool(ids) and ids[-1] == eos
    return Hypothesis(
        ids=tuple(ids[:-1] if finished else ids),
        score=sum(gains),
        finished=finished,
        log_probabilities=tuple(gains),
    )
