"""The threads that run compiled kernels, `torch.get_num_threads()` including the caller: PyTorch's own, or workers.

A kernel that takes a range of items runs on PyTorch's own threads (`run_in_chunks`). Other work is cut into chunks that
any worker may take, and so is a kernel's if PyTorch's threads are not available. The caller takes chunks too. So it
never waits for a worker that is busy with another call, and calls from many Python threads share the workers without
blocking each other. A forked child has no workers and starts its own when it first needs them.
"""

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.compiled import openmp
from qkv.compiled.kernels import Kernel

ALONE_BELOW = 200.0
"""Microseconds of work below which the caller works alone: waking a worker takes about a tenth of that."""

TEAM_BELOW = 20.0
"""Microseconds of work below which the caller does not use PyTorch's threads."""

APART = 32
"""The fewest numbers in a scratch array: two threads that write to one cache line slow each other down."""

_MAX_RETAINED = 1 << 23
"""The most bytes of scratch that a thread retains between calls."""

_EACH = 4
"""Chunks for each thread, so that one whose chunks take less time can take more of them."""

_queue: "SimpleQueue[_Job]" = SimpleQueue()
_workers = 0
_lock = threading.Lock()


class _Job:
    """The chunks of one call, taken from a counter; whoever finishes the last one wakes the caller."""

    def __init__(self, work: Callable[[int], None], chunks: int) -> None:
        self.work = work
        self.chunks = chunks
        self.next = itertools.count()
        self.done = itertools.count(1)
        self.finished = threading.Event()
        self.error: BaseException | None = None

    def help(self) -> None:
        """Take chunks until none is left. `next` of `itertools.count` is atomic: one step of the interpreter."""
        while (chunk := next(self.next)) < self.chunks:
            try:
                if self.error is None:
                    self.work(chunk)
            except BaseException as error:
                self.error = error
            if next(self.done) == self.chunks:
                self.finished.set()


def run(work: Callable[[int], None], chunks: int, microseconds: float) -> None:
    """Run `work(0)` to `work(chunks - 1)`, each once, on as many threads as PyTorch would use.

    Args:
        work: does one chunk; called from several threads at once. It should release Python's lock (the GIL).
        chunks: the number of chunks.
        microseconds: roughly how long all chunks take one thread; below `ALONE_BELOW` no worker is woken.

    Raises:
        BaseException: an error that `work` raised; chunks that nobody had taken before it are not run.

    Example:
        >>> squares = [0] * 4
        >>> run(lambda chunk: squares.__setitem__(chunk, chunk**2), 4, 1000.0)
        >>> squares
        [0, 1, 4, 9]
    """
    helpers = 0 if microseconds < ALONE_BELOW else min(thread_count(), chunks) - 1
    if helpers <= 0:
        for chunk in range(chunks):
            work(chunk)
        return
    job = _Job(work, chunks)
    _start_workers(helpers)
    for _ in range(helpers):
        _queue.put(job)
    job.help()
    job.finished.wait()
    if job.error is not None:
        raise job.error


def run_in_chunks(
    kernel: Kernel,
    dtype: Any,
    items: int,
    microseconds: float,
    arguments: Sequence[Any],
    scratch: Sequence[tuple[tuple[int, ...], Any]] = (),
    each: int = _EACH,
) -> None:
    """Run a kernel over a range of items, on as many threads as PyTorch would use: PyTorch's own if available.

    Args:
        kernel: its arguments are the range (start, stop), then `arguments`, then its scratch.
        dtype: float32 or float64.
        items: the number of items.
        microseconds: roughly how long all items take one thread.
        arguments: the kernel's arguments after the range.
        scratch: shape and type of each scratch array of a chunk, at least `APART` numbers; not initialized.
        each: chunks for each of PyTorch's threads; fewer will do if all items take equally long.

    Example:
        >>> from qkv.algorithms.rowwise.entmax_kernel import entmax
        >>> scores, tau, scratch = np.array([[[1.0, 0.5]]]), np.empty((1, 1)), (((3,), "f8"), ((64,), "f8"))
        >>> run_in_chunks(entmax, scores.dtype, 1, 0.0, (np.array([2.0]), scores, tau), scratch)
        >>> scores, tau
        (array([[[0.75, 0.25]]]), array([[0.25]]))
    """
    assert len(scratch) == kernel.scratch, kernel.signature
    if openmp.available():
        threads = thread_count() if microseconds >= TEAM_BELOW else 1
        count = 1 if threads == 1 else max(1, min(items, each * threads))
        arrays = _scratch.of([((count, *shape), kind) for shape, kind in scratch])
        openmp.launcher(kernel, dtype)(threads, count, items, (*arguments, *arrays))
        return
    code, count = kernel.at(dtype), chunks(microseconds, items)

    def work(chunk: int) -> None:
        code(*share(chunk, count, items), *arguments, *(np.empty(shape, kind) for shape, kind in scratch))

    run(work, count, microseconds)


@final
class _Scratch(threading.local):
    """Scratch arrays that a thread reuses.

    glibc would return large blocks to the system, and the first access to new pages takes a fifth of a short pass.
    """

    def __init__(self) -> None:
        self._retained: dict[tuple[Any, ...], list[NDArray[Any]]] = {}
        self._bytes = 0

    def of(self, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> list[NDArray[Any]]:
        """Return arrays of these shapes and types, not initialized."""
        key = tuple(shapes)
        arrays = self._retained.get(key)
        if arrays is None:
            arrays = [np.empty(shape, kind) for shape, kind in shapes]
            size = sum(array.nbytes for array in arrays)
            if self._bytes + size > _MAX_RETAINED:
                self._retained.clear()
                self._bytes = 0
            if size <= _MAX_RETAINED:
                self._retained[key] = arrays
                self._bytes += size
        return arrays


_scratch = _Scratch()


def thread_count() -> int:
    """Return how many threads a call may use, including its own.

    Returns:
        `torch.get_num_threads()` of the calling thread.

    Example:
        >>> thread_count() >= 1
        True
    """
    return torch.get_num_threads()


def chunks(microseconds: float, most: int) -> int:
    """Return into how many chunks to cut work whose parts may take different times.

    Args:
        microseconds: roughly how long all of it takes one thread.
        most: the largest possible number of chunks.

    Returns:
        1 if the caller works alone, otherwise a few per thread.

    Example:
        >>> chunks(0.0, 1000)
        1
    """
    return 1 if microseconds < ALONE_BELOW else max(1, min(most, _EACH * thread_count()))


def share(chunk: int, chunks: int, count: int) -> tuple[int, int]:
    """Return the range of items that belongs to a chunk.

    Args:
        chunk: its index.
        chunks: the number of chunks.
        count: the number of items.

    Returns:
        The start and stop of the range.

    Example:
        >>> [share(chunk, 3, 10) for chunk in range(3)]
        [(0, 3), (3, 6), (6, 10)]
    """
    return chunk * count // chunks, (chunk + 1) * count // chunks


def _start_workers(count: int) -> None:
    global _workers  # noqa: PLW0603 - one pool for the process
    if _workers >= count:
        return
    with _lock:
        while _workers < count:
            threading.Thread(target=_work, args=(_queue,), name=f"qkv-kernel-{_workers}", daemon=True).start()
            _workers += 1


def _work(queue: "SimpleQueue[_Job]") -> None:
    while True:
        queue.get().help()


def _after_fork() -> None:
    """In a forked child only the forking thread is left: start again without workers, and with a free lock."""
    global _queue, _workers, _lock
    _queue, _workers, _lock = SimpleQueue(), 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
