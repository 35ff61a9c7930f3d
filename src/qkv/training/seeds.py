"""All random generators: seeded in one place, saved and restored exactly."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from qkv.errors import CheckpointError
from qkv.files import FREE, room_for

_PREFIX = "random."


def seed_everything(seed: int) -> None:
    """Seed every generator of Python, NumPy and PyTorch that training uses.

    Args:
        seed: any non-negative integer.

    Example:
        >>> seed_everything(1)
        >>> first = random.random(), torch.rand(1).item()
        >>> seed_everything(1)
        >>> first == (random.random(), torch.rand(1).item())
        True
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generators() -> dict[str, Tensor]:
    """Return the state of every generator.

    Returns:
        Name to tensor, for a checkpoint.

    Example:
        >>> states = generators()
        >>> first = torch.rand(1)
        >>> set_generators(states)
        >>> torch.equal(first, torch.rand(1))
        True
    """
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    inner = numpy["state"]
    states = {
        "python": torch.tensor([version, *words], dtype=torch.int64, device="cpu"),
        "python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64, device="cpu"),
        "numpy": torch.tensor(
            [inner["pos"], numpy["has_gauss"], *inner["key"].tolist()], dtype=torch.int64, device="cpu"
        ),
        "numpy.gauss": torch.tensor([numpy["gauss"]], dtype=torch.float64, device="cpu"),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states |= {f"cuda.{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return {_PREFIX + name: state for name, state in states.items()}


def set_generators(states: Mapping[str, Tensor]) -> None:
    """Restore the state of every generator.

    Args:
        states: the result of `generators`; other names are ignored.

    Raises:
        CheckpointError: a state is missing or invalid.
        OutOfMemoryError: memory ran out.
    """
    try:
        with room_for("trainer.safetensors", FREE):
            _set(states)
    except (LookupError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        hint = "Use another checkpoint of this run."
        raise CheckpointError("trainer.safetensors", "states of random generators", str(error)[:200], hint) from error


def _set(states: Mapping[str, Tensor]) -> None:
    version, *words = states[_PREFIX + "python"].tolist()
    gauss = states[_PREFIX + "python.gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    _set_numpy(states[_PREFIX + "numpy"].tolist(), states[_PREFIX + "numpy.gauss"].item())
    torch.set_rng_state(states[_PREFIX + "torch"])
    for name in sorted(states):
        if name.startswith(_PREFIX + "cuda.") and torch.cuda.is_available():
            torch.cuda.set_rng_state(states[name], int(name.rpartition(".")[2]))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore all generators after the code inside.

    Example:
        >>> seed_everything(0)
        >>> with undisturbed():
        ...     first = torch.rand(1)
        >>> torch.equal(first, torch.rand(1))
        True
    """
    state = generators()
    try:
        yield
    finally:
        set_generators(state)


def _set_numpy(numbers: list[int], cached: float) -> None:
    position, has_gauss, *keys = numbers
    if not 0 <= position <= len(keys):
        # NumPy would accept it, and read out of bounds.
        raise ValueError(f"position {position} of {len(keys)}")
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
