import random

import numpy as np
import pytest
import torch

from qkv.errors import CheckpointError
from qkv.training.seeds import generators, seed_everything, set_generators, undisturbed


def draw() -> tuple:
    # The Gaussian generators of Python and NumPy hold a second value back: it must be restored too.
    python = (random.random(), random.gauss(0, 1))
    return *python, float(np.random.rand()), float(np.random.randn()), torch.rand(3).tolist(), torch.randn(3).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_a_seed_decides_every_draw(seed):
    seed_everything(seed)
    first = [draw(), draw()]
    seed_everything(seed)
    assert [draw(), draw()] == first


def test_two_seeds_differ():
    seed_everything(0)
    first = draw()
    seed_everything(1)
    assert all(a != b for a, b in zip(first, draw(), strict=True))


def test_generators_go_on_where_they_stood():
    seed_everything(3)
    draw()
    kept = generators()
    first = [draw() for _ in range(3)]
    draw()
    set_generators({name: tensor.clone() for name, tensor in kept.items()} | {"other": torch.ones(1)})
    assert [draw() for _ in range(3)] == first


def test_what_is_undisturbed_moves_nothing_even_when_it_fails():
    seed_everything(3)
    first = draw()
    seed_everything(3)
    with pytest.raises(ZeroDivisionError), undisturbed():
        draw()[0] / 0
    assert draw() == first


@pytest.mark.parametrize("name", ["random.python", "random.python.gauss", "random.numpy", "random.torch"])
def test_a_missing_or_damaged_state_is_a_typed_error(name):
    kept = generators()
    with undisturbed():
        for bad in ({}, {name: torch.ones(2, dtype=torch.int64)}, {name: torch.full((626,), 10_000)}):
            states = {key: value for key, value in kept.items() if key != name} | bad
            if name == "random.python.gauss" and bad:
                continue
            with pytest.raises(CheckpointError, match="states of random generators"):
                set_generators(states)


def test_a_state_of_another_version_is_not_repeated_in_full():
    """Python's own message contains all 626 numbers of the state."""
    kept = generators()
    state = kept["random.python"].clone()
    state[0] = 99
    with undisturbed(), pytest.raises(CheckpointError, match=r"got state with version \[?99") as raised:
        set_generators(kept | {"random.python": state})
    assert len(str(raised.value)) < 400
