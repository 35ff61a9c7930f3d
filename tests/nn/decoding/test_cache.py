"""Cached keys and values are values: nothing done with them changes them."""

from itertools import product

import pytest
import torch

from qkv.errors import ShapeError
from qkv.nn.decoding.cache import Memory


def test_append_and_select_leave_the_memory_as_it_was() -> None:
    memory = Memory(torch.randn(3, 2, 4, 5), torch.randn(3, 2, 4, 6))
    key, value = memory.key.clone(), memory.value.clone()
    grown = memory.append(Memory(torch.randn(3, 2, 1, 5), torch.randn(3, 2, 1, 6)))
    chosen = grown.select(torch.tensor([2, 0, 2]))
    chosen.key.zero_()
    assert grown.length == 5
    assert torch.equal(grown.key[:, :, :4], key)
    assert torch.equal(memory.key, key)
    assert torch.equal(memory.value, value)


@torch.no_grad()
def test_two_futures_of_one_memory_do_not_meet() -> None:
    def new(fill: float, length: int = 1) -> Memory:
        return Memory(torch.full((1, length, 2), fill), torch.full((1, length, 3), fill))

    past = new(0.0, 2).append(new(1.0))
    one, other = past.append(new(2.0)), past.append(new(3.0))
    longer = one.append(new(4.0, 40)).append(new(5.0))
    assert past.key[0, :, 0].tolist() == [0, 0, 1]
    assert one.value[0, :, 0].tolist() == [0, 0, 1, 2]
    assert other.key[0, :, 0].tolist() == [0, 0, 1, 3]
    assert longer.key[0, :, 0].tolist() == [0, 0, 1, 2, *[4] * 40, 5]
    window = longer.last(3).append(new(6.0))
    assert (window.key[0, :, 0].tolist(), window.first, window.end) == ([4, 4, 5, 6], 42, 46)
    assert longer.length == 45
    assert longer.select(torch.tensor([0, 0])).append(Memory(torch.ones(2, 1, 2), torch.ones(2, 1, 3))).length == 46


def test_gradients_reach_what_was_appended() -> None:
    key = torch.ones(1, 1, 2, requires_grad=True)
    memory = Memory(key, key).append(Memory(key * 2, key * 3))
    (memory.key.sum() + memory.value.sum()).backward()
    assert key.grad is not None
    assert key.grad.tolist() == [[[7.0, 7.0]]]


@torch.no_grad()
def test_rows_that_were_chosen_grow_apart_from_those_they_came_from() -> None:
    one = Memory(torch.zeros(2, 1, 2), torch.zeros(2, 1, 3))
    past = one.append(Memory(torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]]]), torch.ones(2, 1, 3)))
    chosen = past.select(torch.tensor([1, 1, 0]))
    new = Memory(torch.full((3, 1, 2), 7.0), torch.full((3, 1, 3), 7.0))
    first, second = chosen.append(new), chosen.append(Memory(new.key + 1, new.value))
    assert past.key[:, :, 0].tolist() == [[0, 1], [0, 2]]
    assert chosen.key[:, :, 0].tolist() == [[0, 2], [0, 2], [0, 1]]
    assert first.key[:, :, 0].tolist() == [[0, 2, 7], [0, 2, 7], [0, 1, 7]]
    assert second.key[0, :, 0].tolist() == [0, 2, 8]
    assert past.append(Memory(new.key[:2], new.value[:2])).length == 3


MODES = (torch.enable_grad, torch.no_grad, torch.inference_mode)


@pytest.mark.parametrize("modes", list(product(MODES, repeat=4)), ids=lambda modes: "-".join(x.__name__ for x in modes))
def test_steps_may_run_in_different_modes(modes: tuple[type, ...]) -> None:
    """PyTorch writes tensors made in inference mode only there: a cache filled there goes on elsewhere."""
    key, value = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 6)
    parts = [Memory(key[..., at : at + 1, :], value[..., at : at + 1, :]) for at in range(5)]
    memory, rows = parts[0], torch.tensor([2, 0, 0])
    for mode, part in zip(modes, parts[1:], strict=True):
        with mode():
            memory = memory.append(part)
    assert torch.equal(memory.key, key)
    assert torch.equal(memory.value, value)
    with modes[0]():
        chosen = memory.select(rows)
    with modes[1]():
        assert torch.equal(chosen.append(parts[0].select(rows)).key[..., :5, :], key[rows])


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("shape", [(1, 4, 1, 3), (2, 1, 1, 3), (2, 4, 1, 1), (0, 4, 1, 3)])
def test_what_is_appended_is_never_broadcast(shape: tuple[int, ...], learning: bool) -> None:
    memory = Memory(torch.randn(2, 4, 5, 3), torch.randn(2, 4, 5, 3))
    later = torch.randn(2, 4, 1, 3), torch.randn(shape)
    for key, value in (later, later[::-1]):
        with torch.set_grad_enabled(learning), pytest.raises(ShapeError):
            memory.append(Memory(key, value))
