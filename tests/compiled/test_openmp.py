"""PyTorch's own threads: every thing once, the same bits as alone, and the pool where there are none."""

import os
import subprocess
import sys

import numpy as np
import pytest

from qkv.algorithms.additive.layout_kernel import lay_out
from qkv.compiled import openmp, thread_pool
from qkv.decode.top_tokens_kernel import BLOCK, best_tokens
from qkv.errors import UnsupportedError

ENOUGH = 2 * thread_pool.TEAM_BELOW
needs_team = pytest.mark.skipif(not openmp.available(), reason="PyTorch has no libgomp here")


@needs_team
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("things", "chunks"), [(1, 1), (7, 3), (100, 100), (5, 8), (0, 1)])
def test_every_thing_once_whoever_takes_it(things: int, chunks: int, dtype: type[np.floating]) -> None:
    given = np.random.default_rng(0).normal(size=(things, 3, 2)).astype(dtype)
    alone = np.full((things, 1, 4, 16), 9, dtype)
    together = alone.copy()
    lay_out.at(dtype)(0, things, given, alone)
    for threads in (1, 2, 3):
        together.fill(9)
        openmp.launcher(lay_out, dtype, 0)(threads, chunks, things, (given, together))
        assert np.array_equal(alone, together)


@needs_team
def test_each_chunk_has_scratch_of_its_own() -> None:
    scores = np.random.default_rng(1).normal(size=(64, 1000)).astype(np.float32)
    none = np.empty(0, np.uint64)
    found, gains = np.empty((64, 2), np.uint64), np.empty((64, 2), np.float32)
    room = np.empty((8, -(-1000 // BLOCK)), np.float32)
    packed = (1000, scores.reshape(-1), none, found, gains, room)
    for _ in range(20):
        openmp.launcher(best_tokens, np.float32, 1)(2, 8, 64, packed)
        assert np.array_equal(found[:, 0], scores.argmax(1))
        assert np.array_equal(found[:, 1], np.argsort(-scores, 1)[:, 1])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("microseconds", [0.0, ENOUGH, 100 * thread_pool.ALONE_BELOW])
@pytest.mark.parametrize("had", [True, False])
def test_work_is_shared_out_with_a_team_and_without(
    monkeypatch: pytest.MonkeyPatch, microseconds: float, had: bool
) -> None:
    if not had:
        monkeypatch.setattr(openmp, "available", lambda: False)
    given = np.arange(60.0).reshape(10, 3, 2)
    tiles, expected = np.empty((10, 1, 4, 16)), np.empty((10, 1, 4, 16))
    lay_out.at(np.float64)(0, 10, given, expected)
    thread_pool.run_in_chunks(lay_out, given.dtype, 10, microseconds, (given, tiles))
    assert np.array_equal(tiles, expected)


def test_without_openmp_there_is_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_found", lambda: False)
    monkeypatch.setattr(openmp, "_launchers", {})
    assert not openmp.available()
    with pytest.raises(UnsupportedError, match=r"team: expected GNU's OpenMP under PyTorch; got none\."):
        openmp.launcher(lay_out, np.float32, 0)


@needs_team
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_asks_nothing_of_its_parents_threads() -> None:
    """In a process of its own: a child that hangs must not take this one with it."""
    program = """
import os, numpy as np, torch
torch.set_num_threads(2)
from qkv.compiled import openmp, thread_pool
from qkv.algorithms.additive.layout_kernel import lay_out
given, tiles = np.ones((64, 3, 2)), np.empty((64, 1, 4, 16))
thread_pool.run_in_chunks(lay_out, given.dtype, 64, 1e4, (given, tiles))
assert openmp.available()
child = os.fork()
if child == 0:
    tiles.fill(0)
    thread_pool.run_in_chunks(lay_out, given.dtype, 64, 1e4, (given, tiles))
    os._exit(0 if not openmp.available() and tiles.sum() == 384 else 1)
print(os.waitpid(child, 0)[1])
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
