"""Hard monotonic attention: the source position of each target token is a latent variable, summed over exactly.

A target y_1 … y_T has an alignment a_1 ≤ a_2 ≤ … ≤ a_T of source positions, and

    p(y | x) = Σ_a Π_t p(y_t | a_t, y_<t, x) p(a_t | a_{t−1}, y_<t, x),      a_0 = the first position.

The forward algorithm sums over all alignments, in logarithms, for a whole batch. Gradients are autograd's.

| transitions | p(a_t = j given a_{t−1} = i), for j ≥ i | time of all steps | memory |
|---|---|---|---|
| `ZerothOrder` | exp(e_tj) / Σ_{k≥i} exp(e_tk) | B·T·S | B·T·S |
| `FirstOrder` | softmax over the jumps j − i ≤ J of a prediction from i and t | B·T·S·(J + 1) | B·T·S·(J + 1) |

With J = S − 1 the second is any first-order chain.

Source: Wu and Cotterell 2019, "Exact Hard Monotonic Attention for Character-Level Transduction", sections 3 and 4; the
exact sum over alignments: Wu, Shapiro and Cotterell 2018, "Hard Non-Monotonic Attention for Character-Level
Transduction", section 3.
"""

from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ShapeError
from qkv.linalg.matmul import apply_layer
from qkv.nn.inputs import expect_counts, expect_input, expect_integers, expect_sizes
from qkv.nn.scores import build_score, initialize_linear, score_of
from qkv.values.checked import checked
from qkv.values.parameters import expect_floats
from qkv.values.rows import real_positions


class Transitions(Protocol):
    """How the aligned position moves, for B rows, T steps and S positions."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, T and S."""

    def move(self, before: Tensor, step: int) -> Tensor:
        """Sum over the position before a step.

        Args:
            before: log P(a_{t−1} = i), (B, S); −inf for impossible positions.
            step: t, from 0.

        Returns:
            log P(a_t = j), (B, S).
        """


@checked
@final
@dataclass(frozen=True, eq=False)
class ZerothOrder:
    """Transitions whose scores do not depend on the previous position, except that positions never decrease.

    Args:
        scores: e (B, T, S), at least float32.
        lengths: real positions of each row (B,), at least 1.

    Example:
        >>> moves = ZerothOrder(torch.zeros(1, 1, 3), torch.tensor([3]))
        >>> moves.move(torch.tensor([[-torch.inf, 0.0, -torch.inf]]), 0).exp()
        tensor([[0.0000, 0.5000, 0.5000]])
    """

    scores: Tensor
    lengths: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, T and S."""
        rows, steps, positions = self.scores.shape
        return rows, steps, positions

    def move(self, before: Tensor, step: int) -> Tensor:
        """As for `Transitions`. Two cumulative sums replace the sum over pairs of positions."""
        scores_BS, real_BS = self.scores[:, step], real_positions(self.lengths, self.shape[2])
        # Cumulative sums that start with −inf have NaN gradients: padding gets a finite score whose exponential is 0.
        finite_BS = torch.where(real_BS, scores_BS, torch.finfo(scores_BS.dtype).min / 4)
        rest_BS = finite_BS.flip(1).logcumsumexp(1).flip(1)
        arrived_BS = torch.where(real_BS, before - rest_BS, -torch.inf).logcumsumexp(1)
        return torch.where(real_BS, scores_BS + arrived_BS, -torch.inf)


@checked
@final
@dataclass(frozen=True, eq=False)
class FirstOrder:
    """Transitions by jumps of 0 to J positions ahead, with logits that depend on the previous position.

    A jump beyond the last position has probability 0; the others share it.

    Args:
        logits: of the jumps (B, T, S, J + 1), at least float32.
        lengths: real positions of each row (B,), at least 1.

    Example:
        >>> moves = FirstOrder(torch.zeros(1, 1, 3, 2), torch.tensor([3]))
        >>> moves.move(torch.tensor([[0.5, 0.0, 0.5]]).log(), 0).exp()
        tensor([[0.2500, 0.2500, 0.5000]])
    """

    logits: Tensor
    lengths: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, T and S."""
        rows, steps, positions, _ = self.logits.shape
        return rows, steps, positions

    def move(self, before: Tensor, step: int) -> Tensor:
        """As for `Transitions`."""
        positions, jumps = self.logits.shape[2:]
        jump_J = torch.arange(jumps, device=before.device)
        landing_SJ = torch.arange(positions, device=before.device)[:, None] + jump_J
        # Staying is possible even in the padding, where nothing arrives: a row of −inf alone has no softmax.
        possible_BSJ = (landing_SJ < self.lengths[:, None, None]) | (jump_J == 0)
        moves_BSJ = self.logits[:, step].masked_fill(~possible_BSJ, -torch.inf).log_softmax(-1)
        left_BSJ = before[..., None] + moves_BSJ
        arrived = [F.pad(left_BSJ[..., jump], (jump, 0), value=-torch.inf)[:, :positions] for jump in range(jumps)]
        return _log_sum(torch.stack(arrived, -1))


