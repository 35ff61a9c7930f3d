"""Trainings in several processes: those that `processes` starts here, or those that `torchrun` started.

Commands and `qkv.train` use this. The processes that are started here run `qkv.tasks.requested_training`, and receive
the training as names and values: the user's program itself runs only once.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import count
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from qkv.errors import ConfigError, DataError, Place, TrainingError, brief, setting
from qkv.settings import converted
from qkv.strict_json import parse_json
from qkv.system import cores, interface_to, python_command, watched_connections
from qkv.tasks.settings import LoopOptions, TaskSettings

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from qkv.training.processes import Processes

_HERE = "127.0.0.1"
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_INTERFACE = "GLOO_SOCKET_IFNAME"
_NUMBERS = count()
"""Numbers the trainings of this process that `torchrun` started: each one connects separately."""
_LAST = 10.0
"""Seconds in which a process ends after its training has."""
_MOMENT = 1.0
"""Seconds to wait for the exit code of a process whose connection was closed."""


@final
@dataclass(frozen=True)
class TrainingCall:
    """A training as names and values, which can be sent to another process.

    Args:
        task: the name of the task.
        tables: settings by table and name; data can be values.
        out: the run folder.
        start: the run whose weights are used, if any.
        tokenizer_from: the run whose tokenizer is used, if any.
    """

    task: str
    tables: Mapping[str, Mapping[str, Any]]
    out: Path | None
    start: Path | None = None
    tokenizer_from: Path | None = None

    def to_json(self) -> str:
        """Return the call as JSON.

        Raises:
            DataError: the data has values that are neither texts nor numbers.

        Example:
            >>> call = TrainingCall("tag", {"data": {"data": [[("Ada", "PER")]]}}, Path("run"))
            >>> TrainingCall.from_json(call.to_json()).tables
            {'data': {'data': [[['Ada', 'PER']]]}}
        """
        call = {
            call_field.name: as_plain(getattr(self, call_field.name))
            for call_field in fields(self)
            if call_field.name != "tables"
        }
        tables = {table: {name: _packed(item) for name, item in rows.items()} for table, rows in self.plain().items()}
        return json.dumps({**call, "tables": tables})

    @classmethod
    def from_json(cls, text: str) -> "TrainingCall":
        """Return the call that `to_json` wrote."""
        call = parse_json(text)
        tables = {
            table: {name: _unpacked(item) for name, item in rows.items()} for table, rows in call["tables"].items()
        }
        paths = {name: None if call[name] is None else Path(call[name]) for name in ("out", "start", "tokenizer_from")}
        return cls(call["task"], tables, **paths)

    def plain(self) -> dict[str, dict[str, Any]]:
        """Return the tables with lists in place of whatever can be iterated over once.

        Raises:
            DataError: the data has values that are neither texts nor numbers.
        """
        return {
            table: {name: as_plain(item, name) for name, item in rows.items()} for table, rows in self.tables.items()
        }


def as_plain(item: Any, name: str = "", where: str | None = None) -> Any:
    """Return a value as texts, numbers and lists of them.

    Args:
        item: the value; a path becomes a text.
        name: of the setting, for messages.
        where: of the item that the value is a part of, for messages.

    Raises:
        DataError: it is something else; the message names the item.

    Example:
        >>> as_plain(("a" * n, n) for n in range(2))
        [['', 0], ['a', 1]]
    """
    match item:
        case None | str() | bool():
            return item
        case Path():
            return str(item)
        case Integral():
            return int(item)
        case Real():
            return float(item)
        case Iterable() if not isinstance(item, bytes | bytearray | Mapping) and getattr(item, "ndim", True):
            return [as_plain(part, name, where or Place(name, number)) for number, part in enumerate(item, start=1)]
    expected = "texts, numbers or lists of them, which other processes can be given"
    hint = f"Write the data to a file, and give its name: {setting(f'data.{name}', 'FILE')}."
    raise DataError(where or name, expected, brief(repr(item)), hint)


def _packed(item: Any) -> Any:
    """Return a value whose inner lists are texts, so that the nesting of the JSON does not grow with their number."""
    return {"items": [json.dumps(part) for part in item]} if isinstance(item, list) else item


def _unpacked(item: Any) -> Any:
    return [parse_json(part, finite=False) for part in item["items"]] if isinstance(item, dict) else item


@final
@dataclass(frozen=True, eq=False)
class Rendezvous:
    """What one process of a training knows of the others before they are connected.

    Args:
        rank: the number of this process; 0 leads.
        size: how many there are.
        store: what they share; None for one process.
        others: those that this process started.
    """

    rank: int = 0
    size: int = 1
    store: "Store | None" = None
    others: tuple["subprocess.Popen[bytes]", ...] = ()

    @contextmanager
    def joined(self, call: TrainingCall | None = None) -> Iterator["Processes"]:
        """Connect the processes for the training inside; all but the first one print nothing.

        Args:
            call: what the child processes are to train.

        Raises:
            QkvError: of another process: its own, or that it has ended.
        """
        from qkv.tasks.notes import Verbosity, use_verbosity
        from qkv.training.processes import Processes, joined

        if self.store is None:
            yield Processes()
            return
        text = call.to_json() if call is not None and self.others else None
        with ExitStack() as stack:
            if self.rank:
                stack.enter_context(use_verbosity(Verbosity("quiet")))
            processes = stack.enter_context(joined(self.rank, self.size, self.store))
            if text is not None:
                processes.copy_text(text)
            yield processes


def expect_count(number: int | None, task: TaskSettings) -> int | None:
    """Return a number of processes if a task can be trained by so many.

    Args:
        number: how many; None for those of `torchrun`, or one.
        task: the task.

    Raises:
        ConfigError: it is no number, less than one, or the task is not trained step by step.
    """
    number = converted(LoopOptions, {"processes": number})["processes"]
    if not issubclass(task.options, LoopOptions):
        expect_one_process(number or 1)
    return number


def expect_one_process(number: int) -> None:
    """Refuse several processes for a model that is fitted in one step.

    Raises:
        ConfigError: there are several.
    """
    if number > 1:
        hint = "It is fitted at once, without updates to share."
        raise ConfigError("processes", "1 for this task", f"{number}", hint)


@contextmanager
def meet(number: int | None, device: str) -> Iterator[Rendezvous]:
    """Start or find the other processes of the training inside, if it is to have several.

    Args:
        number: how many; None for those of `torchrun`, or one.
        device: the compute device.

    Raises:
        ConfigError: the number is less than one or not that of `torchrun`, or the device is no processor.
    """
    from qkv.training.processes import in_environment

    started = in_environment()
    if started is not None and number not in (None, started[1]):
        hint = "Omit it: the number is that of torchrun."
        raise ConfigError("processes", f"{started[1]}, as torchrun started", f"{number}", hint)
    rank, size = started or (0, number or 1)
    if size == 1:
        yield Rendezvous()
        return
    if device != "cpu":
        hint = f"Omit {setting('device')}: several processes train on processors."
        raise ConfigError("device", f'"cpu" with {size} processes', f'"{device}"', hint)
    if started is not None:
        with _using_interface(_interface()):
            yield Rendezvous(rank, size, _connect_to_torchrun())
        return
    with _started_processes(size) as (store, children):
        yield Rendezvous(rank, size, store, children)


def _connect_to_torchrun() -> "Store":
    """Connect to the processes that `torchrun` started.

    Raises:
        ConfigError: the environment does not say where they are, or they are not there.
    """
    from torch.distributed.rendezvous import rendezvous

    from qkv.training.processes import UNREACHABLE_AFTER, first_line

    try:
        with watched_connections(UNREACHABLE_AFTER):
            store: Store = next(rendezvous("env://"))[0]
    except (ValueError, RuntimeError) as error:  # PyTorch's for variables, and for connections
        got = first_line(error)
        hint = "Start the command with torchrun, or unset RANK and WORLD_SIZE."
        raise ConfigError("environment", "MASTER_ADDR and MASTER_PORT of the first process", got, hint) from None
    return _store_of_training(store, next(_NUMBERS))


def _store_of_training(store: "Store", number: int) -> "Store":
    """Return the part of a store for one training: processes of `torchrun` can connect for several trainings."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # PyTorch names it without exporting it

    return PrefixStore(f"qkv-{number}", store)


