"""Sums over monotonic alignments are those of an enumeration of all alignments."""

import itertools
from collections.abc import Callable

import pytest
import torch
from tests.pairs import in_turn
from torch import Tensor

from qkv.nn.monotonic import (
    FirstOrder,
    Transitions,
    ZerothOrder,
    alignment_posterior,
    first_position,
    log_marginal,
    predicted_alignment,
)

SIZES = [(s, t) for s in range(1, 7) for t in range(1, 7)]
Chain = Callable[[Tensor, int], Tensor]
"""p(a_t = j given a_{t−1} = i), (T, L, L), of one row with L real positions, by the equation."""


def zeroth(scores_TS: Tensor, length: int) -> Tensor:
    powers_TL = scores_TS[:, :length].exp()
    rows = [
        torch.cat([powers_TL.new_zeros(len(powers_TL), i), powers_TL[:, i:] / powers_TL[:, i:].sum(1, keepdim=True)], 1)
        for i in range(length)
    ]
    return torch.stack(rows, 1)


def first(logits_TSJ: Tensor, length: int) -> Tensor:
    rows = []
    for i in range(length):
        powers_TJ = logits_TSJ[:, i].exp()[:, : length - i]
        after = length - i - powers_TJ.shape[1]
        shares = torch.nn.functional.pad(powers_TJ / powers_TJ.sum(1, keepdim=True), (i, after))
        rows.append(shares)
    return torch.stack(rows, 1)


def enumerated(chain: Chain, parameters: Tensor, observed_TS: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """All alignments a_1 ≤ … ≤ a_T (P, T) of one row's target, and their joint probabilities with it (P,)."""
    steps = len(observed_TS)
    paths = torch.tensor(list(itertools.combinations_with_replacement(range(length), steps)))
    before = torch.cat([torch.zeros(len(paths), 1, dtype=torch.int64), paths[:, :-1]], 1)
    moves = chain(parameters, length)[torch.arange(steps), before, paths]
    return paths, (moves * observed_TS[torch.arange(steps), paths].exp()).prod(1)


def draw(order: int, positions: int, steps: int, jumps: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters and observations of three rows, the last ones padded."""
    torch.manual_seed(seed)
    shape = (3, steps, positions) if order == 0 else (3, steps, positions, jumps + 1)
    parameters = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    observed = torch.randn(3, steps, positions, dtype=torch.float64).sub(1).requires_grad_()
    return parameters, observed, torch.tensor([positions, max(1, positions - 1), max(1, positions - 3)])


def chain_of(order: int, parameters: Tensor, lengths: Tensor) -> Transitions:
    return ZerothOrder(parameters, lengths) if order == 0 else FirstOrder(parameters, lengths)


CHAINS: tuple[Chain, Chain] = (zeroth, first)
every_order = pytest.mark.parametrize(("order", "jumps"), [(0, 6), (1, 6), (1, 2), (1, 0)])


@pytest.mark.parametrize(("chain", "size"), in_turn([(0, 6), (1, 6), (1, 2), (1, 0)], SIZES, every=3))
def test_marginal_is_the_sum_over_all_alignments_with_its_gradients(
    chain: tuple[int, int], size: tuple[int, int]
) -> None:
    (order, jumps), (positions, steps) = chain, size
    parameters, observed, lengths = draw(order, positions, steps, jumps)
    ours = log_marginal(chain_of(order, parameters, lengths), observed)
    rows = zip(parameters, observed, lengths.tolist(), strict=True)
    theirs = torch.stack([enumerated(CHAINS[order], *row)[1].sum() for row in rows]).log()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    found, expected = (torch.autograd.grad(total.sum(), (parameters, observed)) for total in (ours, theirs))
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=0, atol=1e-10)


@every_order
def test_posterior_is_the_share_of_the_alignments_through_a_position(order: int, jumps: int) -> None:
    parameters, observed, lengths = draw(order, 4, 5, jumps)
    found = alignment_posterior(chain_of(order, parameters, lengths), observed)
    for row, length in enumerate(lengths.tolist()):
        paths, joint = enumerated(CHAINS[order], parameters[row], observed[row], length)
        through = torch.nn.functional.one_hot(paths, 4) * joint.detach()[:, None, None]
        torch.testing.assert_close(found[row], through.sum(0) / joint.detach().sum(), rtol=0, atol=1e-10)


@every_order
def test_posterior_in_inference_mode_is_the_same(order: int, jumps: int) -> None:
    parameters, observed, lengths = draw(order, 4, 5, jumps)
    expected = alignment_posterior(chain_of(order, parameters, lengths), observed)
    with torch.inference_mode():
        moves = chain_of(order, parameters * 1.0, lengths * 1)
        assert torch.equal(alignment_posterior(moves, observed * 1.0), expected)


@every_order
def test_padding_holds_no_probability_and_changes_no_gradient(order: int, jumps: int) -> None:
    parameters, observed, lengths = draw(order, 5, 4, jumps)
    lengths = torch.tensor([3, 3, 1])
    real = torch.arange(5) < lengths[:, None]
    found = []
    for fill in (0.0, 1e4):
        cells = real[:, None] if order == 0 else real[:, None, :, None]
        filled = torch.where(cells, parameters.detach(), fill).requires_grad_()
        seen = torch.where(real[:, None], observed.detach(), fill).requires_grad_()
        moves = chain_of(order, filled, lengths)
        ahead = predicted_alignment(moves, first_position(moves, seen), seen)
        assert torch.equal(ahead.exp() * ~real[:, None], torch.zeros_like(ahead))
        total = log_marginal(moves, seen)
        found.append((total, *torch.autograd.grad(total.sum(), (filled, seen))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        assert one.isfinite().all()


@every_order
def test_predictions_are_distributions_over_positions_not_left_behind(order: int, jumps: int) -> None:
    parameters, observed, lengths = draw(order, 6, 6, jumps)
    moves = chain_of(order, parameters, lengths)
    ahead = predicted_alignment(moves, first_position(moves, observed), observed).exp()
    torch.testing.assert_close(ahead.sum(-1), torch.ones(3, 6, dtype=torch.float64))
    certain = torch.full((3, 6), -torch.inf, dtype=torch.float64)
    certain[:, 2] = 0.0
    after = moves.move(certain[:1], 0) if order == 1 else moves.move(certain, 0)
    assert torch.equal(after[0, :2].exp(), torch.zeros(2, dtype=torch.float64))


def test_long_targets_stay_finite_in_float32() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([120, 7])
    for moves in (
        ZerothOrder((torch.randn(2, 300, 120) * 20).requires_grad_(), lengths),
        FirstOrder((torch.randn(2, 300, 120, 6) * 20).requires_grad_(), lengths),
    ):
        observed = (torch.randn(2, 300, 120) * 20 - 60).requires_grad_()
        total = log_marginal(moves, observed)
        total.sum().backward()
        parameters = moves.scores if isinstance(moves, ZerothOrder) else moves.logits
        assert total.isfinite().all()
        assert parameters.grad is not None
        assert parameters.grad.isfinite().all()
        assert observed.grad is not None
        torch.testing.assert_close(observed.grad.sum(-1), torch.ones(2, 300), rtol=1e-3, atol=1e-3)