@checked
@final
class MonotonicScores(nn.Module):
    """`ZerothOrder` transitions, e_tj = score(s_t, h_j).

    Args:
        query_width: width of the decoder's states s.
        key_width: width of the encoder's states h.
        hidden: A, the width of an additive score.
        score: "bilinear" as in the paper, "additive", "dot" or "scaled_dot"; for dot products the encoder's states are
            projected to the width of the decoder's.

    Raises:
        ConfigError: the score is unknown.

    Source: Wu and Cotterell 2019, section 3.2.

    Example:
        >>> moves = MonotonicScores(query_width=3, key_width=4, hidden=5)
        >>> keys = moves.project_key(torch.randn(2, 6, 4))
        >>> moves(torch.randn(2, 7, 3), keys, torch.tensor([6, 5])).shape
        (2, 7, 6)
    """

    def __init__(self, query_width: int, key_width: int, hidden: int, score: str = "bilinear") -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width, hidden=hidden)
        self.widths = query_width, key_width
        plain = score in ("dot", "scaled_dot")
        self.narrow = nn.Linear(key_width, query_width, bias=False) if plain else None
        self.score = build_score(score, query_width, query_width if plain else key_width, hidden=hidden)
        initialize_linear(self.narrow)

    def project_key(self, states: Tensor) -> Tensor:
        """Project the encoder's states once per source: (B, S, E) to (B, S, F)."""
        expect_input("states", states, None, self.widths[1], rank=3)
        return score_of(self.score).project_key(states if self.narrow is None else apply_layer(self.narrow, states))

    def forward(self, states: Tensor, keys: Tensor, lengths: Tensor) -> Transitions:
        """Build the transitions.

        Args:
            states: the decoder's (B, T, M).
            keys: from `project_key` (B, S, F).
            lengths: real positions (B,), at least 1.
        """
        expect_input("states", states, None, self.widths[0], rank=3)
        _expect_sources(keys, lengths, len(states))
        scores: Tensor = score_of(self.score).projected()(score_of(self.score).project_query(states), keys)
        return ZerothOrder(wide(scores), lengths)


@checked
@final
class MonotonicJumps(nn.Module):
    """`FirstOrder` transitions with the logits U [s_t; h_i] for the jumps from position i.

    Args:
        query_width: width of the decoder's states s.
        key_width: width of the encoder's states h.
        jumps: J, the longest jump.

    Source: Wu and Cotterell 2019, section 3.3; the authors' code has jumps of at most 5.

    Example:
        >>> moves = MonotonicJumps(query_width=3, key_width=4, jumps=2)
        >>> moves(torch.randn(2, 7, 3), moves.project_key(torch.randn(2, 6, 4)), torch.tensor([6, 5])).shape
        (2, 7, 6)
    """

    def __init__(self, query_width: int, key_width: int, jumps: int) -> None:
        super().__init__()
        expect_sizes(query_width=query_width, key_width=key_width)
        expect_counts(jumps=jumps)
        self.jumps = jumps
        self.from_state = nn.Linear(query_width, jumps + 1)
        self.from_memory = nn.Linear(key_width, jumps + 1, bias=False)
        initialize_linear(self.from_state, self.from_memory)

    def project_key(self, states: Tensor) -> Tensor:
        """Compute the part of the logits that depends on the position: (B, S, E) to (B, S, J + 1)."""
        expect_input("states", states, self.from_memory, rank=3)
        return apply_layer(self.from_memory, states)

    def forward(self, states: Tensor, keys: Tensor, lengths: Tensor) -> Transitions:
        """Build the transitions; arguments as for `MonotonicScores`."""
        expect_input("states", states, self.from_state, rank=3)
        expect_input("keys", keys, None, self.jumps + 1, rank=3)
        _expect_sources(keys, lengths, len(states))
        return FirstOrder(wide(apply_layer(self.from_state, states)[:, :, None] + keys[:, None]), lengths)


def _expect_sources(keys: Tensor, lengths: Tensor, rows: int) -> None:
    """Check that there are keys and a length for each row of states."""
    expect_floats("keys", keys, 3)
    if len(keys) != rows:
        raise ShapeError("keys", f"{rows} rows, as many as states", f"{len(keys)}", "Each row has a source of its own.")
    expect_integers("lengths", lengths, (rows,), "(B,)", (1, keys.shape[1]))


