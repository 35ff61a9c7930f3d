"""PyTorch's own threads: every item once, the same bits as with one thread, and the pool if there are none."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.compiled.small_kernel import add_each, double

import qkv
from qkv.compiled import openmp, thread_pool
from qkv.errors import UnsupportedError

pytestmark = pytest.mark.kernels

ENOUGH = 2 * thread_pool.TEAM_BELOW
needs_team = pytest.mark.skipif(not openmp.available(), reason="PyTorch has no libgomp here")


@needs_team
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("things", "chunks"), [(1, 1), (7, 3), (100, 100), (5, 8), (0, 1)])
def test_every_thing_once_whoever_takes_it(things: int, chunks: int, dtype: type[np.floating]) -> None:
    given = np.random.default_rng(0).normal(size=things).astype(dtype)
    for threads in (1, 2, 3):
        doubled = given.copy()
        openmp.launcher(double, dtype)(threads, chunks, things, (doubled,))
        assert np.array_equal(doubled, 2 * given)


@needs_team
def test_each_chunk_has_scratch_of_its_own() -> None:
    rows = np.random.default_rng(1).integers(0, 9, (64, 1000)).astype(np.float32)
    sums, room = np.empty(64, np.float32), np.empty((8, 1, thread_pool.APART), np.float32)
    for _ in range(20):
        sums.fill(-1)
        openmp.launcher(add_each, np.float32)(2, 8, 64, (rows, sums, room))
        assert np.array_equal(sums, rows.sum(1))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("microseconds", [0.0, ENOUGH, 100 * thread_pool.ALONE_BELOW])
@pytest.mark.parametrize("had", [True, False])
def test_work_is_shared_out_with_a_team_and_without(
    monkeypatch: pytest.MonkeyPatch, microseconds: float, had: bool
) -> None:
    if not had:
        monkeypatch.setattr(openmp, "available", lambda: False)
    rows, sums = np.arange(60.0).reshape(10, 6), np.empty(10)
    scratch = (((1, thread_pool.APART), rows.dtype),)
    thread_pool.run_in_chunks(add_each, rows.dtype, 10, microseconds, (rows, sums), scratch)
    assert np.array_equal(sums, rows.sum(1))


def test_without_openmp_there_is_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "linked", lambda: False)
    monkeypatch.setattr(openmp, "_launchers", {})
    assert not openmp.available()
    with pytest.raises(UnsupportedError, match=r"team: expected GNU's OpenMP under PyTorch; got none\."):
        openmp.launcher(double, np.float32)


@needs_team
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_asks_nothing_of_its_parents_threads() -> None:
    """In a separate process: a child that hangs must not block this one. Threads are ended by the first fork alone."""
    program = """
import os, numpy as np, torch
torch.set_num_threads(2)
from qkv import forks
from qkv.compiled import openmp, thread_pool
from tests.compiled.small_kernel import double
for ended in (True, False):
    if not ended:
        forks._end_threads = lambda torch_file: False
    x = np.ones(64)
    thread_pool.run_in_chunks(double, x.dtype, 64, 1e4, (x,))
    assert openmp.available()
    child = os.fork()
    if child == 0:
        thread_pool.run_in_chunks(double, x.dtype, 64, 1e4, (x,))
        os._exit(0 if openmp.available() == ended and x.sum() == 256 else 1)
    print(os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    path = os.pathsep.join((str(Path(qkv.__file__).parents[1]), str(Path(__file__).parents[2])))
    settings = {**os.environ, "PYTHONPATH": path}
    # Emulated on a busy machine, importing PyTorch alone takes minutes.
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=900, check=False)
    assert (done.stdout, done.stderr) == ("0\n0\n", "")
