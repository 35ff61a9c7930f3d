"""One line for whoever waits for the compiler, and none for anyone else."""

import logging
import threading
from collections.abc import Iterator

import pytest
from tests.compiled import small_kernel

from qkv.compiled import cache, kernels, waiting


@pytest.fixture(autouse=True)
def _starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_waited", 0.0)
    monkeypatch.setattr(waiting, "_told", False)
    monkeypatch.delenv(waiting.QUIET, raising=False)


class Heard(logging.Handler):
    """What a handler of an application receives."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.any = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.any.set()


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logging.getLogger("qkv").addHandler(handler)
    yield handler
    logging.getLogger("qkv").removeHandler(handler)


def test_who_waits_longer_than_a_second_reads_one_line(heard: Heard) -> None:
    with waiting.announced("qkv.first"):
        assert heard.any.wait(60)
    with waiting.announced("qkv.second"):
        pass
    (line,) = heard.lines
    assert "first" in line
    assert "qkv warm" in line


def test_seconds_of_a_process_add_up(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_waited", waiting.PATIENCE)
    with waiting.announced("qkv.late"):
        assert heard.any.wait(60)
    assert "late" in heard.lines[0]


def test_short_waits_and_quiet_processes_read_nothing(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    with waiting.announced("qkv.short"):
        pass
    monkeypatch.setenv(waiting.QUIET, "1")
    monkeypatch.setattr(waiting, "_waited", waiting.PATIENCE)
    with waiting.announced("qkv.quiet"):
        assert not heard.any.wait(0.2)
    assert heard.lines == []


def test_compiling_names_the_kernel(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_waited", waiting.PATIENCE)
    monkeypatch.setattr(cache, "stored_code", lambda *_: None)
    kernels.compile_cached(small_kernel.double.py_func, "void(i8, i8, f4[::1])")
    assert heard.any.wait(60)
    assert "tests.compiled.small_kernel" in heard.lines[0]
