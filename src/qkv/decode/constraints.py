"""Constraints on what a model writes: n-grams that must not occur again, and a prefix that is given."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from qkv.decode.protocol import State, Stepper, fork, regroup
from qkv.linalg.session import DecodingSession


def repeating(written_RT: Tensor, ngram: int, size: int) -> Tensor:
    """Find the tokens that would complete an n-gram for the second time.

    Args:
        written_RT: the tokens so far (R, T), int64; those before the first one of a row are negative.
        ngram: n, at least 1.
        size: N, the number of tokens.

    Returns:
        (R, N), bool.

    Source: Paulus et al. 2018, "A Deep Reinforced Model for Abstractive Summarization", section 2.5.

    Example:
        >>> repeating(torch.tensor([[3, 0, 1, 3]]), ngram=2, size=4)  # 3 was followed by 0
        tensor([[ True, False, False, False]])
    """
    rows, count = written_RT.shape
    if count < ngram:
        return torch.zeros(rows, size, dtype=torch.bool, device=written_RT.device)
    grams = written_RT.unfold(1, ngram, 1)  # (R, T − n + 1, n)
    last = written_RT[:, count - ngram + 1 :]  # (R, n − 1)
    begins = (grams[:, :, :-1] == last[:, None]).all(-1) & (grams >= 0).all(-1)  # (R, T − n + 1)
    # Windows that begin otherwise mark a column that does not count.
    ends = torch.where(begins, grams[:, :, -1], size)
    marked = torch.zeros(rows, size + 1, dtype=torch.bool, device=written_RT.device).scatter_(1, ends, True)
    return marked[:, :size]


class Constrained(NamedTuple):
    """What has been written, and the model's own state.

    Attributes:
        inner: the model's state.
        written: the tokens so far (R, T), a prompt first; negative where a row has none yet.
        forced: the tokens that are given (R, P); negative where the row is free.
        step: how many tokens were chosen.
    """

    inner: Any
    written: Tensor
    forced: Tensor
    step: int


@final
@dataclass(frozen=True, eq=False)
class Constraining:
    """A model that may write some tokens only; log-probabilities stay those of the model.

    Args:
        model: predicts the next token.
        sink: an id that is never chosen. The probability of what may not follow goes to it.
        ngram: no n tokens in a row are written twice; None for no limit.
        prompted: whether the source is a prompt, whose n-grams count too.
        forced: for each row the tokens that it begins with (B, P), int64, filled with negative numbers; None for none.

    Example:
        >>> class Even:  # four tokens, all as likely
        ...     def start(self, source, lengths, session=None):
        ...         return source
        ...     def step(self, tokens, state):
        ...         return torch.zeros(len(tokens), 4), state
        ...     def select(self, state, rows):
        ...         return state[rows]
        >>> from qkv.decode.greedy import greedy
        >>> model = Constraining(Even(), sink=0, ngram=1, forced=torch.tensor([[3]]))
        >>> source, lengths = torch.tensor([[5]]), torch.tensor([1])
        >>> [(row.ids, round(row.score, 2)) for row in greedy(model, source, lengths, bos=0, eos=2, limit=9, never=[0])]
        [((3, 1), -4.16)]
    """

    model: Stepper[Any]
    sink: int
    ngram: int | None = None
    prompted: bool = False
    forced: Tensor | None = None

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> Constrained:
        """Read the source."""
        inner = self.model.start(source, lengths, session)
        rows, count = source.shape
        written = source.new_empty(rows, 0)
        if self.prompted:  # prompts end at the right
            index = torch.arange(count, device=source.device) - (count - lengths)[:, None]  # (R, S)
            written = source.gather(1, index.clamp(min=0)).where(index >= 0, -1)
        return Constrained(inner, written, source.new_empty(rows, 0) if self.forced is None else self.forced, 0)

    def step(self, tokens: Tensor, state: Constrained) -> tuple[Tensor, Constrained]:
        """Predict the next token of those that may follow; the first tokens given are the begin mark."""
        logits, inner = self.model.step(tokens, state.inner)  # (R, N)
        written = torch.cat([state.written, tokens[:, None]], 1) if state.step else state.written
        scores = logits if logits.dtype == torch.float64 else logits.float()
        size = scores.shape[-1]
        banned = torch.zeros_like(scores, dtype=torch.bool)
        if self.ngram is not None:
            banned |= repeating(written, self.ngram, size)
        if state.step < state.forced.shape[1]:
            given = state.forced[:, state.step, None]  # (R, 1)
            banned = torch.where(given < 0, banned, torch.arange(size, device=given.device) != given)
        kept = scores.masked_fill(banned, -torch.inf)
        rest = scores.masked_fill(~banned, -torch.inf).logsumexp(-1, keepdim=True)  # (R, 1)
        if self.sink < size:
            kept[:, self.sink, None] = torch.logaddexp(kept[:, self.sink, None], rest)
        else:
            kept = torch.cat([kept, rest], 1)
        return kept, Constrained(inner, written, state.forced, state.step + 1)

    def select(self, state: Constrained, rows: Tensor) -> Constrained:
        """Take rows."""
        return self._taken(self.model.select(state.inner, rows), state, rows)

    def fork(self, state: Constrained, rows: Tensor, width: int) -> Constrained:
        """Take rows, and turn each into several with the same past."""
        return self._taken(fork(self.model, state.inner, rows, width), state, rows.repeat_interleave(width))

    def regroup(self, state: Constrained, rows: Tensor) -> Constrained:
        """Take rows of a forked state."""
        return self._taken(regroup(self.model, state.inner, rows), state, rows)

    def _taken(self, inner: State, state: Constrained, rows: Tensor) -> Constrained:
        return Constrained(inner, state.written[rows], state.forced[rows], state.step)
