"""Stored weights of near points: for which leading dimensions, and that they are those of the equation."""

import pytest
import torch

import qkv
from qkv.errors import UnsupportedError
from qkv.scores import Epanechnikov

pytestmark = pytest.mark.kernels


def attend(leading: tuple[int, ...], of_key: tuple[int, ...], of_value: tuple[int, ...]) -> None:
    shapes = (*leading, 60, 4), (*of_key, 70, 4), (*of_value, 70, 3)
    given = [(torch.randn(shape) / 2).requires_grad_() for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in given]
    found = []
    for tensors, backend in ((given, "rowwise.near_points"), (exact, "reference")):
        output = qkv.attention(*tensors, score=Epanechnikov(6.0), backend=backend)
        found.append([output, *torch.autograd.grad(output.square().sum(), tensors)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("leading", [(3,), (2, 3), (2, 1, 3)])
def test_keys_and_values_of_each_item_have_any_leading_dimensions(leading: tuple[int, ...]) -> None:
    attend(leading, leading, leading)


@pytest.mark.parametrize(("of_key", "of_value"), [((2, 1), (2, 3)), ((2, 3), (2, 1)), ((2, 1), (2, 1))])
def test_keys_or_values_that_items_share_are_refused(of_key: tuple[int, ...], of_value: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match="shared between"):
        attend((2, 3), of_key, of_value)