def wide(x: Tensor) -> Tensor:
    """Return float32 or float64 numbers: logarithms of sums lose too much precision in half types."""
    return x if x.dtype == torch.float64 else x.float()


def first_position(transitions: Transitions, like: Tensor) -> Tensor:
    """Return log P(a_0), which is all at the first position.

    Args:
        transitions: for B and S.
        like: a tensor of the dtype and device to use.

    Returns:
        (B, S).
    """
    rows, _, positions = transitions.shape
    log_alpha = like.new_full((rows, positions), -torch.inf)
    log_alpha[:, 0] = 0.0
    return log_alpha


def predicted_alignment(transitions: Transitions, before: Tensor, observed: Tensor) -> Tensor:
    """Predict the position of each token from the tokens before it, by the forward algorithm.

    Args:
        transitions: of T steps.
        before: log P(a_0 = i), (B, S).
        observed: log p(y_t | a_t = j) of the tokens that are given (B, T − 1 or more, S). A step of zeros observes
            nothing.

    Returns:
        log P(a_t = j | y_1 … y_{t−1}), (B, T, S).

    Example:
        >>> moves = ZerothOrder(torch.zeros(1, 2, 2), torch.tensor([2]))
        >>> observed = torch.tensor([[[0.75, 0.25]]]).log()
        >>> predicted_alignment(moves, first_position(moves, observed), observed).exp()
        tensor([[[0.5000, 0.5000],
                 [0.3750, 0.6250]]])
    """
    alignments: list[Tensor] = []
    for step in range(transitions.shape[1]):
        if step:
            joint = alignments[-1] + observed[:, step - 1]
            before = joint - _log_sum(joint)[:, None]
        alignments.append(transitions.move(before, step))
    return torch.stack(alignments, 1)


def log_marginal(transitions: Transitions, observed: Tensor) -> Tensor:
    """Sum the probability of a target over all its monotonic alignments.

    Args:
        transitions: of T steps.
        observed: log p(y_t | a_t = j), (B, T, S). A step of zeros observes nothing.

    Returns:
        log p(y | x), (B,), in nats.

    Source: Wu and Cotterell 2019, eq. 2, by the forward algorithm.

    Example:
        >>> moves = ZerothOrder(torch.zeros(1, 2, 2), torch.tensor([2]))
        >>> round(float(log_marginal(moves, torch.tensor([[[0.75, 0.25], [0.5, 1.0]]]).log()).exp()), 4)
        0.4062
    """
    before = first_position(transitions, observed)
    return _log_sum(predicted_alignment(transitions, before, observed) + observed).sum(1)


def alignment_posterior(transitions: Transitions, observed: Tensor) -> Tensor:
    """Compute the probability of each position given the whole target, without a gradient.

    It is the derivative of the log-marginal by log p(y_t | a_t = j): the backward pass of the forward algorithm is the
    backward algorithm.

    Args:
        transitions: of T steps.
        observed: log p(y_t | a_t = j), (B, T, S). A step of zeros observes nothing.

    Returns:
        P(a_t = j | y), (B, T, S).

    Source: Eisner 2016, "Inside-Outside and Forward-Backward Algorithms Are Just Backprop".

    Example:
        >>> moves = FirstOrder(torch.zeros(1, 2, 2, 2), torch.tensor([2]))
        >>> alignment_posterior(moves, torch.tensor([[[1.0, 0.5], [0.5, 1.0]]]).log())
        tensor([[[0.6000, 0.4000],
                 [0.2000, 0.8000]]])
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        scores = observed.detach().clone().requires_grad_()
        (posterior,) = torch.autograd.grad(log_marginal(_constant(transitions), scores).sum(), scores)
    return posterior


def _constant(transitions: Transitions) -> Transitions:
    """Return transitions that autograd may save, even if inference mode made them."""
    match transitions:
        case ZerothOrder(scores, lengths):
            return ZerothOrder(scores.detach().clone(), lengths.clone())
        case FirstOrder(logits, lengths):
            return FirstOrder(logits.detach().clone(), lengths.clone())
    return transitions


def _log_sum(x: Tensor) -> Tensor:
    """Return log Σ exp over the last dimension; −inf, with a gradient of 0, if all entries are −inf."""
    greatest = x.detach().amax(-1, keepdim=True)
    shift = torch.where(greatest.isfinite(), greatest, 0)
    total = (x - shift).exp().sum(-1)
    empty = total == 0
    return torch.where(empty, -torch.inf, torch.where(empty, 1, total).log() + shift[..., 0])
