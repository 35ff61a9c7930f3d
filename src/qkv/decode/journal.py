"""The record of a decoding: which row got which token at which step."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.decode.hypothesis import Hypothesis
from qkv.errors import QkvError, error_message


@dataclass(frozen=True)
class Journal:
    """Collects steps of a shrinking batch and hands out one hypothesis per original row.

    Example:
        >>> journal = Journal(rows=2)
        >>> journal.note(torch.tensor([0, 1]), torch.tensor([5, 2]), torch.tensor([-0.5, -0.25]))
        >>> journal.note(torch.tensor([0]), torch.tensor([2]), torch.tensor([-1.0]))
        >>> [(found.ids, found.score) for found in journal.hypotheses(eos=2)]
        [((5,), -1.5), ((), -0.25)]
    """

    rows: int
    steps: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def note(self, rows: Tensor, tokens: Tensor, gains: Tensor) -> None:
        """Keep one step.

        Args:
            rows: the original row of each row that still runs (R,), int64.
            tokens: what each chose (R,), int64.
            gains: the log-probability of each choice (R,), nats.

        Raises:
            QkvError: the model's scores are not numbers.
        """
        if torch.isnan(gains).any():
            row = int(rows[torch.isnan(gains)][0])
            raise QkvError(
                error_message(
                    "model",
                    "scores that are numbers",
                    f"NaN for row {row} at step {len(self.steps)}",
                    "The parameters hold NaN or Inf: take an earlier checkpoint.",
                )
            )
        self.steps.append((rows, tokens, gains))

    def hypotheses(self, eos: int) -> list[Hypothesis]:
        """Read the journal by row.

        Args:
            eos: the end mark; it ends a hypothesis and is not among its ids.

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
