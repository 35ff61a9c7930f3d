"""Cells: one step of PyTorch's own."""

import pytest
import torch
from torch import nn

from qkv.models.cells import STEPS, gates, hidden_of

THEIRS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


@pytest.mark.parametrize("cell", list(STEPS))
def test_a_step_is_pytorchs(cell: str) -> None:
    theirs = THEIRS[cell](5, 7).double()
    x, h, c = torch.randn(3, 5).double(), torch.randn(3, 7).double(), torch.randn(3, 7).double()
    hidden = (h, c) if cell == "lstm" else (h,)
    inputs = nn.functional.linear(x, theirs.weight_ih, theirs.bias_ih)
    recurrent = nn.functional.linear(h, theirs.weight_hh, theirs.bias_hh)
    assert inputs.shape[-1] == gates(cell) * 7
    expected = theirs(x, hidden) if cell == "lstm" else (theirs(x, h),)
    for mine, other in zip(STEPS[cell](inputs, recurrent, hidden), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("cell", list(STEPS))
def test_a_state_keeps_its_type_when_gates_are_rounded(cell: str) -> None:
    gate = torch.randn(3, 7 * gates(cell), dtype=torch.bfloat16)
    hidden = hidden_of(cell, torch.randn(3, 7))
    assert {part.dtype for part in STEPS[cell](gate, gate, hidden)} == {torch.float32}
