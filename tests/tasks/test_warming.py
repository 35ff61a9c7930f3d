"""Kernels compiled ahead: all of them, each once, found by the processes that need them later."""

from pathlib import Path

import pytest
from tests.compiled import every_kernel

from qkv.compiled import openmp
from qkv.errors import ConfigError
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
