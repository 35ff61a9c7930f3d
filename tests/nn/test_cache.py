"""Kept keys and values are values: nothing done with them changes them."""

import torch

from qkv.nn.cache import Memory


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
