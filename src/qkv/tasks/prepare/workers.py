"""Make shards in several processes: each makes one shard after another."""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

from qkv.errors import QkvError
from qkv.system import spawning
from qkv.tasks.corpora.manifest import Shard
from qkv.tasks.prepare.making import ShardJob, ShardMaker

Started = Mapping[int, BaseProcess]
_LOOK = 1.0
"""Seconds after which processes are looked at if no shard is ready."""


def make_shards(folder: Path, jobs: Iterable[ShardJob], processes: int) -> Iterator[tuple[int, Shard]]:
    """Make shards, in this process or in several others.

    Args:
        folder: the folder of the corpus, with what it is made from.
        jobs: the shards in order; read as far as processes are free.
        processes: how many make shards; 1 for this one.

    Returns:
        Number and content of each shard, in the order in which they are ready.

    Raises:
        DataError: a line is invalid. Of several errors it is that of the first shard, whatever the processes.
        QkvError: a process ended.
    """
    if processes == 1:
        maker = ShardMaker.load(folder)
        for job in jobs:
            yield job.number, maker.make(job)
        return
    with _pool(processes) as pool:
        started = pool._processes
        running: dict[Future[Shard], int] = {}
        failed: dict[int, QkvError] = {}
        for job in jobs:
            try:
                with spawning():
                    running[pool.submit(_make, folder, job)] = job.number
            except OSError:
                # The pool found that a process had ended, and closed its pipes, while another one was started.
                if _some_ended(started):
                    raise BrokenProcessPool from None
                raise
            del job  # the pool holds it until its shard is made
            while len(running) == processes and not failed:
                yield from _ready(running, failed, started)
            if failed:
                break
        while running:
            yield from _ready(running, failed, started)
        if failed:
            raise failed[min(failed)]


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes when they are needed, and end them: at once if something failed."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin)
    started = pool._processes  # which `shutdown` forgets
    try:
        yield pool
    except BrokenProcessPool:
        for process in started.values():
            process.terminate()  # the pool overlooks one that was being started
        pool.shutdown()
        codes = [process.exitcode or 0 for process in started.values()]
        code = next((code for code in codes if code not in (0, -signal.SIGTERM)), -signal.SIGTERM)
        got = f"one that ended with code {code}" if code >= 0 else f"one that signal {-code} ended"
        hint = "Run the same command again: it continues with what is missing."
        raise QkvError("processes", "every process to go on", got, hint) from None
    except BaseException:
        for process in started.values():
            process.kill()
        raise
    finally:
        pool.shutdown()


def _ready(
    running: dict[Future[Shard], int], failed: dict[int, QkvError], started: Started
) -> Iterator[tuple[int, Shard]]:
    """Wait until a shard is ready or some time has passed, and yield those that are.

    Raises:
        BrokenProcessPool: a process ended. The pool overlooks one that ends before it hears of another task or result,
            and waits forever if that one held the lock of the tasks.
    """
    ready = wait(running, _LOOK, FIRST_COMPLETED).done
    if not ready and _some_ended(started):
        raise BrokenProcessPool
    for future in ready:
        number = running.pop(future)
        try:
            shard = future.result()
        except QkvError as error:
            failed[number] = error
        else:
            yield number, shard


def _some_ended(started: Started) -> bool:
    return any(process.exitcode is not None for process in started.values())


def _begin() -> None:
    """Initialize a worker: it ignores Ctrl-C, which the first process handles, and ends when that process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@cache
def _maker(folder: Path) -> ShardMaker:
    return ShardMaker.load(folder)


def _make(folder: Path, job: ShardJob) -> Shard:
    return _maker(folder).make(job)
