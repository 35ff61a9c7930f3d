"""Compile kernels ahead of their first call, on all cores."""

import contextlib
import importlib
import multiprocessing
import os
import pkgutil
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple, final

import numpy as np

import qkv
from qkv.compiled import openmp
from qkv.compiled.kernels import Kernel
from qkv.compiled.waiting import QUIET
from qkv.errors import CompilationError, ConfigError, nearest, setting
from qkv.system import cores

_MODULE = "_kernel"
"""How the names of modules end that hold kernels."""
STEP = "compiled"
"""A function of such a module that compiles what is not a `Kernel`."""
DTYPES = "float32", "float64"


class Job(NamedTuple):
    """Something to compile, by name, so that another process can find it.

    Attributes:
        module: the module that holds it.
        name: of a kernel, of a dictionary of kernels, or `STEP`.
        key: of the kernel in the dictionary; None if it is in none.
        dtype: the float type.
    """

    module: str
    name: str
    key: Any
    dtype: str

    def __str__(self) -> str:
        """Return the kernel's name."""
        name = f"{self.module.removeprefix('qkv.')}.{self.name}"
        return name if self.key is None else f"{name}[{self.key!r}]"


def families() -> list[str]:
    """List the folders that hold kernels, by which `jobs` selects them.

    Example:
        >>> families()
        ['additive', 'decode', 'decoding', 'introspect', 'linalg', 'recurrent', 'rowwise', 'sdpa', 'sorted']
    """
    return sorted({_family(module) for module in _modules()})


def jobs(chosen: Sequence[str] = (), dtypes: Sequence[str] = DTYPES) -> list[Job]:
    """List what there is to compile, each machine code once, what takes longest first.

    Args:
        chosen: names from `families`, or parts of one, such as `additive.direct`; empty for all.
        dtypes: the float types; a kernel that exists for float32 alone is listed for that.

    Raises:
        ConfigError: a name or a type is unknown.

    Example:
        >>> [job.name for job in jobs(["recurrent"], ["float32"])]
        ['backward', 'forward']
    """
    for dtype in dtypes:
        if dtype not in DTYPES:
            raise ConfigError("dtype", " or ".join(DTYPES), repr(dtype), nearest(dtype, DTYPES))
    modules, known = _modules(), families()
    for name in chosen:
        if name not in (*known, *map(_part, modules)):
            expected = f"some of {', '.join(known)}"
            raise ConfigError("kernels", expected, repr(name), nearest(name, known))
    wanted = [module for module in modules if not chosen or {_family(module), _part(module)} & set(chosen)]
    found = [job for module in wanted for job in _jobs(module, dtypes)]
    return [job for _, job in sorted(found, key=lambda pair: pair[0])]


def run(wanted: Sequence[Job], processes: int | None = None) -> Iterator[Job]:
    """Compile in parallel, or load what is on disk; an interruption keeps what has been compiled.

    Args:
        wanted: what to compile.
        processes: how many processes; None for one per core that this process may use.

    Yields:
        Each job when it is done.

    Raises:
        CompilationError: a process ended before its job was done, killed for want of memory for instance.
        Exception: what a job raised in its process.
    """
    context, queue = multiprocessing.get_context("spawn"), list(reversed(wanted))
    workers: list[_Worker] = []
    try:
        for _ in range(min(len(wanted), processes or cores())):
            workers.append(_Worker(context))
            workers[-1].begin(queue.pop())
        while busy := [worker for worker in workers if worker.job is not None]:
            ready = wait([worker.connection for worker in busy])
            for worker in busy:
                if worker.connection in ready:
                    yield worker.finish()
                    if queue:
                        worker.begin(queue.pop())
    finally:
        for worker in workers:
            worker.close()


@final
class _Worker:
    """A process that does one job after another, and the end of a pipe to it.

    `multiprocessing.Pool` and its queues would wait for ever for a job whose process has died.

    Args:
        context: starts the process.
    """

    def __init__(self, context: SpawnContext) -> None:
        self.connection, theirs = context.Pipe()
        self.job: Job | None = None
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def begin(self, job: Job) -> None:
        """Hand a job to the process."""
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # then `finish` reads the pipe's end
            self.connection.send(job)

    def finish(self) -> Job:
        """Return the job, which is done.

        Raises:
            CompilationError: the process has ended.
            Exception: what the job raised.
        """
        job = self.job
        assert job is not None
        try:
            error = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise _ended(job, self.process.exitcode) from None
        if error is not None:
            raise error
        self.job = None
        return job

    def close(self) -> None:
        """End the process, at once if it is at work, and release what belongs to it."""
        if self.job is not None:
            self.process.kill()
        self.connection.close()
        self.process.join()
        self.process.close()


def _ended(job: Job, exit_code: int | None) -> CompilationError:
    """Return the error that a process ended while it compiled."""
    known = {-number: number.name for number in signal.Signals}
    ending = known.get(exit_code or 0, f"exit code {exit_code}")
    hint = "Repeat the command: what was compiled is kept. If it ends here again, report this as a bug."
    if ending == "SIGKILL":
        hint = (
            f"Systems kill processes when memory runs out. Repeat with {setting('jobs', '1')}: what was "
            "compiled is kept."
        )
    return CompilationError(f"{job}, {job.dtype}", "machine code", f"a process that ended by {ending}", hint)


def _work(connection: "Connection[Exception | None, Job]") -> None:
    """Do jobs until the parent closes the pipe, or has ended.

    Ctrl-C is left to the parent, which ends its workers, and announcements to the parent's progress bar.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[QUIET] = "1"
    with contextlib.suppress(EOFError, OSError):
        while True:
            job = connection.recv()
            try:
                _compile(job)
            except Exception as error:  # it is the parent's
                error.add_note(traceback.format_exc())
                connection.send(error)
            else:
                connection.send(None)


def _compile(job: Job) -> None:
    found = getattr(importlib.import_module(job.module), job.name)
    kernel = found if job.key is None else found[job.key]
    if not isinstance(kernel, Kernel):
        if openmp.linked():
            kernel()
    elif kernel.scratch is not None and openmp.available():
        openmp.launcher(kernel, np.dtype(job.dtype))
    else:
        kernel.at(job.dtype)


def _modules() -> list[str]:
    return [info.name for info in pkgutil.walk_packages(qkv.__path__, "qkv.") if info.name.endswith(_MODULE)]


def _family(module: str) -> str:
    return module.split(".")[-2]


def _part(module: str) -> str:
    return f"{_family(module)}.{module.rpartition('.')[2].removesuffix(_MODULE)}"


def _jobs(module: str, dtypes: Sequence[str]) -> Iterator[tuple[int, Job]]:
    """Yield what a module has to compile, with a rank: functions of many arguments take longest."""
    seen = set()
    for name, found in vars(importlib.import_module(module)).items():
        for key, kernel in found.items() if isinstance(found, dict) and not name.startswith("__") else [(None, found)]:
            if not isinstance(kernel, Kernel) or kernel.py_func.__module__ != module:
                continue
            for dtype in dtypes:
                if np.dtype(dtype) in kernel.dtypes:
                    code = kernel.py_func, kernel.signature_at(dtype)
                    if code not in seen:
                        seen.add(code)
                        yield -len(kernel.signature), Job(module, name, key, dtype)
        if name == STEP and "float32" in dtypes:
            yield -1000, Job(module, name, None, "float32")
