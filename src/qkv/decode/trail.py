"""The steps of a beam search, as parents and tokens, read backwards to recover a hypothesis."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Trail:
    """The steps of a beam search.

    Args:
        parents: for each step and row, the row of the step before that it continues.
        tokens: for each step and row, the token that it added.
        gains: the log-probability of that token.

    Example:
        >>> import torch
        >>> trail = Trail()
        >>> trail.note(torch.tensor([0, 0]), torch.tensor([5, 6]), torch.tensor([-1.0, -2.0]))
        >>> trail.note(torch.tensor([1, 0]), torch.tensor([7, 8]), torch.tensor([-0.5, -0.25]))
        >>> trail.back(step=2, row=0)
        ((6, 7), (-2.0, -0.5))
    """

    parents: list[list[int]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    gains: list[list[float]] = field(default_factory=list)

    def note(self, parents: Tensor, tokens: Tensor, gains: Tensor) -> None:
        """Add a step.

        Args:
            parents: the row of the step before that each row continues (R,).
            tokens: the token that each row adds (R,).
            gains: its log-probability (R,).
        """
        self.parents.append(parents.tolist())
        self.tokens.append(tokens.tolist())
        self.gains.append(gains.tolist())

    def back(self, step: int, row: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return the tokens and log-probabilities that lead to a row, from the first token on.

        Args:
            step: the number of steps up to the row.
            row: its number in the last of them.
        """
        ids, gains = [], []
        for index in range(step - 1, -1, -1):
            ids.append(self.tokens[index][row])
            gains.append(self.gains[index][row])
            row = self.parents[index][row]
        return tuple(reversed(ids)), tuple(reversed(gains))
