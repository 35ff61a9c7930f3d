"""A decoded sequence, as a value."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hypothesis:
    """A decoded target for one source.

    Args:
        ids: the tokens, without the begin and end tokens.
        score: the sum of the log-probabilities of `ids`, and of the end token if the sequence is finished; in nats.
        finished: whether the model ended the sequence itself; False if the limit cut it.
        log_probabilities: the terms of `score` in order, that of the end token last.
        ranked: the score normalized by length, by which a beam search ranked it; None without a beam.
        row: the row of the batch in which a beam search took its last step; None without a beam.

    Example:
        >>> Hypothesis(ids=(7, 9), score=-0.75, log_probabilities=(-0.25, -0.25, -0.25)).finished
        True
    """

    ids: tuple[int, ...]
    score: float
    finished: bool = True
    log_probabilities: tuple[float, ...] = ()
    ranked: float | None = None
    row: int | None = field(default=None, compare=False)
