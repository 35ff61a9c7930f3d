"""Run something in several processes that train together: forks of this one, joined by a file."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.training.parts import SETTINGS, run_training
from torch import distributed as dist

from qkv.errors import QkvError
from qkv.training.processes import Processes, connected

_NUMBERS = count()
_HANG = 300.0
"""Seconds after which a process counts as one that hangs."""


def together(
    folder: Path,
    size: int,
    work: Callable[[int], Any],
    threads: Callable[[int], int] = lambda _: 1,
    *,
    connected: bool = True,
) -> list[Any]:
    """Return what each process returned, its `QkvError` as (name, argument, expected), or the signal that killed it.

    Args:
        folder: for the files of the connection.
        size: how many processes.
        work: takes the number of a process, and returns something for JSON.
        threads: PyTorch's threads in each.
        connected: whether they are connected before they work.
    """
    _train_once()
    home = folder / f"together-{next(_NUMBERS)}"
    home.mkdir(parents=True)
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(threads(rank))
                (home / f"{rank}.json").write_text(json.dumps(_joined(home, rank, size if connected else 1, work)))
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    return [_result(home / f"{rank}.json", _wait(pid)) for rank, pid in enumerate(pids)]


@cache
def _train_once() -> None:
    """Import all that a training imports, which every fork would do again."""
    with TemporaryDirectory() as folder:
        run_training(Path(folder, "run"), replace(SETTINGS, steps=1))


def _joined(home: Path, rank: int, size: int, work: Callable[[int], Any]) -> Any:
    try:
        if size == 1:
            return work(rank)
        with connected(Processes(rank, size, dist.FileStore(str(home / "store"), size))):
            return work(rank)
    except QkvError as error:
        return [type(error).__name__, error.argument, error.expected]


def _wait(pid: int) -> int:
    until = time.monotonic() + _HANG
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGALRM


def _result(path: Path, code: int) -> Any:
    return json.loads(path.read_text()) if code == 0 else signal.Signals(-code).name if code < 0 else f"exit {code}"
