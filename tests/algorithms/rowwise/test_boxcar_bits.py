"""What is kept of a boxcar's weights: the same weights, never more than the inputs hold, and no more gradients."""

import pytest
import torch
from torch import Tensor

import qkv
from qkv.algorithms.rowwise import boxcar_bits, near_points
from qkv.algorithms.rowwise.boxcar_bits import Bits
from qkv.engine.mechanism import Inputs
from qkv.linalg.buffers import Workspace
from qkv.masks import causal
from qkv.scores import Boxcar


def inputs(rows: int = 5) -> Inputs:
    return Inputs(*(torch.randn(2, rows, 3) for _ in range(3)), None, None, None, None, None)


@pytest.mark.parametrize("keys", [0, 1, 7, 8, 9, 64, 203])
def test_a_tile_comes_back_as_it_was(keys: int) -> None:
    torch.manual_seed(0)
    seen = torch.rand(2, 5, keys) < 0.4
    seen[0, 0] = False
    total = seen.sum(-1, keepdim=True)
    weights = seen / total.clamp(min=1)
    kept = Bits(inputs(keys + 5))
    kept.keep(weights, total.double().view(2, 5).numpy())
    found = kept.give(0, (2, 5, keys), Workspace(), torch.float32)
    assert found is not None
    torch.testing.assert_close(found[0] * found[1], weights)


def test_what_the_inputs_would_not_hold_is_not_kept() -> None:
    kept, room = Bits(inputs()), Workspace()
    # 40 rows of 5 bytes, with 4 for their sum, fit 360 bytes once.
    for _ in range(2):
        kept.keep(torch.ones(2, 20, 32), torch.ones(2, 20).double().numpy())
    assert kept.give(0, (2, 20, 32), room, torch.float32) is not None
    assert kept.give(1, (2, 20, 32), room, torch.float32) is None


def test_gradients_are_the_same_whether_tiles_are_kept_or_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(near_points, "serves", lambda *_: False)
    query, key, value = torch.randn(3, 2, 1500, 4).unbind()
    value.requires_grad_()

    def gradient() -> Tensor:
        output = qkv.attention(query, key, value, score=Boxcar(1.5), mask=causal(), backend="rowwise")
        return torch.autograd.grad(output.square().sum(), value)[0]

    kept = gradient()
    monkeypatch.setattr(boxcar_bits, "serves", lambda *_: False)
    torch.testing.assert_close(kept, gradient())
