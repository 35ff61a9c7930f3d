"""Kernels compiled ahead: all of them, each once, found by the processes that need them later."""

import multiprocessing
from pathlib import Path

import pytest
from tests.compiled import every_kernel

from qkv.compiled import openmp
from qkv.errors import CompilationError, ConfigError
from qkv.tasks import warming
from qkv.tasks.warming import Job


def test_every_kernel_is_listed() -> None:
    listed = warming.jobs()
    assert len(set(listed)) == len(listed)
    names = {(job.module.rpartition(".")[2], job.name) for job in listed}
    for name, kernel in every_kernel.kernels():
        module, attribute = name.split(".")[:2]
        if kernel.py_func.__module__.startswith("qkv"):
            assert (module, attribute) in names, name
    assert ("block_kernel", "compiled") in names


def test_a_family_a_part_of_one_and_a_type_select() -> None:
    whole, part = warming.jobs(["additive"]), warming.jobs(["additive.direct"], ["float64"])
    assert {job.module.split(".")[-2] for job in whole} == {"additive"}
    assert sorted(job.name for job in part) == ["backward", "forward"]
    assert {job.dtype for job in part} == {"float64"}
    assert set(part) < set(whole)
    assert "sdpa" not in {job.module.split(".")[-2] for job in warming.jobs(dtypes=["float64"])}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kernels: expected some of additive, .*'aditive'.*\"additive\""):
        warming.jobs(["aditive"])
    with pytest.raises(ConfigError, match=r"dtype: expected float32 or float64; got 'float16'"):
        warming.jobs(dtypes=["float16"])


def test_other_processes_store_what_this_one_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    wanted = [Job("tests.compiled.small_kernel", "double", None, dtype) for dtype in ("float32", "float64")]
    assert set(warming.run(wanted, processes=1)) == set(wanted)
    stored = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kernel")}
    assert len(stored) == len(wanted)
    assert all("team" in path.name for path in stored) or not openmp.available()
    list(warming.run(wanted, processes=1))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kernel")} == stored


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGABRT", "exit code 3"])
def test_a_process_that_dies_ends_the_command_and_its_kernel_is_named(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel = Job("tests.tasks.ending_kernels", "endings", ending, "float32")
    sound = Job("tests.compiled.small_kernel", "double", None, "float32")
    jobs = [sound, kernel, *[kernel._replace(dtype="float64")] * 3]
    running, finished = warming.run(jobs, processes=2), []
    with pytest.raises(CompilationError) as failure:
        finished += running
    assert str(kernel) in str(failure.value)
    assert ending in str(failure.value)
    assert set(finished) <= {sound}
    assert not multiprocessing.active_children()


def test_an_error_of_another_process_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with pytest.raises(Exception, match="no compiler today") as failure:
        list(warming.run([Job("tests.tasks.ending_kernels", "endings", "error", "float32")]))
    assert "ending_kernels.py" in "".join(failure.value.__notes__)
    assert not multiprocessing.active_children()


def test_whoever_stops_waiting_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    jobs = [Job("tests.compiled.small_kernel", "double", None, dtype) for dtype in ("float32", "float64")]
    running = warming.run(jobs, processes=2)
    assert next(running) in jobs
    running.close()
    assert not multiprocessing.active_children()


def test_nothing_to_compile_is_done_at_once() -> None:
    assert list(warming.run([])) == []
