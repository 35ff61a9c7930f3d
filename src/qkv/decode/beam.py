"""Beam search for a whole batch at once, and how it ranks hypotheses of different lengths."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, final, get_args

import torch
from torch import Tensor

from qkv.decode.choices import Normalization, Stop
from qkv.decode.likeliest import expect_numbers, likeliest
from qkv.decode.protocol import Hypothesis, State, Stepper, fork, regroup
from qkv.decode.walk import as_limits, as_never
from qkv.errors import ConfigError, expect_name
from qkv.linalg.session import DecodingSession, opened
from qkv.values.checked import checked
from qkv.values.rows import real_positions

_MAX_PENALTY = 40
"""The largest penalty: a length of a million tokens raised to that power is still finite."""


@final
@checked
@dataclass(frozen=True)
class Ranking:
    """s(Y) = log P(Y) / lp(Y) + cp(Y), with lp = |Y|^α, or Wu's ((5 + |Y|) / 6)^α; |Y| counts the end token too.

    The coverage penalty is cp = β Σ_i log min(Σ_j p_ij, 1), with p_ij the attention weight of source position i at
    target token j. It is 0 if every source position received a total weight of at least 1, and negative otherwise.

    Args:
        length_penalty: α, at least 0: 0 compares log-probabilities, 1 their means per token.
        normalization: "plain" or "wu".
        coverage: β, at least 0.

    Raises:
        ConfigError: an unknown name, or a negative number.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", eq. 14.

    Example:
        >>> Ranking(1.0).score(-3.0, length=4), Ranking(1.0, "wu").score(-3.0, length=4)
        (-0.75, -2.0)
    """

    length_penalty: float = 1.0
    normalization: Normalization = "plain"
    coverage: float = 0.0

    def __post_init__(self) -> None:
        for name, number in (("length_penalty", self.length_penalty), ("coverage", self.coverage)):
            if not 0 <= number <= _MAX_PENALTY:
                raise ConfigError(name, f"from 0 to {_MAX_PENALTY}", f"{number:g}", "0 switches it off.")
        expect_name("normalization", self.normalization, get_args(Normalization))

    def divisor(self, length: int) -> float:
        """Return lp for a length of at least 1."""
        base = length if self.normalization == "plain" else (5 + length) / 6
        return float(base**self.length_penalty)

    def score(self, total: float, length: int, covered: float = 0.0) -> float:
        """Return s(Y).

        Args:
            total: log P(Y).
            length: |Y|, the end token included, at least 1.
            covered: Σ_i log min(Σ_j p_ij, 1).
        """
        return total / self.divisor(length) + self.coverage * covered

    def bound(self, total: float, limit: int) -> float:
        """Return an upper bound of s for all continuations of a hypothesis.

        Log-probabilities only fall, the limit is the largest length to divide by, and the coverage penalty is never
        positive.

        Args:
            total: log P of the hypothesis so far.
            limit: the largest length.
        """
        return total / self.divisor(limit)


def log_coverage(weights_RS: Tensor, lengths: Tensor) -> Tensor:
    """Return Σ_i log min(Σ_j p_ij, 1) over real source positions.

    Args:
        weights_RS: for each row, the attention weight of each source position, summed over target tokens.
        lengths: the number of real source positions (R,).

    Returns:
        (R,), float64; 0 for an empty source.

    Example:
        >>> log_coverage(torch.tensor([[1.5, 0.5, 0.0]]), torch.tensor([2])).exp()
        tensor([0.5000], dtype=torch.float64)
    """
    real = real_positions(lengths, weights_RS.shape[-1])
    return torch.where(real, weights_RS.double().clamp(max=1.0), 1.0).log().sum(-1)


@final
@checked
@dataclass(frozen=True)
class Beam:
    """The settings of a beam search.

    Args:
        width: W, the number of hypotheses that go on at each step.
        n_best: the number of hypotheses returned for each source, from 1 to W.
        ranking: how finished hypotheses are compared.
        stop: "proved" searches until no unfinished hypothesis could enter the n best; "filled" until W are finished,
            which is sooner but may miss a better one.

    Raises:
        ConfigError: a number outside its range, or an unknown name.

    Example:
        >>> Beam(width=5, ranking=Ranking(0.6, "wu")).n_best
        1
    """

    width: int = 5
    n_best: int = 1
    ranking: Ranking = field(default_factory=Ranking)
    stop: Stop = "proved"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError("width", "at least 1", f"{self.width}", "5 suits most models.")
        if not 1 <= self.n_best <= self.width:
            hint = "Widen the beam, or ask for fewer."
            raise ConfigError("n_best", f"from 1 to the width {self.width}", f"{self.n_best}", hint)
        expect_name("stop", self.stop, get_args(Stop))


@torch.inference_mode()
def beam(
    model: Stepper[State],
    source: Tensor,
    lengths: Tensor,
    *,
    bos: int,
    eos: int,
    limit: int | Tensor,
    search: Beam = Beam(),
    attended: Callable[[State], Tensor] | None = None,
    never: Sequence[int] = (),
    session: DecodingSession | None = None,
) -> list[list[Hypothesis]]:
    """Keep the W likeliest hypotheses at each step, and return the best of those that finished.

    At each step all continuations of a source's W hypotheses compete by log-probability. Those among the W best that
    end are finished; the W best of the others go on. Finished hypotheses are ranked by `search.ranking`; of equal ones
    the first to finish comes first. If fewer than n finish within the limit, the best unfinished ones follow. Among
    these are dead ends, whose next tokens all have probability zero or are in `never`.

    The model never sees a finished hypothesis or a dead end. The rows of a source stay together, W of them: if it has
    fewer hypotheses, copies of its likeliest one fill the rest.

    The result for a source does not depend on the rest of the batch, its order or its padding, unless two scores differ
    by less than the rounding of the model's own products. Sources that are done leave the batch.

    Args:
        model: predicts the next token; a module should be in evaluation mode.
        source: token ids (B, S), int64.
        lengths: tokens in each row (B,), int64.
        bos: the begin mark, the first token that the model is given.
        eos: the end token.
        limit: the largest number of tokens, the end token included; one number, or one for each row (B,).
        search: the settings.
        attended: returns the attention weights of each row's newest token (R, S) from a state, for the coverage
            penalty.
        never: ids that are never chosen, whatever their scores; log-probabilities stay those of the model. The end
            token may not be among them.
        session: keeps packed weights and memory for several decodings; None for this one alone.

    Returns:
        For each row its n best hypotheses, the best first; fewer if the vocabulary allows no more.

    Raises:
        ShapeError: `limit` has another shape.
        ConfigError: a coverage penalty without `attended`, or `never` holds the end token.
        QkvError: the model's scores are not numbers.

    Source: Graves 2012, "Sequence Transduction with Recurrent Neural Networks", algorithm 1; Wu et al. 2016, section 7.

    Example:
        >>> class Fixed:  # the next token's probabilities, whatever came before
        ...     def start(self, source, lengths, session=None):
        ...         return source
        ...     def step(self, tokens, state):
        ...         return torch.tensor([0.0, 0.5, 0.3, 0.2]).log().expand(len(tokens), -1), state
        ...     def select(self, state, rows):
        ...         return state[rows]
        >>> source, lengths = torch.tensor([[5]]), torch.tensor([1])
        >>> search = Beam(width=9, n_best=3, ranking=Ranking(length_penalty=0.0))
        >>> (hypotheses,) = beam(Fixed(), source, lengths, bos=0, eos=1, limit=3, search=search)
        >>> [(hypothesis.ids, round(math.exp(hypothesis.score), 2)) for hypothesis in hypotheses]
        [((), 0.5), ((2,), 0.15), ((3,), 0.1)]
    """
    if search.ranking.coverage and attended is None:
        hint = "Use a model with attention, or coverage=0."
        raise ConfigError("coverage", "0 without attention weights", f"{search.ranking.coverage:g}", hint)
    limits = as_limits(limit, source)
    searcher = _Search(model, search, attended, eos, limits.tolist(), as_never(never, eos))
    sources = (limits > 0).nonzero().squeeze(1)
    if sources.numel():
        with opened(session) as current:
            state = model.start(source, lengths, current)
            if sources.numel() < source.shape[0]:
                state = model.select(state, sources)
            searcher.run(_Frontier.first(state, source, lengths, sources, bos))
    return [searcher.best(row) for row in range(source.shape[0])]


@dataclass(frozen=True, eq=False)
class _Frontier(Generic[State]):
    """The hypotheses that the next step extends, w for each of R sources.

    Attributes:
        state: the model's state, R·w rows.
        tokens: the newest tokens (R·w,).
        totals: log-probabilities (R, w), float64; −inf for rows that only pad a source to w.
        indices: the rows of the hypotheses in the last step of the trail (R·w,).
        sources: the original row of each source (R,).
        lengths: the lengths of the sources (R,).
        covered: the total attention weight of each source position so far (R·w, S).
        parents: the row of the previous step that each hypothesis continues (R·w,).
    """

    state: State
    tokens: Tensor
    totals: Tensor
    indices: Tensor
    sources: Tensor
    lengths: Tensor
    covered: Tensor
    parents: Tensor

    @classmethod
    def first(cls, state: State, source: Tensor, lengths: Tensor, sources: Tensor, bos: int) -> "_Frontier[State]":
        totals = torch.zeros(sources.numel(), 1, dtype=torch.float64, device=source.device)
        covered = torch.zeros(sources.numel(), source.shape[1], dtype=torch.float64, device=source.device)
        begin = torch.full_like(sources, bos)
        return cls(state, begin, totals, sources, sources, lengths[sources], covered, sources)


class _Choice(NamedTuple):
    """The continuations that go on and those that end, each (R, W), the likeliest first.

    Entries beyond those that exist have totals of −inf; among those that go on, they repeat the likeliest one.

    Attributes:
        rows, tokens, gains, totals: of those that go on: the row of the frontier, the token, its log-probability, and
            the log-probability of the hypothesis.
        end_rows, end_gains, end_totals: the same of those that end.
        dead: dead ends among the hypotheses of the frontier (R, w).
    """

    rows: Tensor
    tokens: Tensor
    gains: Tensor
    totals: Tensor
    end_rows: Tensor
    end_gains: Tensor
    end_totals: Tensor
    dead: Tensor


@final
@dataclass(frozen=True)
class Trail:
    """The steps of a beam search, as parents and tokens, read backwards to recover a hypothesis.

    Args:
        parents: for each step and row, the row of the previous step that it continues.
        tokens: for each step and row, the token that it added.
        gains: the log-probability of that token.

    Example:
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
            parents: the row of the previous step that each row continues (R,).
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


