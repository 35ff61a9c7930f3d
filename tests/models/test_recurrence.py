"""A recurrent layer over padded rows, compared with PyTorch's packed sequences."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.models import recurrence
from qkv.models.configs.translator import RecurrentConfig
from qkv.models.recurrent_translator import RecurrentTranslator

CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
LENGTHS = torch.tensor([5, 1, 3, 0, 5])


def packed(layer: nn.RNNBase, x: Tensor) -> tuple[Tensor, Tensor]:
    """PyTorch's own layer; it does not accept length 0, which counts as 1 here."""
    states, last = layer(pack_padded_sequence(x, LENGTHS.clamp(min=1), batch_first=True, enforce_sorted=False))
    final = last[0] if isinstance(last, tuple) else last
    padded = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0]
    return padded, final[-2 if layer.bidirectional else -1 :]


def real(states: Tensor) -> Tensor:
    return torch.where(torch.arange(states.shape[1])[:, None] < LENGTHS.clamp(min=1)[:, None, None], states, 0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("cell", list(CELLS))
def test_states_last_states_and_gradients_are_pytorchs(cell: str, both: bool, layers: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = CELLS[cell](3, 4, layers, batch_first=True, bidirectional=both, bias=bias).double()
    x = torch.randn(len(LENGTHS), 6, 3, dtype=torch.float64, requires_grad=True)
    found, expected = recurrence.run(layer, x, LENGTHS), packed(layer, x)
    torch.testing.assert_close(real(found[0]), expected[0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-12, atol=1e-14)
    leaves, weights = [x, *layer.parameters()], torch.randn_like(expected[0])
    mine = torch.autograd.grad((real(found[0]) * weights).sum() + found[1].sin().sum(), leaves)
    other = torch.autograd.grad((expected[0] * weights).sum() + expected[1].sin().sum(), leaves)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_padding_is_never_read() -> None:
    layer = nn.GRU(3, 4, batch_first=True, bidirectional=True)
    x = torch.randn(len(LENGTHS), 6, 3)
    other = torch.where(torch.arange(6)[:, None] < LENGTHS.clamp(min=1)[:, None, None], x, 7.0)
    first, second = recurrence.run(layer, x, LENGTHS), recurrence.run(layer, other, LENGTHS)
    assert torch.equal(real(first[0]), real(second[0]))
    assert torch.equal(first[1], second[1])


def test_no_rows_and_no_places() -> None:
    layer = nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    states, last = recurrence.run(layer, torch.zeros(0, 5, 3), torch.zeros(0, dtype=torch.int64))
    assert states.shape == (0, 5, 8)
    assert last.shape == (2, 0, 4)


@pytest.mark.parametrize("cell", list(CELLS))
def test_half_precision_by_autocast(cell: str) -> None:
    torch.manual_seed(0)
    layer, x = CELLS[cell](3, 4, batch_first=True, bidirectional=True), torch.randn(len(LENGTHS), 6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = recurrence.run(layer, x, LENGTHS), packed(layer, x)
    assert {part.dtype for part in found} == {torch.float32}, "a state keeps its precision from step to step"
    torch.testing.assert_close(real(found[0]).float(), expected[0].float(), rtol=0.03, atol=0.03)
    sum(part.float().sum() for part in found).backward()
    assert all(weight.grad.dtype == torch.float32 for weight in layer.parameters())


@pytest.mark.parametrize("score", ["additive", "bilinear", "dot", "none"])
@pytest.mark.parametrize("wiring", ["bahdanau", "luong"])
def test_a_translator_learns_in_half_precision(wiring: str, score: str) -> None:
    """Enough rows that the memory's gradients are computed last."""
    torch.manual_seed(0)
    config = RecurrentConfig(size=20, embedding=16, hidden=32, attention=16, score=score, wiring=wiring)
    model = RecurrentTranslator(config).train()
    source, target = torch.randint(4, 20, (80, 30)), torch.randint(4, 20, (80, 6))
    lengths = torch.arange(80) % 30 + 1
    losses = []
    for precision in (torch.bfloat16, None):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
            losses.append(model(source, lengths, target).float().logsumexp(-1).mean())
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in losses]
    assert abs(losses[0].item() - losses[1].item()) < 0.02
    for half, whole in zip(*gradients, strict=True):
        if whole is not None and float(whole.norm()) > 1e-3:
            assert float((half - whole).norm() / whole.norm()) < 0.1


@pytest.mark.parametrize("cell", list(CELLS))
def test_the_default_device_changes_nothing(cell: str) -> None:
    layer = CELLS[cell](3, 4, 2, batch_first=True, bidirectional=True)
    x = torch.randn(len(LENGTHS), 6, 3)
    expected = recurrence.run(layer, x, LENGTHS)
    with torch.device("meta"):
        found = recurrence.run(layer, x, LENGTHS)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
