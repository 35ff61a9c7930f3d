"""`--processes`: train with several processes, started here or by `torchrun`."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import typer

from qkv.cli.memory import BAD_INPUT
from qkv.errors import ConfigError, QkvError, setting

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


_HERE = "127.0.0.1"
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_LAST = 10.0
"""Seconds in which a process ends after its training has."""
_SHOWN = 200
"""Characters of what PyTorch says that a message quotes."""


@contextmanager
def together(count: int | None, device: str) -> Iterator[None]:
    """Let the trainings inside run in several processes, if there are to be several.

    Args:
        count: how many; None for those of `torchrun`, or one.
        device: the compute device.

    Raises:
        ConfigError: the number is less than one or not that of `torchrun`, or the device is no processor.
        TrainingError: a process has ended.
    """
    from qkv.training.processes import in_environment

    if count is not None and count < 1:
        raise ConfigError("processes", "at least 1", f"{count}", "Omit it for one process.")
    started = in_environment()
    if started is not None and count not in (None, started[1]):
        hint = "Omit it: the number is that of torchrun."
        raise ConfigError("processes", f"{started[1]}, as torchrun started", f"{count}", hint)
    rank, size = started or (0, count or 1)
    if size == 1:
        yield
        return
    if device != "cpu":
        hint = f"Omit {setting('device')}: several processes train on processors."
        raise ConfigError("device", f'"cpu" with {size} processes', f'"{device}"', hint)
    with ExitStack() as stack:
        store = _of_torchrun() if started is not None else stack.enter_context(_with_others(size))
        stack.enter_context(_joined(rank, size, store))
        yield


@contextmanager
def _joined(rank: int, size: int, store: "Store") -> Iterator[None]:
    """Connect to the others; those that do not lead say nothing, and end without a message."""
    from qkv.tasks.notes import Verbosity, use_verbosity
    from qkv.training.processes import joined

    with ExitStack() as silence:
        if rank:
            silence.enter_context(use_verbosity(Verbosity("quiet")))
        try:
            with joined(rank, size, store):
                yield
        except QkvError:
            if rank:
                raise typer.Exit(BAD_INPUT) from None
            raise


def _of_torchrun() -> "Store":
    """Connect to the processes that `torchrun` started.

    Raises:
        ConfigError: the environment does not say where they are, or they are not there.
    """
    from torch.distributed.rendezvous import rendezvous

    try:
        store: Store = next(rendezvous("env://"))[0]
    except (ValueError, RuntimeError) as error:  # PyTorch's for variables, and for connections
        got = str(error).split("\n")[0][:_SHOWN]
        hint = "Start the command with torchrun, or unset RANK and WORLD_SIZE."
        raise ConfigError("environment", "MASTER_ADDR and MASTER_PORT of the first process", got, hint) from None
    return store


def _listening(size: int) -> "tuple[Store, int]":
    """Return what the processes share, and its port.

    Only this machine can reach it: PyTorch by itself listens on every network.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # PyTorch names it without exporting it

    with socket.create_server((_HERE, 0)) as server:
        port = server.getsockname()[1]
        here = server.detach()
    return TCPStore(_HERE, port, size, is_master=True, wait_for_workers=False, master_listen_fd=here), port


@contextmanager
def _with_others(size: int) -> Iterator["Store"]:
    """Start the other processes: they run the same command, and find the first one by their environment."""
    import torch

    from qkv.system import cores

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // size))
    store, port = _listening(size)
    if sys.platform in _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    others: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(1, size):
            others.append(_start(rank, size, port, torch.get_num_threads()))
        _wait_for(others, store)
        yield store
    finally:
        until = time.monotonic() + _LAST
        for other in others:
            try:
                other.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                other.kill()
                other.wait()


def _start(rank: int, size: int, port: int, threads: int) -> subprocess.Popen[bytes]:
    environment = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": threads,
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "qkv", *sys.argv[1:]],
        env={**os.environ, **{name: str(item) for name, item in environment.items()}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the first process, which tells the others
    )


def _wait_for(others: list[subprocess.Popen[bytes]], store: "Store") -> None:
    """Wait until all processes have come, or one of them has ended."""
    from qkv.training.processes import HERE

    while not store.check([f"{HERE}{rank}" for rank in range(1, len(others) + 1)]):
        ended = [rank for rank, other in enumerate(others, start=1) if other.poll() is not None]
        if ended:
            hint = "Its own message says why."
            raise ConfigError("processes", "every process to start", f"process {ended[0]}, which ended", hint)
        time.sleep(0.02)