class _Leaf(NamedTuple):
    """A complete hypothesis.

    Attributes:
        score: by which it is ranked.
        step, trail_row: where it ends in the trail.
        model_row: its row of the model's batch in its last step.
        end_gains: the log-probability of the end token; empty for an unfinished hypothesis.
    """

    score: float
    step: int
    trail_row: int
    model_row: int
    end_gains: tuple[float, ...]


@final
@dataclass(frozen=True, eq=False)
class _Search(Generic[State]):
    """A search: its settings, and the complete hypotheses found so far for each original row."""

    model: Stepper[State]
    search: Beam
    attended: Callable[[State], Tensor] | None
    eos: int
    limits: list[int]
    never: tuple[int, ...]
    trail: Trail = field(default_factory=Trail)
    ended: dict[int, list[_Leaf]] = field(default_factory=dict)
    cut: dict[int, list[_Leaf]] = field(default_factory=dict)

    def run(self, frontier: _Frontier[State]) -> None:
        step = 0
        while True:
            logits_RN, state = self.model.step(frontier.tokens, frontier.state)
            covered = frontier.covered + self.attended(state) if self.attended else frontier.covered
            frontier = replace(frontier, state=state, covered=covered)
            choice = _choose(logits_RN, frontier.totals, self.search.width, self.eos, self.never)
            _check_numbers(choice, frontier.sources, step)
            self._add_finished(frontier, choice, step)
            self._add_dead_ends(frontier, choice, step)
            self.trail.note(frontier.indices[choice.rows.flatten()], choice.tokens.flatten(), choice.gains.flatten())
            step += 1
            continuing = self._continuing(frontier, choice, step)
            if not continuing:
                break
            frontier = self._advance(frontier, choice, continuing, step)

    def best(self, row: int) -> list[Hypothesis]:
        """Return the n best hypotheses of a source, unfinished ones last."""
        leaves = [(leaf, True) for leaf in self.ended.get(row, ())] + [(leaf, False) for leaf in self.cut.get(row, ())]
        ranked = [self._hypothesis(leaf, finished) for leaf, finished in leaves[: self.search.n_best]]
        return ranked or [Hypothesis((), 0.0, finished=False)]

    def _hypothesis(self, leaf: _Leaf, finished: bool) -> Hypothesis:
        ids, gains = self.trail.back(leaf.step, leaf.trail_row)
        parts = (*gains, *leaf.end_gains)
        return Hypothesis(ids, sum(parts), finished, parts, leaf.score, leaf.model_row)

    def _add_finished(self, frontier: _Frontier[State], choice: _Choice, step: int) -> None:
        sources, indices = frontier.sources.tolist(), frontier.indices.tolist()
        for i, j in choice.end_totals.isfinite().nonzero().tolist():
            row = int(choice.end_rows[i, j])
            score = self._score(float(choice.end_totals[i, j]), step + 1, frontier, row, i)
            leaves = self.ended.setdefault(sources[i], [])
            leaves.append(_Leaf(score, step, indices[row], row, (float(choice.end_gains[i, j]),)))
            # The sort is stable: of equal hypotheses the first to finish stays first.
            leaves.sort(key=lambda leaf: -leaf.score)
            del leaves[self.search.width :]

    def _add_dead_ends(self, frontier: _Frontier[State], choice: _Choice, step: int) -> None:
        if step == 0 or not choice.dead.any():
            return
        indices, parents, width = frontier.indices.tolist(), frontier.parents.tolist(), choice.dead.shape[1]
        for i, j in choice.dead.nonzero().tolist():
            row = i * width + j
            score = self._score(float(frontier.totals[i, j]), step, frontier, row, i)
            self._add_unfinished(int(frontier.sources[i]), [_Leaf(score, step, indices[row], parents[row], ())])

    def _add_unfinished(self, source: int, leaves: list[_Leaf]) -> None:
        """Add hypotheses that are not continued, although they have not ended."""
        self.cut[source] = sorted([*self.cut.get(source, ()), *leaves], key=lambda leaf: -leaf.score)

    def _add_at_limit(self, frontier: _Frontier[State], choice: _Choice, i: int, step: int) -> None:
        width, leaves = self.search.width, []
        for j, total in enumerate(choice.totals[i].tolist()):
            if total > -math.inf:
                row = int(choice.rows[i, j])
                leaves.append(_Leaf(self._score(total, step, frontier, row, i), step, i * width + j, row, ()))
        self._add_unfinished(int(frontier.sources[i]), leaves)

    def _score(self, total: float, length: int, frontier: _Frontier[State], row: int, i: int) -> float:
        covered = 0.0
        if self.attended is not None and self.search.ranking.coverage:
            covered = float(log_coverage(frontier.covered[row : row + 1], frontier.lengths[i : i + 1]))
        return self.search.ranking.score(total, length, covered)

    def _continuing(self, frontier: _Frontier[State], choice: _Choice, step: int) -> list[int]:
        """Return the sources that continue after a step; add the unfinished hypotheses of those at their limit."""
        continuing = []
        for i, (source, best) in enumerate(zip(frontier.sources.tolist(), choice.totals.amax(1).tolist(), strict=True)):
            if best > -math.inf and step >= self.limits[source]:
                self._add_at_limit(frontier, choice, i, step)
            elif best > -math.inf and not self._is_settled(self.ended.get(source, []), best, self.limits[source]):
                continuing.append(i)
        return continuing

    def _is_settled(self, ended: list[_Leaf], best: float, limit: int) -> bool:
        if self.search.stop == "filled":
            return len(ended) >= self.search.width
        enough = len(ended) >= self.search.n_best
        return enough and ended[self.search.n_best - 1].score >= self.search.ranking.bound(best, limit)

    def _advance(self, frontier: _Frontier[State], choice: _Choice, sources: list[int], step: int) -> _Frontier[State]:
        width, device = self.search.width, frontier.tokens.device
        continuing = torch.tensor(sources, dtype=torch.int64, device=device)
        rows = choice.rows[continuing].flatten()
        state = (
            fork(self.model, frontier.state, continuing, width)
            if step == 1
            else regroup(self.model, frontier.state, rows)
        )
        indices = (continuing[:, None] * width + torch.arange(width, device=device)).flatten()
        return _Frontier(
            state,
            choice.tokens[continuing].flatten(),
            choice.totals[continuing],
            indices,
            frontier.sources[continuing],
            frontier.lengths[continuing],
            frontier.covered[rows],
            rows,
        )


