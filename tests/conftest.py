"""Setup of every test: kernels, one thread, one seed, a SIGINT handler, and hypothesis without time limits."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from tests.seed import SEED

from qkv.compiled.available import why_unavailable
from qkv.compiled.target import CHOICE
from qkv.errors import CompilationError

settings.register_profile("qkv", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile("whole", deadline=None, derandomize=True, print_blob=True, max_examples=150)
settings.load_profile("qkv")

# Workers of pytest-xdist share the cores; more threads than cores make every small matrix product slower.
THREADS = int(os.environ.get("QKV_TEST_THREADS", "1"))
torch.set_num_threads(THREADS)

# Background jobs of a shell start with SIGINT ignored, and so would their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """Run no test without the kernels that this machine could have, or with those of another text."""
    try:
        reason = why_unavailable() if CHOICE.target is not None else None
    except CompilationError as error:
        reason = str(error)
    if reason is not None:
        pytest.exit(reason, returncode=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of compiled kernels where none can run, as on Windows, macOS and old processors."""
    if why_unavailable() is not None:
        of_kernels = [item for item in items if item.get_closest_marker("kernels")]
        config.hook.pytest_deselected(items=of_kernels)
        items[:] = [item for item in items if not item.get_closest_marker("kernels")]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(SEED)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Several threads, for the tests that need them."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(THREADS)
