import math

import pytest
import torch

from qkv.errors import DataError, DtypeError, ShapeError
from qkv.view.alignment import Alignment


def test_a_later_change_of_the_tensor_changes_no_picture():
    weights = torch.eye(2)
    alignment = Alignment(("a", "b"), ("c", "d"), weights)
    weights.zero_()
    assert alignment.weights.tolist() == [[1, 0], [0, 1]]


def test_weights_that_need_gradients_in_half_precision_are_taken():
    weights = torch.tensor([[0.5, 0.25]], dtype=torch.bfloat16, requires_grad=True)
    alignment = Alignment(("a", "b"), ("c",), weights)
    assert alignment.weights.dtype == torch.float64
    assert not alignment.weights.requires_grad


def test_a_list_of_tokens_becomes_a_tuple():
    assert Alignment(["a"], ("c",), torch.ones(1, 1)).source == ("a",)


@pytest.mark.parametrize(("source", "got"), [("ab", "one str"), (None, "one NoneType"), (("a", 3), "3")])
def test_tokens_that_are_no_strings_are_refused(source, got):
    with pytest.raises(DtypeError, match=got):
        Alignment(source, ("c",), torch.ones(1, 2))


@pytest.mark.parametrize("weights", [[[1.0]], torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1) > 0])
def test_weights_that_are_no_floating_point_tensor_are_refused(weights):
    with pytest.raises(DtypeError, match="weights: expected a floating-point tensor"):
        Alignment(("a",), ("c",), weights)


@pytest.mark.parametrize("shape", [(3, 2), (6,), (1, 2, 3)])
def test_weights_of_another_shape_name_both_shapes(shape):
    with pytest.raises(ShapeError, match=r"expected \(T, S\) = \(2, 3\); got \("):
        Alignment(("a", "b", "c"), ("d", "e"), torch.ones(shape))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_names_its_tokens(value):
    weights = torch.zeros(2, 2)
    weights[1, 0] = value
    with pytest.raises(DataError, match="from target 1 'd' to source 0 'a'"):
        Alignment(("a", "b"), ("c", "d"), weights)


@pytest.mark.parametrize(
    ("weights", "scale"),
    [
        (torch.tensor([[0.25, 0.5]]), (0.0, 0.5)),
        (torch.tensor([[-2.0, 3.0]]), (-2.0, 3.0)),
        (torch.tensor([[-2.0, -1.0]]), (-2.0, -1.0)),
        (torch.zeros(1, 2), (0.0, 1.0)),
        (torch.full((1, 2), -1.0), (-1.0, 0.0)),
    ],
)
def test_the_scale_starts_at_zero_or_at_the_smallest_weight(weights, scale):
    alignment = Alignment(("a", "b"), ("c",), weights)
    assert alignment.scale == scale
    assert 0 <= alignment.fractions().min() <= alignment.fractions().max() <= 1


def test_an_empty_side_is_an_alignment_too():
    assert Alignment((), ("c",), torch.zeros(1, 0)).scale == (0.0, 1.0)