def _choose(logits_MN: Tensor, totals_Rw: Tensor, width: int, eos: int, never: Sequence[int]) -> _Choice:
    """Choose the best continuations of each source that go on, and those that end among the best of all."""
    # W continuations go on, and one more may be the end token: W + 1 of each row are enough.
    tokens, parts = likeliest(logits_MN, width + 1, never)
    gains = parts.double()
    sources, per_row = totals_Rw.shape[0], tokens.shape[-1]
    dead = (gains[:, 0].view_as(totals_Rw) == -math.inf) & (totals_Rw > -math.inf)
    totals = (totals_Rw.view(-1, 1) + gains).view(sources, -1)
    totals, order = totals.sort(dim=-1, descending=True, stable=True)
    gains, tokens = gains.view(sources, -1).gather(1, order), tokens.view(sources, -1).gather(1, order)
    rows = order // per_row + torch.arange(sources, device=order.device)[:, None] * totals_Rw.shape[1]
    ends = tokens == eos
    continuing = ends.long().argsort(dim=1, stable=True)[:, :width]
    # If there are fewer continuations than W, repeat the last one with a total of −inf.
    missing = width - continuing.shape[1]
    continuing = torch.cat([continuing, continuing[:, -1:].expand(-1, missing)], 1) if missing > 0 else continuing
    continuing_totals = totals.masked_fill(ends, -math.inf).gather(1, continuing)
    if missing > 0:
        continuing_totals[:, -missing:] = -math.inf
    continuing = torch.where(continuing_totals == -math.inf, continuing[:, :1], continuing)
    return _Choice(
        rows.gather(1, continuing),
        tokens.gather(1, continuing),
        gains.gather(1, continuing),
        continuing_totals,
        rows[:, :width],
        gains[:, :width],
        totals.masked_fill(~ends, -math.inf)[:, :width],
        dead,
    )


def _check_numbers(choice: _Choice, sources: Tensor, step: int) -> None:
    # NaN sorts first: among the best that go on, or among the ends if nothing else may be chosen.
    best_2R = torch.stack([choice.totals[:, 0], choice.end_totals[:, 0]])
    wrong = best_2R.isnan().any(0)
    if wrong.any():
        expect_numbers(best_2R, f"row {int(sources[wrong][0])} at step {step}")
