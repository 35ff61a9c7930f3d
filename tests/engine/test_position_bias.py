"""A bias from positions as algorithms get it: its kind, its tiles, its diagonals."""

import pytest
import torch
from tests.contract.changes import WAYS
from torch import Tensor

from qkv.biases import Bias, alibi, relative
from qkv.engine.position_bias import PositionBias, bias_tile, position_bias
from qkv.errors import ShapeError
from qkv.masks.base import Grid
from qkv.values.parameters import Parameter

Q, K = 5, 7
GRID = Grid((2, 4), Q, K, torch.device("cpu"))


class Blocks(Bias):
    """Numbers for pairs within a block of two: one that is named, one that is not."""

    parameters = (Parameter("bonus", 0),)

    def __init__(self, bonus: Tensor, more: Tensor | None = None) -> None:
        self.bonus, self.more = bonus, more

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        inside = rows_Q1 // 2 == columns_K // 2
        found = self.bonus[..., None, None] * inside
        return found if self.more is None else found + self.more * inside


class Steps(Bias):
    """A function of j − i with a number that no field names."""

    relative = True

    def __init__(self, step: Tensor) -> None:
        self.step = step

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.step * (columns_K > rows_Q1)


def bound(bias: Bias, dtype: torch.dtype = torch.float32) -> PositionBias:
    return position_bias(bias, GRID, dtype)


def learning(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def test_its_kind_says_whether_it_is_relative_and_learns() -> None:
    fixed = torch.ones(4)
    assert bound(alibi(0.5)).kind == bound(alibi(fixed)).kind == bound(Steps(fixed[0])).kind == "relative"
    assert bound(alibi(learning(4))).kind == bound(relative(learning(3))).kind == "relative learned"
    assert bound(Steps(learning())).kind == "relative learned"
    assert bound(Blocks(fixed)).kind == bound(Blocks(fixed, fixed[0])).kind == "positions"
    assert bound(Blocks(learning(4))).kind == "positions learned"
    assert bound(Blocks(fixed, learning())).kind == "positions closure"
    with torch.no_grad():
        assert bound(Blocks(learning(4))).kind == "positions"
        assert bound(relative(learning(3))).kind == "relative"


def test_what_learns_is_named_or_else_a_closure() -> None:
    named, more = learning(4), learning()
    assert not bound(Blocks(named)).closure
    (found,) = bound(Blocks(named)).learned
    assert found is named
    assert bound(Blocks(named, more)).closure
    assert bound(Blocks(torch.ones(4), more)).closure
    # What a parameter was computed from is not asked: gradients reach it through the parameter.
    assert not bound(Blocks(named.exp())).closure
    assert not bound(Blocks(named.exp(), torch.ones(()))).closure
    shared = learning(4)
    assert bound(Blocks(shared.exp(), shared[0])).closure


def test_a_tile_is_a_part_of_the_whole() -> None:
    for bias in (alibi(torch.rand(4)), relative(torch.randn(4, 5), offset=1), Blocks(torch.randn(4))):
        whole = bound(bias).tile()
        assert torch.equal(bound(bias).tile(slice(1, 4), slice(2, 6)), whole[..., 1:4, 2:6])
        assert torch.equal(bias_tile(bound(bias), slice(3, None), slice(0, 99)), whole[..., 3:, :])
        grouped = bound(bias).group(2, 2).tile()
        assert torch.equal(grouped, whole.unflatten(-3, (2, 2)))
    assert bound(alibi(0.5)).tile(slice(2, 2), slice(0, 3)).shape == (0, 3)


def test_diagonals_say_all_of_a_relative_bias() -> None:
    at = torch.arange(K) - torch.arange(Q)[:, None] + Q - 1
    for bias in (alibi(0.3, offset=2), alibi(torch.rand(4)), relative(torch.randn(4, 3)), Steps(torch.ones(()))):
        found = bound(bias).diagonals()
        assert found.shape[-1] == Q + K - 1
        assert torch.equal(found[..., at], bound(bias).tile())
        assert torch.equal(bound(bias).group(2, 2).diagonals()[..., at], bound(bias).group(2, 2).tile())


@pytest.mark.parametrize(("queries", "keys"), [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_empty_sizes_have_diagonals(queries: int, keys: int) -> None:
    grid = GRID._replace(queries=queries, keys=keys)
    assert position_bias(alibi(0.5), grid, torch.float32).diagonals().shape == (max(queries + keys - 1, 0),)


def test_it_is_added_in_the_type_of_the_scores() -> None:
    for dtype, wide in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        assert bound(alibi(0.5), dtype).tile().dtype == bound(alibi(0.5), dtype).diagonals().dtype == wide


def test_a_shape_that_does_not_fit_is_told() -> None:
    with pytest.raises(ShapeError, match=r"bias: expected a shape that .* = \(2, 4, 5, 7\); got shape \(3, 5, 7\)"):
        bound(Blocks(torch.ones(3))).tile()


@pytest.mark.parametrize("way", WAYS)
def test_the_matrix_has_the_numbers_of_now(way: str) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0])
    bias = alibi(slopes)
    first = bound(bias).tile()
    assert position_bias(bias, GRID._replace(keys=K + 1), torch.float32).tile().shape[-1] == K + 1
    assert bound(bias, torch.float64).tile().dtype == torch.float64
    WAYS[way](slopes, 2 * slopes)
    assert torch.equal(bound(bias).tile(), 2 * first)
    with torch.inference_mode():
        assert torch.equal(bound(bias).tile(), 2 * first)
    assert not bound(bias).tile().is_inference()


def test_the_matrix_of_learned_slopes_is_made_for_each_call() -> None:
    slopes = torch.ones(4, requires_grad=True)
    bias = alibi(slopes)
    with torch.no_grad():
        position_bias(bias, GRID, torch.float32).tile()
    for _ in range(2):
        (slope,) = torch.autograd.grad(position_bias(bias, GRID, torch.float32).tile().sum(), slopes)
        assert slope.abs().min() > 0
