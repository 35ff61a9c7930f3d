import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from qkv.training.loss import label_smoothed_loss


@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 9), st.floats(0, 0.9), st.integers(0, 99))
def test_it_is_exactly_the_sum_that_torch_gives(batch, length, vocabulary, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, length, vocabulary, generator=generator)
    target = torch.randint(0, vocabulary, (batch, length), generator=generator)
    loss, count = label_smoothed_loss(logits, target, padding=0, smoothing=smoothing)
    expected = F.cross_entropy(
        logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum", label_smoothing=smoothing
    )
    assert loss.item() == expected.item()
    assert count == int((target != 0).sum())


def test_it_is_the_formula():
    logits = torch.randn(3, 5, dtype=torch.float64)
    target = torch.tensor([4, 2, 0])
    log_p = logits.log_softmax(-1)
    expected = sum(-(0.9 * log_p[row, target[row]] + 0.1 * log_p[row].mean()) for row in range(2))
    loss, count = label_smoothed_loss(logits, target, padding=0, smoothing=0.1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert count == 2


def test_padding_has_neither_loss_nor_gradient():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    target = torch.tensor([[1, 2, 0], [3, 0, 0]])
    loss, _ = label_smoothed_loss(logits, target, padding=0, smoothing=0.2)
    loss.backward()
    assert (logits.grad[target == 0] == 0).all()
    assert (logits.grad[target != 0] != 0).all()


def test_nothing_but_padding_is_zero_and_counts_nothing():
    loss, count = label_smoothed_loss(torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64), padding=0)
    assert (loss.item(), count) == (0.0, 0)


def test_sums_are_taken_in_float32_for_bfloat16_logits():
    logits = torch.randn(1000, 5).to(torch.bfloat16)
    target = torch.ones(1000, dtype=torch.int64)
    loss, _ = label_smoothed_loss(logits, target, padding=0)
    assert loss.dtype == torch.float32
    assert loss.item() == label_smoothed_loss(logits.float(), target, padding=0)[0].item()
