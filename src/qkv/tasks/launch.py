"""Trainings in several processes: those that `processes` starts here, or those that `torchrun` started.

Commands and `qkv.train` use this. The processes that are started here import qkv alone, and receive the training as
names and values: the user's program itself runs only once.
"""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from itertools import count
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qkv.errors import ConfigError, DataError, Place, QkvError, TrainingError, brief, setting
from qkv.settings import build
from qkv.system import cores, leave_terminal, spawning
from qkv.tasks.settings import LoopOptions, TaskSettings

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from torch.distributed.distributed_c10d import Store

    from qkv.training.processes import Processes

_HERE = "127.0.0.1"
_NUMBERS = count()
"""Numbers the trainings of this process that `torchrun` started: each one connects separately."""
_CONNECTING = timedelta(seconds=20)
"""How long a started process tries to connect to the first one, which may have been killed meanwhile."""
_LAST = 60.0
"""Seconds in which a process ends after its training has: one that does not is stuck."""
_MOMENT = 1.0
"""Seconds to wait for the exit code of a process whose connection was closed."""
_FAILED, _DEFECT = 2, 1
"""Exit codes of a started process: after an error that the first process reports, and after a bug."""


def as_plain(item: Any, name: str = "", where: str | None = None) -> Any:
    """Return a value as texts, numbers and lists of them: an iterator can be read only once.

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
    hint = "Write the data to a file, and give its name: " + setting(name, "FILE") + "."
    raise DataError(where or name, expected, brief(repr(item)), hint)


def expect_count(number: int | None, task: TaskSettings) -> int | None:
    """Return a number of processes if a task can be trained by so many.

    Args:
        number: how many; None for those of `torchrun`, or one.
        task: the task.

    Raises:
        ConfigError: it is no number, less than one, or the task is not trained step by step.
    """
    number = build(LoopOptions, {"processes": number}).processes
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
def meet(number: int | None, device: str, work: Callable[[], object]) -> "Iterator[Processes]":
    """Start or find the other processes of the training inside, if it is to have several; `joined` connects them.

    Args:
        number: how many; None for those of `torchrun`, or one.
        device: the compute device.
        work: what each process that is started does once it is connected; it can be pickled.

    Raises:
        ConfigError: the number is less than one or not that of `torchrun`, or the device is no processor.
    """
    from qkv.training.processes import Processes, in_environment

    launched = in_environment()
    if launched is not None and number not in (None, launched[1]):
        hint = "Omit it: the number is that of torchrun."
        raise ConfigError("processes", f"{launched[1]}, as torchrun started", f"{number}", hint)
    rank, size = launched or (0, number or 1)
    if size > 1 and device != "cpu":
        hint = "Omit " + setting("device") + ": several processes train on processors."
        raise ConfigError("device", f'"cpu" with {size} processes', f'"{device}"', hint)
    if size == 1:
        yield Processes()
    elif launched is not None:
        yield Processes(rank, size, _connect_to_torchrun(), _own_address(os.environ["MASTER_ADDR"]))
    else:
        with _started(size, work) as store:
            yield Processes(0, size, store, _HERE)


@contextmanager
def joined(processes: "Processes") -> Iterator[None]:
    """Connect the processes for the training inside; all but the first one print nothing.

    Raises:
        QkvError: of another process: its own, or that it has ended.
    """
    from qkv.tasks.notes import Verbosity, use_verbosity
    from qkv.training.processes import connected

    with use_verbosity(Verbosity("quiet")) if processes.rank else nullcontext(), connected(processes):
        yield


def _connect_to_torchrun() -> "Store":
    """Connect to the processes that `torchrun` started.

    Raises:
        ConfigError: the environment does not say where they are, or they are not there.
    """
    from torch.distributed.rendezvous import rendezvous

    from qkv.training.processes import first_line

    try:
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


def _own_address(host: str) -> str | None:
    """Return the address by which this machine reaches another; None if the user names an interface, or if unknown.

    PyTorch's default is the address of the machine's host name, which is often the loopback.
    """
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 1))  # sends nothing
            return str(probe.getsockname()[0])
    return None


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
def _started(size: int, work: Callable[[], object]) -> "Iterator[Store]":
    """Start the other processes, and wait until each has found this one; all of them end with the context."""
    from qkv.training.processes import ARRIVED

    children: list[SpawnProcess] = []
    with _shared_cores(size) as threads:
        server, port = _open_store(size)
        store = _store_of_training(server, 0)
        try:
            for rank in range(1, size):
                children.append(_start(rank, size, port, threads, work))
            while not store.check([f"{ARRIVED}{rank}" for rank in range(1, size)]):
                _expect_running(children)
                time.sleep(0.02)
            yield store
        except BaseException as error:
            death = _death(error, children)
            for child in children:
                child.kill()  # it has nothing to save
            if death is not None:
                raise death from None
            raise
        finally:
            until = time.monotonic() + _LAST
            for child in children:
                child.join(max(0.0, until - time.monotonic()))
                child.kill()
                child.join()


def _expect_running(children: "list[SpawnProcess]") -> None:
    for rank, child in enumerate(children, start=1):
        if child.exitcode is not None:
            hint = "Its own message says why."
            raise ConfigError("processes", "every process to start", f"process {rank}, which ended", hint)


def _start(rank: int, size: int, port: int, threads: int, work: Callable[[], object]) -> "SpawnProcess":
    """Start one process by PyTorch's launcher, whose processes end with the one that started them.

    Its `join` is not used: it unpickles a file in the folder for temporary files.
    """
    from torch.multiprocessing import start_processes  # type: ignore[attr-defined]  # not exported

    with spawning():
        arguments = (rank, size, port, threads, work)
        (child,) = start_processes(_run, arguments, nprocs=1, join=False, daemon=True).processes
    return child  # type: ignore[no-any-return]


def _run(_: int, rank: int, size: int, port: int, threads: int, work: Callable[[], object]) -> None:
    """Train in a process that another one started, which reports the errors of all."""
    from multiprocessing import parent_process

    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # PyTorch names it without exporting it

    from qkv.training.processes import Processes

    leave_terminal()  # only the first process receives Ctrl-C; it tells the others
    torch.set_num_threads(threads)
    if (parent := parent_process()) is not None and not parent.is_alive():
        _leave(_DEFECT)  # killed while this process started; to connect would take long, and print a stack
    try:
        store = _store_of_training(TCPStore(_HERE, port, size, is_master=False, timeout=_CONNECTING), 0)
        with joined(Processes(rank, size, store, _HERE)):
            work()
    except QkvError:
        _leave(_FAILED)
    except Exception:
        traceback.print_exc()
        _leave(_DEFECT)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End a started process, whose connections are closed: to take apart what it imported would take seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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


def _death(error: BaseException, children: "list[SpawnProcess]") -> TrainingError | None:
    """Return an error that names the process whose death caused another error; None if it is unknown."""
    from qkv.training.processes import LostProcessError

    if not isinstance(error, LostProcessError):
        return None
    until = time.monotonic() + _MOMENT
    for rank, child in enumerate(children, start=1):
        child.join(max(0.0, until - time.monotonic()))
        if child.exitcode is not None and child.exitcode < 0:
            got = f"process {rank}, which signal {-child.exitcode} ended"
            return LostProcessError("processes", error.expected, got, error.hint)
    return None
