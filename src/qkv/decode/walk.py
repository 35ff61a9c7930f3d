"""Decode one token after another for each row, by any rule that chooses the next one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.decode.likeliest import as_ids, expect_numbers
from qkv.decode.protocol import Hypothesis, State, Stepper
from qkv.errors import ConfigError, ShapeError
from qkv.linalg.session import DecodingSession, opened
from qkv.values.checked import checked

Choose = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Chooses tokens (R,), with their log-probabilities (R,), from scores (R, N), the original row numbers (R,) and the
step."""


def walk(
    model: Stepper[State],
    source: Tensor,
    lengths: Tensor,
    choose: Choose,
    *,
    bos: int,
    eos: int,
    limit: int | Tensor,
    session: DecodingSession | None = None,
) -> list[Hypothesis]:
    """Decode one hypothesis for each row; finished rows leave the batch.

    A row also leaves if the token that is chosen has probability zero. Its hypothesis is then unfinished, without that
    token.

    Args:
        model: predicts the next token.
        source: token ids (B, S), int64.
        lengths: tokens in each row (B,), int64.
        choose: picks the next token of each row that is not finished.
        bos: the begin mark, the first token that the model is given.
        eos: the end token; a row that gets it is finished.
        limit: the largest number of tokens, the end token included; one number, or one for each row (B,).
        session: keeps packed weights and memory for several decodings; None for this one alone.

    Returns:
        One hypothesis per row, in the order of the rows.

    Raises:
        ShapeError: `limit` has another shape.
        QkvError: the model's scores are not numbers.
    """
    limits = as_limits(limit, source)
    journal = StepJournal(rows=source.shape[0])
    if isinstance(limit, int):
        rows, longest = torch.arange(source.shape[0] if limit > 0 else 0, device=source.device), limit
    else:
        rows, longest = (limits > 0).nonzero().squeeze(1), int(limits.max()) if limits.numel() else 0
    if rows.numel() == 0:
        return journal.hypotheses(eos)
    with opened(session) as current:
        state = model.start(source, lengths, current)
        if rows.numel() < source.shape[0]:
            state = model.select(state, rows)
        tokens = torch.full_like(rows, bos)
        for step in range(longest):
            logits, state = model.step(tokens, state)
            tokens, gains = choose(logits, rows, step)
            possible = gains != -torch.inf
            goes_on = possible & (tokens != eos) & (limits[rows] > step + 1)
            # One read for all that a step asks, as each one waits for a GPU.
            are_numbers = gains.isnan().logical_not_().all().long()
            sound, chosen, active = torch.stack([are_numbers, possible.sum(), goes_on.sum()]).tolist()
            if not sound:
                journal.expect_numbers(rows, gains)
            noted = (rows, tokens, gains)
            journal.steps.append(noted if chosen == rows.numel() else _take(noted, possible, chosen))
            if active == 0:
                break
            if active < rows.numel():
                indices = torch.nonzero_static(goes_on, size=active).squeeze(1)
                state = model.select(state, indices)
                rows, tokens = rows[indices], tokens[indices]
    return journal.hypotheses(eos)


def _take(parts: tuple[Tensor, Tensor, Tensor], kept: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Take the `count` rows of each tensor that are kept."""
    indices = torch.nonzero_static(kept, size=count).squeeze(1)
    rows, tokens, gains = (part[indices] for part in parts)
    return rows, tokens, gains


def as_limits(limit: int | Tensor, source: Tensor) -> Tensor:
    """Return one limit for each row.

    Args:
        limit: one number, or one for each row (B,).
        source: the batch (B, S).

    Returns:
        (B,), int64, on the source's device.

    Raises:
        ShapeError: `limit` has another shape.

    Example:
        >>> as_limits(3, torch.zeros(2, 5))
        tensor([3, 3])
    """
    rows = source.shape[0]
    if isinstance(limit, int):
        return torch.full((rows,), limit, dtype=torch.int64, device=source.device)
    if limit.shape == (rows,):
        return limit.to(source.device)
    raise ShapeError(
        "limit",
        f"one number, or one for each of {rows} rows",
        f"shape {tuple(limit.shape)}",
        "Give an int, or a tensor of shape (B,).",
    )


@checked
def as_never(never: Sequence[int], eos: int) -> tuple[int, ...]:
    """Check the ids that may never be chosen.

    Args:
        never: the ids.
        eos: the end token, which must stay possible.

    Returns:
        The ids in order, each once.

    Raises:
        ConfigError: the ids contain the end token, a negative number, or something that is not a whole number.

    Example:
        >>> as_never([1, 0, 1], eos=2)
        (0, 1)
    """
    ids = as_ids("never", never)
    if eos in ids:
        hint = "Leave it out: a text must be able to end."
        raise ConfigError("never", f"ids from 0 on without the end token {eos}", f"{list(ids)}", hint)
    return tuple(sorted(set(ids)))


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
        >>> [(hypothesis.ids, hypothesis.score) for hypothesis in journal.hypotheses(eos=2)]
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
        if gains.isnan().any():
            self.expect_numbers(rows, gains)
        self.steps.append((rows, tokens, gains))

    def expect_numbers(self, rows: Tensor, gains: Tensor) -> None:
        """Raise the error that names the first row whose log-probability is not a number."""
        expect_numbers(gains, f"row {int(rows[gains.isnan()][0])} at step {len(self.steps)}")

    def hypotheses(self, eos: int) -> list[Hypothesis]:
        """Return the hypotheses.

        Args:
            eos: the end token, which finishes a hypothesis and is not among its ids.

        Returns:
            One hypothesis per original row, in the original order.
        """
        tokens: list[list[int]] = [[] for _ in range(self.rows)]
        gains: list[list[float]] = [[] for _ in range(self.rows)]
        # All steps at once: a GPU is waited for with each list.
        parts = [torch.cat(part).tolist() for part in zip(*self.steps, strict=True)]
        for row, token, gain in zip(*parts, strict=True):
            tokens[row].append(token)
            gains[row].append(gain)
        hypotheses = []
        for ids, terms in zip(tokens, gains, strict=True):
            finished = ids[-1:] == [eos]
            hypotheses.append(Hypothesis(tuple(ids[:-1] if finished else ids), sum(terms), finished, tuple(terms)))
        return hypotheses
