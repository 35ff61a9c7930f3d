"""What every test starts from: one thread, one seed, and hypothesis without wall time."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("qkv", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile("whole", deadline=None, derandomize=True, print_blob=True, max_examples=150)
settings.load_profile("qkv")

# Workers of pytest-xdist share the cores; more threads than cores make every small product slower.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
