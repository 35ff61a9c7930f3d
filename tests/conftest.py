"""Setup of every test: one thread, one seed, a SIGINT handler, and hypothesis without time limits."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from tests.seed import SEED

settings.register_profile("qkv", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile("whole", deadline=None, derandomize=True, print_blob=True, max_examples=150)
settings.load_profile("qkv")

# What a command writes to standard error does not depend on which kernels have been compiled.
os.environ.setdefault("QKV_QUIET", "1")

# Workers of pytest-xdist share the cores; more threads than cores make every small matrix product slower.
THREADS = int(os.environ.get("QKV_TEST_THREADS", "1"))
torch.set_num_threads(THREADS)

# Background jobs of a shell start with SIGINT ignored, and so would their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(SEED)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Several threads, for the tests that need them."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(THREADS)
