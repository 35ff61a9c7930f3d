"""The pool: every chunk once, errors reach the caller, concurrent callers and forked children are safe."""

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
from tests.algorithms.additive.direct import case, ours

import qkv
from qkv.algorithms.rowwise.entmax import project
from qkv.algorithms.rowwise.row_passes import RowMechanism, Tile, weigh
from qkv.compiled import thread_pool

LONG = 10 * thread_pool.ALONE_BELOW
BIG = {"items": 2, "queries": 120, "keys": 160, "width": 64, "columns": 16}


def answer() -> list[np.ndarray]:
    c = case(1, **BIG)
    grad = np.random.default_rng(0).normal(size=(2, 120, 16)).astype(np.float32)
    return [*(x.numpy() for x in ours(c, grad).values()), *rows()]


def rows() -> list[np.ndarray]:
    """What the passes over rows give: a softmax with dropout, a kernel, a sparse row. PyTorch's own threads, which do
    not survive a fork, have no part in it."""
    products = np.random.default_rng(2).normal(size=(2, 100, 500)).astype(np.float32)
    ends = np.zeros((2, 100), np.int32), np.full((2, 100), 500, np.int32)
    none, numbers = np.zeros((0, 0, 0)), np.arange(2) * 100
    tile = Tile(np.ones(2), np.full(2, -np.inf), *ends, none.astype(bool), none.astype("f4"), numbers, 0)
    keep = np.array(1.25).view(np.uint64)
    drop = np.array([7, 2**32 // 5, keep], np.uint64)
    found = [np.empty_like(products), np.empty_like(products), products.copy()]
    found.append(weigh(RowMechanism("Linear", 0.0, "softmax", drop), tile, products, found[0]))
    found.append(weigh(RowMechanism("GaussianShape", 0.0, "sum", drop[:0]), tile, products, found[1]))
    found.append(project(found[2], np.array([1.5, 1.3])))
    return found


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


def test_eight_python_threads_give_the_same_bits(two_threads):
    expected = answer()

    def one(_: int) -> bool:
        torch.set_num_threads(2)
        return all(same(answer(), expected) for _ in range(3))

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(one, range(8)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_child_has_its_own_workers():
    """In a process of its own: a child hangs in PyTorch's operators where tests before used its threads."""
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
