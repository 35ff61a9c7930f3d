"""Where each beam came from: parents and tokens of every step, read backwards."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Trail:
    """Steps of a beam search, each a row for each beam.

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
        """Keep one step.

        Args:
            parents: the row of the step before that each row continues (R,).
            tokens: by which token (R,).
            gains: the token's log-probability (R,).
        """
        self.parents.append(parents.tolist())
        self.tokens.append(tokens.tolist())
        self.gains.append(gains.tolist())

    def back(self, step: int, row: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Read the tokens and log-probabilities that led to a row.

        Args:
            step: after how many steps the row stood there.
            row: which.

        Returns:
            Both from the first token on.
        """
        ids, gains = [], []
        for place in range(step - 1, -1, -1):
            ids.append(self.tokens[place][row])
            gains.append(self.gains[place][row])
            row = self.parents[place][row]
        return tuple(reversed(ids)), tuple(reversed(gains))