def _interface() -> str | None:
    """Return the interface through which the machines of `torchrun` reach each other; None for one machine.

    PyTorch's default is the interface of the machine's host name, which is often the loopback.
    """
    several = os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")
    return interface_to(os.environ.get("MASTER_ADDR", "")) if several else None


def _open_store(size: int) -> "tuple[Store, int]":
    """Return what the processes share, and its port.

    Only this machine can reach it; PyTorch's default listens on every network.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # PyTorch names it without exporting it

    with socket.create_server((_HERE, 0)) as server:
        port = server.getsockname()[1]
        here = server.detach()
    return TCPStore(_HERE, port, size, is_master=True, wait_for_workers=False, master_listen_fd=here), port


@contextmanager
def _started_processes(size: int) -> Iterator[tuple["Store", tuple["subprocess.Popen[bytes]", ...]]]:
    """Start the child processes, which find this one by environment variables; they end with the context."""
    children: list[subprocess.Popen[bytes]] = []
    with _shared_cores(size) as threads, _using_interface(_LOOPBACK.get(sys.platform)):
        server, port = _open_store(size)
        store = _store_of_training(server, 0)  # the child processes see this as their first training
        try:
            for rank in range(1, size):
                children.append(_start(rank, size, port, threads))
            _wait_for(children, store)
            yield store, tuple(children)
        except BaseException as error:
            ended = _process_error(error, children)
            for child in children:
                child.kill()  # it has nothing to save
            if ended is not None:
                raise ended from None
            raise
        finally:
            _wait_or_kill(children)


@contextmanager
def _shared_cores(size: int) -> Iterator[int]:
    """Divide the cores among processes, unless the environment or the program has chosen fewer threads."""
    import torch

    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(before, max(1, cores() // size)))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def _using_interface(interface: str | None) -> Iterator[None]:
    """Connect processes through an interface, unless the environment names another one."""
    if interface is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = interface
    try:
        yield
    finally:
        os.environ.pop(_INTERFACE, None)


def _start(rank: int, size: int, port: int, threads: int) -> "subprocess.Popen[bytes]":
    environment = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "MASTER_ADDR": _HERE,
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": threads,
    }
    return subprocess.Popen(
        python_command("from qkv.tasks.requested_training import main; main()"),
        env={**os.environ, **{name: str(item) for name, item in environment.items()}},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the first process, which tells the others
    )


def _wait_for(children: "list[subprocess.Popen[bytes]]", store: "Store") -> None:
    """Wait until all processes have connected, or one of them has ended."""
    from qkv.training.processes import ARRIVED

    while not store.check([f"{ARRIVED}{rank}" for rank in range(1, len(children) + 1)]):
        ended = [rank for rank, child in enumerate(children, start=1) if child.poll() is not None]
        if ended:
            hint = "Its own message says why."
            raise ConfigError("processes", "every process to start", f"process {ended[0]}, which ended", hint)
        time.sleep(0.02)


def _process_error(error: BaseException, children: "list[subprocess.Popen[bytes]]") -> TrainingError | None:
    """Return an error that names the process whose death caused another error; None if it is unknown."""
    from qkv.training.processes import LostProcessError

    if not isinstance(error, LostProcessError):
        return None
    until = time.monotonic() + _MOMENT
    while time.monotonic() < until:
        for rank, child in enumerate(children, start=1):
            if (code := child.poll()) is not None and code < 0:
                got = f"process {rank}, which signal {-code} ended"
                return LostProcessError("processes", error.expected, got, error.hint)
        if all(child.poll() is not None for child in children):
            break
        time.sleep(0.02)
    return None


def _wait_or_kill(children: "list[subprocess.Popen[bytes]]") -> None:
    """Wait until processes have ended; kill those that take long."""
    until = time.monotonic() + _LAST
    try:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
