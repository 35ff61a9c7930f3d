"""Where the memory does not hold what was asked, a message says what, and what would take less."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import torch
import typer

import qkv
from qkv.checkpoint.contents import Contents
from qkv.cli.early_exit import BAD_INPUT
from qkv.cli.failure import guarded
from qkv.cli.main import main
from qkv.errors import ConfigError, OutOfMemoryError, UnsupportedError, expect_enough_memory, out_of_memory_text
from qkv.hub import ctranslate, onnx_graphs
from qkv.nn.attention import Attention
from qkv.scores.free import Learned
from qkv.tasks.runs import Trained, rebuild
from qkv.training.resuming import set_weights
from qkv.training.tensorboard import Board
from qkv.view.answers.requests import RequestHandler
from qkv.view.offline import page
from qkv.view.scene import Layer, Scene

CALLS = (Attention(), qkv.attention, qkv.attention_with_weights, qkv.attention_with_state)


class Panic(BaseException):
    """Of a library in Rust, as PyO3 raises it."""


SLOW = (120, 340, 460, 700, 1000)
NO_REASON = "error return without exception set"
LIMITED = """
import resource, sys, torch
from pathlib import Path
from threading import Thread
from qkv.errors import QkvError
from qkv.nn.attention import Attention
torch.set_num_threads(1)
x = torch.randn(1, 8, 8192, 8)
call = Attention(backend=sys.argv[1])
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + (512 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    print(tuple(call(x, x, x).shape))
except QkvError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="without a limit of address space")
@pytest.mark.parametrize(
    ("size", "words"),
    [
        pytest.param(size, words, marks=pytest.mark.slow if size in SLOW else ())
        for size in (420, 520, *SLOW)
        for words in (("translate", "example"), ("train", "regress", "--data", "none.csv", "--x", "x", "--y", "y"))
    ],
)
def test_no_library_ends_a_command_whose_address_space_ends_while_it_is_loaded(size: int, words: list[str]) -> None:
    command = ["bash", "-c", f'ulimit -v {size << 10}; exec "$@"', "bash", sys.executable, "-m", "qkv", *words]
    done = subprocess.run(command, input=b"ein Hund\n", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (BAD_INPUT, b""), done.stderr
    assert done.stderr.startswith(b"qkv: memory: expected ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_a_real_limit_is_met_by_auto_and_said_of_the_full_matrix(backend: str) -> None:
    """2 GiB of weights, and half a GiB of room."""
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, backend]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    if backend == "auto":
        assert done.stdout == "(1, 8, 8192, 8)\n"
        return
    assert done.stdout.startswith("OutOfMemoryError memory: expected room for one attention; got DefaultCPUAllocator: ")
    assert "(backend 'reference', " in done.stdout
    assert 'backend="auto" takes less: explain chooses sdpa, with ' in done.stdout
    assert "batch_tokens" in done.stdout


@pytest.mark.parametrize("call", CALLS, ids=lambda call: getattr(call, "__name__", type(call).__name__))
def test_a_size_that_no_machine_has_is_a_typed_error(call: Callable[..., object]) -> None:
    """A petabyte of queries, in the inputs one number that is repeated."""
    query, key = torch.zeros(1).expand(1 << 50, 8), torch.zeros(3, 8)
    with pytest.raises(OutOfMemoryError) as raised:
        call(query, key, key)
    said = str(raised.value)
    assert said.startswith("memory: expected room for one attention; got DefaultCPUAllocator: can't allocate memory: ")
    assert "(backend 'auto', dot products under softmax, mask all, 1125899906842624 queries × 3 keys, " in said
    assert ". explain chooses " in said
    assert "a smaller batch (batch_tokens)" in said
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_a_backend_that_takes_more_than_auto_is_named() -> None:
    query, key = torch.zeros(1).expand(1 << 50, 8), torch.zeros(3, 8)
    with pytest.raises(
        OutOfMemoryError, match=r'backend \'reference\', .*backend="auto" takes less: explain chooses \w+'
    ):
        qkv.attention(query, key, key, backend="reference")


def test_masks_that_find_no_room_are_said() -> None:
    query, key = torch.zeros(1).expand(1 << 50, 8), torch.zeros(3, 8)
    with pytest.raises(
        OutOfMemoryError, match=r"got .*allocate.* \(backend 'auto'\). Its masks alone do not fit in memory: take fewer"
    ):
        qkv.attention(query, key, key, mask=qkv.masks.causal())


def huge(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A score of the caller's own that asks for an exabyte."""
    return torch.empty(1 << 58) @ key


def test_the_message_draws_nothing_from_the_generator() -> None:
    """The one draw is the call's own."""
    x = torch.randn(1, 3, 4)
    said, sound = (torch.Generator().manual_seed(5) for _ in range(2))
    with pytest.raises(OutOfMemoryError):
        qkv.attention(x, x, x, score=Learned(huge), dropout=0.5, generator=said, backend="reference")
    qkv.attention(x, x, x, dropout=0.5, generator=sound, backend="reference")
    assert torch.equal(said.get_state(), sound.get_state())


def test_another_fault_passes_unchanged() -> None:
    def faulty(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mine")

    x = torch.randn(1, 3, 4)
    for call in CALLS:
        with pytest.raises(RuntimeError, match="mine"):
            call(x, x, x, score=Learned(faulty))


def test_what_an_attention_within_a_score_says_is_said_once() -> None:
    def nested(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return qkv.attention(query, key, key, score=Learned(huge)) @ key.mT

    x = torch.randn(1, 3, 4)
    with pytest.raises(OutOfMemoryError) as raised:
        qkv.attention(x, x, x, score=Learned(nested))
    assert str(raised.value).count("expected room for one attention") == 1


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[x] DefaultCPUAllocator: can't allocate memory: 8 bytes")]
)
def test_a_command_without_memory_ends_with_one_message(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("qkv: memory: expected room for this; got ")
    assert "--batch-tokens" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        SystemError(NO_REASON),
        Panic("PyObject pointer is null"),
    ],
)
def test_memory_that_ends_before_a_command_begins_is_said(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("qkv.cli.app.app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == BAD_INPUT
    assert capsys.readouterr().err.startswith("qkv: memory: expected room for this; got ")


def test_a_page_is_never_shorter_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(handler: RequestHandler, name: str, parameters: str) -> object:
        raise OutOfMemoryError("none")

    layer = Layer("one", "self", "text", "text", *torch.randn(3, 1, 2, 8))
    monkeypatch.setattr(RequestHandler, "ask", ask)
    with pytest.raises(OutOfMemoryError):
        page(Scene("two words", {"text": ("a", "dog")}, (layer,)))


class Crowded(torch.nn.Linear):
    """A module for whose weights there is no room."""

    def load_state_dict(self, *_: object, **__: object) -> None:  # type: ignore[override]
        raise RuntimeError("[x] DefaultCPUAllocator: can't allocate memory: 8 bytes")


def test_weights_without_room_are_not_called_misfits(tmp_path: Path) -> None:
    """PyTorch says both with a RuntimeError."""
    trained = Trained(tmp_path, Contents(Crowded(1, 1).state_dict(), {"model": {}}), None, "x")
    for make in (lambda: rebuild(lambda: Crowded(1, 1), trained), lambda: set_weights(Crowded(1, 1), {}, tmp_path)):
        with pytest.raises(OutOfMemoryError, match="enough memory"):
            make()


def test_only_an_exhausted_memory_counts_as_one() -> None:
    assert out_of_memory_text(RuntimeError("shapes differ")) is None
    assert out_of_memory_text(torch.OutOfMemoryError("CUDA out of memory.\nmore")) == "CUDA out of memory."


def test_no_command_waits_for_a_thread_that_found_no_memory_to_begin() -> None:
    program = """
import threading

def die(thread):
    raise MemoryError

threading.Thread._bootstrap = die
from qkv.heartbeat import Heartbeat
Heartbeat(print, 3600.0).close()
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "ended\n"


NUMPY = "\n\nIMPORTANT: PLEASE READ THIS\n\nOriginal error was: libx.so: failed to map segment from shared object\n"
UNLOADED = (
    "libtorch_cpu.so: failed to map segment from shared object",
    "libx.so: cannot create shared object descriptor: Cannot allocate memory",
    "libx.so: cannot allocate memory in static TLS block",
    NUMPY,
)


def _from(cause: BaseException) -> ImportError:
    error = ImportError("DLL load failed while importing _x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [*map(ImportError, UNLOADED), _from(MemoryError()), _from(ImportError(UNLOADED[0]))])
def test_a_library_that_finds_no_memory_is_recognized(error: ImportError) -> None:
    assert out_of_memory_text(error) is not None
    with pytest.raises(OutOfMemoryError, match="enough memory to load a library"):
        expect_enough_memory(error)


@pytest.mark.parametrize("error", [ImportError("cannot import name 'x'"), ModuleNotFoundError("No module named 'x'")])
def test_a_library_that_is_missing_stays_missing(error: ImportError) -> None:
    assert out_of_memory_text(error) is None
    expect_enough_memory(error)


OPTIONAL = {
    "ctranslate2": ctranslate._library,
    "onnx": onnx_graphs._check_libraries,
    "torch.utils.tensorboard": lambda: Board(Path("/nowhere"), 0),
}


@pytest.mark.parametrize(("text", "kind"), [(UNLOADED[0], OutOfMemoryError), ("no", (ConfigError, UnsupportedError))])
@pytest.mark.parametrize("name", OPTIONAL)
def test_an_optional_library_that_finds_no_memory_is_not_called_missing(
    name: str, text: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder(MetaPathFinder):
        def find_spec(self, fullname: str, *_: object) -> None:
            if fullname.partition(".")[0] == name.partition(".")[0] and fullname.startswith(name):
                raise ImportError(text)

    for module in [each for each in sys.modules if each.startswith(name)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(kind):
        OPTIONAL[name]()
