"""A decoded sequence, as a value."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hypothesis:
    """What a decoder found for one source.

    Args:
        ids: the tokens, without the begin and end marks.
        score: the sum of the log-probabilities of `ids`, and of the end mark where the sequence is finished; in nats.
        finished: whether the model ended the sequence itself; False where the limit cut it.
        log_probabilities: the parts of `score` in order, the end mark's last.
        ranked: by what a beam search ranked it: `score` normalized by length; None where nothing was ranked.
        row: the row of the batch in which a beam search took its last step; None where a source has one row.

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
