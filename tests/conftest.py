"""Setup of every test: kernels, one thread, one seed, a SIGINT handler, and hypothesis without time limits."""

import doctest
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tests.waiting  # noqa: F401
import torch
from _pytest.doctest import DoctestItem
from hypothesis import settings
from tests.curves import one_of_each_kind
from tests.seed import SEED
from torch.torch_version import TorchVersion

import qkv
from qkv.compiled.available import why_unavailable
from qkv.compiled.target import CHOICE
from qkv.errors import CompilationError

PACKAGE = Path(qkv.__file__).parent
ALONE = "QKV_TEST_ALONE"
"""Set in the process of a test that runs alone."""
TRACES_QKV = "2.12"
"""The first version of PyTorch whose compiler traces every call; those before 2.11 trace none."""
KERNEL_EXAMPLES = {
    "algorithms/additive/direct.py",
    "algorithms/additive/factored.py",
    "algorithms/rowwise/distances.py",
    "algorithms/rowwise/row_passes.py",
    "algorithms/sorted/two_pointer_parallel.py",
    "compiled/thread_pool.py",
    "introspect/compiled.py",
    "linalg/packed.py",
    "nn/recurrent/gated_sequence.py",
}
"""Files of the package whose examples call compiled kernels; a call through `qkv.attention` runs without them."""

settings.register_profile("qkv", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile("whole", deadline=None, derandomize=True, print_blob=True, max_examples=150)
settings.load_profile("qkv")

# Workers of pytest-xdist share the cores; more threads than cores make every small matrix product slower.
THREADS = int(os.environ.get("QKV_TEST_THREADS", "1"))
torch.set_num_threads(THREADS)

# Background jobs of a shell start with SIGINT ignored, and so would their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _memory() -> Path | None:
    """A folder in memory with space for the tests, from which programs may be run."""
    folder = Path("/dev/shm")
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        return None
    volume = os.statvfs(folder)
    is_enough = volume.f_bavail * volume.f_frsize >= 4 << 30
    return folder if is_enough and not volume.f_flag & os.ST_NOEXEC else None


# Every save waits for a disk several times.
if (memory := _memory()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# Of the many objects that collecting tests makes, few are garbage.
gc.disable()


def pytest_sessionstart() -> None:
    """Run no test without the kernels that this machine could have, or with those of another text."""
    try:
        reason = why_unavailable() if CHOICE.target is not None else None
    except CompilationError as error:
        reason = str(error)
    if reason is not None:
        pytest.exit(reason, returncode=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of compiled kernels where none can run, as on Windows, macOS and old processors.

    And those that trace calls, with a PyTorch that cannot; and examples of which no line runs, since they need a
    trained run.
    """
    kernels, traces = why_unavailable() is None, torch.__version__ >= TorchVersion(TRACES_QKV)
    runs = {
        item: not _is_prose(item)
        and (kernels or not _calls_kernels(item))
        and (traces or item.get_closest_marker("compiler") is None)
        for item in items
    }
    config.hook.pytest_deselected(items=[item for item in items if not runs[item]])
    items[:] = [item for item in items if runs[item]]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that differentiates in forks in a new process without a GPU, if forks of this one cannot.

    PyTorch's autograd starts threads for a GPU, or for deeply nested passes; later forks can differentiate nothing.
    """
    if pyfuncitem.get_closest_marker("forks") is None or os.environ.get(ALONE) or _forks_differentiate():
        return None
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    environment = {**os.environ, ALONE: "1", "CUDA_VISIBLE_DEVICES": "", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        call, cwd=pyfuncitem.config.rootpath, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return True


def _forks_differentiate() -> bool:
    if not hasattr(os, "fork"):
        return True  # such tests are skipped there
    if torch.accelerator.is_available():
        return False
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1, requires_grad=True).sum().backward()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def pytest_collection_finish() -> None:
    """Collect garbage again, without passing over all tests and modules each time: they stay to the end.

    So does most of what is imported later, such as PyTorch's compiler: all objects are passed over less often.
    """
    gc.freeze()
    gc.set_threshold(700, 10, 50)
    gc.enable()


def _is_prose(item: pytest.Item) -> bool:
    return isinstance(item, DoctestItem) and all(example.options.get(doctest.SKIP) for example in item.dtest.examples)


def _calls_kernels(item: pytest.Item) -> bool:
    example = isinstance(item, DoctestItem) and item.path.relative_to(PACKAGE).as_posix() in KERNEL_EXAMPLES
    return example or item.get_closest_marker("kernels") is not None


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # For devices that are not there, `torch.manual_seed` writes down the stack each time: 2 ms of every test.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(SEED)


@pytest.fixture
def own_threads() -> Iterator[None]:
    """For a test that runs CTranslate2, which sets the threads of an OpenMP that it shares with PyTorch."""
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """A test that leaves another number of threads changes the bits of those after it."""
    yield
    left = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    assert left == THREADS


@pytest.fixture(scope="session", autouse=True)
def _one_picture_for_each_kind_of_training() -> Iterator[None]:
    with one_of_each_kind():
        yield


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Several threads, for the tests that need them."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(THREADS)
