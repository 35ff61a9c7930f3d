"""The thread pool: every chunk runs once, errors reach the caller, concurrent callers and forked children are safe."""

import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compiled.small_kernel import add_each, double

import qkv
from qkv.compiled import thread_pool

LONG = 10 * thread_pool.ALONE_BELOW


def answer() -> list[np.ndarray]:
    """What kernels give that PyTorch's threads share, or after a fork ours, and one that ours share."""
    rows = np.random.default_rng(0).normal(size=(300, 500))
    sums, doubled, by_ours = np.empty(300), rows.flatten(), rows.flatten()
    scratch = (((1, thread_pool.APART), rows.dtype),)
    thread_pool.run_in_chunks(add_each, rows.dtype, 300, LONG, (rows, sums), scratch)
    thread_pool.run_in_chunks(double, rows.dtype, rows.size, LONG, (doubled,))
    code = double.at(rows.dtype)
    thread_pool.run(lambda chunk: code(*thread_pool.share(chunk, 50, rows.size), by_ours), 50, LONG)
    return [sums, doubled, by_ours]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("microseconds", [0.0, LONG])
def test_every_chunk_once(two_threads, microseconds):
    done = [0] * 100

    def work(chunk: int) -> None:
        done[chunk] += 1

    thread_pool.run(work, 100, microseconds)
    assert done == [1] * 100
    thread_pool.run(work, 0, microseconds)


def test_workers_share_the_work(two_threads):
    meeting = threading.Barrier(2, timeout=30)
    seen = set()

    def work(chunk: int) -> None:
        meeting.wait()
        seen.add(threading.current_thread().name)

    thread_pool.run(work, 2, LONG)
    assert len(seen) == 2


def test_caller_alone_below_the_limit(two_threads):
    names = []
    thread_pool.run(lambda chunk: names.append(threading.current_thread()), 8, thread_pool.ALONE_BELOW / 2)
    assert set(names) == {threading.current_thread()}


def test_error_of_a_worker_reaches_the_caller(two_threads):
    def work(chunk: int) -> None:
        if chunk == 3:
            raise KeyError("of a chunk")

    with pytest.raises(KeyError, match="of a chunk"):
        thread_pool.run(work, 50, LONG)
    test_every_chunk_once(None, LONG)


def test_work_may_call_the_pool(two_threads):
    done = []
    thread_pool.run(lambda outer: thread_pool.run(lambda inner: done.append((outer, inner)), 4, LONG), 4, LONG)
    assert sorted(done) == [(i, j) for i in range(4) for j in range(4)]


@pytest.mark.kernels
def test_eight_python_threads_give_the_same_bits(two_threads):
    expected = answer()

    def one(_: int) -> bool:
        torch.set_num_threads(2)
        return all(same(answer(), expected) for _ in range(3))

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(one, range(8)))


@pytest.mark.kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_has_its_own_workers():
    """In a separate process: if earlier tests used PyTorch's threads, a forked child hangs in its operators."""
    program = "from tests.compiled.test_thread_pool import fork_a_child; fork_a_child()"
    path = os.pathsep.join((str(Path(qkv.__file__).parent.parent), str(Path(__file__).parent.parent.parent)))
    command, environment = [sys.executable, "-W", "ignore", "-c", program], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr


def fork_a_child() -> None:
    torch.set_num_threads(2)
    expected = answer()
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(2)
        send.send((same(answer(), expected), [t.name for t in threading.enumerate()]))

    process = context.Process(target=child)
    process.start()
    assert receive.poll(300), "the child hangs"
    equal, names = receive.recv()
    process.join(60)
    assert process.exitcode == 0
    assert equal
    assert any(name.startswith("qkv-kernel") for name in names)
    assert same(answer(), expected)


@pytest.mark.kernels
def test_beside_the_threads_of_pytorch(two_threads):
    """PyTorch's own threads and ours at the same time, from different callers."""
    expected, stop = answer(), threading.Event()
    a = torch.randn(256, 256)

    def multiply() -> None:
        torch.set_num_threads(2)
        while not stop.is_set():
            a @ a

    other = threading.Thread(target=multiply)
    other.start()
    try:
        assert all(same(answer(), expected) for _ in range(5))
    finally:
        stop.set()
        other.join()
