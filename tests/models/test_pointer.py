"""The pointer network: equations, masks, batches, and tasks that it learns."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.decode.greedy import greedy
from qkv.errors import ConfigError, ShapeError
from qkv.models.configs.pointer import PointerConfig
from qkv.models.pointer import END, PointerNetwork
from qkv.nn.pointer import Pointer
from qkv.recording import record

CONFIG = PointerConfig(features=1, decoder="gru", width=12, attention=10)


def test_pointing_is_its_equation() -> None:
    torch.manual_seed(0)
    pointer = Pointer(3, 4, 5).double()
    d, e = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 7, 4, dtype=torch.float64)
    score = pointer.score.value()
    hidden = torch.tanh((d @ score.query_weight.T)[:, :, None] + (e @ score.key_weight.T)[:, None])
    expected = (hidden @ score.vector).softmax(-1)
    context, chances = pointer(d, e)
    torch.testing.assert_close(chances, expected)
    torch.testing.assert_close(context, expected @ e)


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn"])
@pytest.mark.parametrize("once", [True, False])
def test_steps_say_what_all_at_once_says(cell: str, once: bool) -> None:
    torch.manual_seed(0)
    model = PointerNetwork(PointerConfig(features=2, decoder=cell, width=8, attention=8, once=once)).double()  # type: ignore[arg-type]
    elements, lengths = torch.rand(3, 5, 2, dtype=torch.float64), torch.tensor([5, 3, 1])
    target = torch.tensor([[END, 2, 5, 1], [END, 3, 1, 2], [END, 1, END, END]])
    together = model(elements, lengths, target)
    state = model.start(elements, lengths)
    for place, tokens in enumerate(target.unbind(1)):
        logits, state = model.step(tokens, state)
        torch.testing.assert_close(logits, together[:, place])
    torch.testing.assert_close(together.exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))


def test_padding_changes_no_bit_and_gets_no_probability() -> None:
    torch.manual_seed(0)
    model = PointerNetwork(CONFIG).eval()
    elements, lengths = torch.rand(2, 6, 1), torch.tensor([6, 4])
    other = elements.clone()
    other[1, 4:] = torch.nan
    target = torch.tensor([[END, 1], [END, 3]])
    found = model(elements, lengths, target)
    assert torch.equal(found, model(other, lengths, target))
    assert (found[1, :, 5:] == -torch.inf).all()


def test_an_element_is_pointed_at_once() -> None:
    torch.manual_seed(0)
    model = PointerNetwork(CONFIG).eval()
    found = greedy(model, torch.rand(8, 6, 1), torch.full((8,), 6), bos=END, eos=END, limit=20)
    for each in found:
        assert len(set(each.ids)) == len(each.ids) <= 6


def test_what_it_points_at_is_recorded() -> None:
    torch.manual_seed(0)
    model = PointerNetwork(CONFIG).eval()
    elements, lengths, target = torch.rand(1, 4, 1), torch.tensor([4]), torch.tensor([[END, 2, 3]])
    with record(model) as trace:
        found = model(elements, lengths, target)
    torch.testing.assert_close(trace.weights("pointer.attention"), found.exp())


def _learn_to_sort(length: int, steps: int) -> float:
    """Train on integers from 0 to 99; return the fraction of correct positions in 500 unseen lists."""
    torch.manual_seed(0)
    model = PointerNetwork(PointerConfig(features=1, decoder="gru", width=32, attention=32))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.randint(0, 100, (count, length))
        return numbers, numbers.argsort(dim=1, stable=True) + 1

    ends, lengths = torch.full((128, 1), END), torch.full((128,), length)
    for _ in range(steps):
        numbers, order = batch(128)
        found = model(numbers[..., None] / 100, lengths, torch.cat([ends, order], 1))
        loss = F.nll_loss(found.flatten(0, 1), torch.cat([order, ends], 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    numbers, order = batch(500)
    found = greedy(model.eval(), numbers[..., None] / 100, torch.full((500,), length), bos=END, eos=END, limit=length)
    right = [
        given == true
        for each, row in zip(found, order.tolist(), strict=True)
        for given, true in zip(each.ids, row, strict=False)
    ]
    return sum(right) / (500 * length)


@pytest.mark.slow
def test_it_learns_to_sort() -> None:
    assert _learn_to_sort(5, 800) > 0.97


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": 0}, "features: expected an integer, at least 1"),
        ({"features": 1, "decoder": "gro"}, 'Did you mean "gru"?'),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as raised:
        PointerConfig(**given)
    assert message in str(raised.value)


def test_bad_shapes_are_named() -> None:
    model = PointerNetwork(CONFIG)
    with pytest.raises(ShapeError, match=r"elements: expected \(B, S, 1\)"):
        model.start(torch.zeros(2, 3, 2), torch.tensor([3, 3]))
    with pytest.raises(ShapeError, match=r"lengths: expected int64 of shape \(2,\)"):
        model.start(torch.zeros(2, 3, 1), torch.tensor([3]))
    with pytest.raises(ShapeError, match="target: expected int64"):
        model(torch.zeros(2, 3, 1), torch.tensor([3, 3]), torch.tensor([[0, 4], [0, 1]]))
