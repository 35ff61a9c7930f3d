"""Compiling: once per machine, by two processes at once, with or without a folder to keep the result."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import numpy as np
import pytest
from tests.kernels.direct import case, ours

from qkv.errors import DtypeError
from qkv.kernels import (
    best_tokens,
    compiled,
    dot_few,
    entmax_rows,
    row_slopes,
    row_weights,
    tanh_backward,
    tanh_direct,
    tanh_factors,
    tanh_forward,
    tanh_layout,
)
from qkv.kernels.compiled import Kernel

SOURCE = Path(compiled.__file__).parents[2]
KERNELS = (
    tanh_factors.factors,
    tanh_forward.forward,
    tanh_backward.backward,
    tanh_layout.lay_out,
    tanh_layout.collect,
    tanh_direct.forward,
    tanh_direct.backward,
    entmax_rows.entmax,
    entmax_rows.entmax_back,
    row_weights.same,
    row_weights.wider,
    row_slopes.same,
    row_slopes.wider,
)
PROGRAM = textwrap.dedent(
    """
    import json, sys, time, warnings
    import numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from qkv.kernels.tanh_layout import collect, lay_out
        start = time.perf_counter()
        tiles = np.empty((1, 1, 4, 16), np.float32)
        lay_out.at(tiles.dtype)(0, 1, np.ones((1, 3, 2), np.float32), tiles)
        collect.at(tiles.dtype)
        seconds = time.perf_counter() - start
    print(json.dumps({
        "sum": float(tiles.sum()),
        "seconds": seconds,
        "warnings": [[type(w.message).__name__, str(w.message)] for w in caught],
    }))
    """
)
SMALL = {"items": 1, "keys": 36, "width": 7, "columns": 2}
PLAIN = textwrap.dedent(
    f"""
    import json
    import numpy as np
    from tests.kernels.direct import case, ours
    results = []
    for queries in (1, 30):
        found = ours(case(19, queries=queries, **{SMALL}), np.ones((1, queries, 2), np.float32))
        results.append({{name: x.numpy().ravel().tolist() for name, x in found.items()}})
    print(json.dumps(results))
    """
)


def start(home: Path, source: Path = SOURCE, **environment: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    settings = {**clean, "PYTHONPATH": str(source), "HOME": str(home), "XDG_CACHE_HOME": str(home), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=settings, stdout=pipe, stderr=pipe, text=True)


def result(process: subprocess.Popen[str]) -> dict[str, object]:
    out, problems = process.communicate(timeout=600)
    assert process.returncode == 0, problems
    found = json.loads(out)
    assert found["sum"] == 6.0
    return found


@pytest.mark.slow
def test_two_processes_compile_at_once(tmp_path):
    both = [start(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kept")) for _ in range(2)]
    assert [result(process)["warnings"] for process in both] == [[], []]
    assert len(list((tmp_path / "kept").rglob("*.nbi"))) == 2


@pytest.mark.slow
def test_nothing_is_compiled_again(tmp_path):
    kept = tmp_path / "kept"
    result(start(tmp_path, NUMBA_CACHE_DIR=str(kept)))
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*.nb*")}
    assert result(start(tmp_path, NUMBA_CACHE_DIR=str(kept)))["warnings"] == []
    assert before == {path: path.stat().st_mtime_ns for path in kept.rglob("*.nb*")}


def test_no_folder_to_write_in_warns_once_and_works(tmp_path):
    """A read-only home and a read-only installation: files stand where the folders would have to be made."""
    copy = tmp_path / "source"
    shutil.copytree(SOURCE / "qkv", copy / "qkv", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "qkv" / "kernels" / "__pycache__").write_text("not a folder")
    (home := tmp_path / "home").write_text("not a folder")
    found = result(start(home, copy))
    assert [kind for kind, _ in found["warnings"]] == ["KernelCacheWarning"]
    assert "NUMBA_CACHE_DIR" in found["warnings"][0][1]


@pytest.mark.slow
def test_plain_python_gives_the_same():
    """The kernels are Python: what is compiled can be read, and run a step at a time."""
    settings = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join((str(SOURCE), "."))}
    done = subprocess.run([sys.executable, "-c", PLAIN], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for queries, found in zip((1, 30), json.loads(done.stdout), strict=True):
        expected = ours(case(19, queries=queries, **SMALL), np.ones((1, queries, 2), np.float32))
        for name, numbers in found.items():
            np.testing.assert_allclose(numbers, expected[name].numpy().ravel(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_every_kernel_has_its_rules():
    for kernel in KERNELS:
        code = kernel.at(np.dtype(np.float32))
        options = code.targetoptions
        assert options["nogil"]
        assert not options.get("parallel")
        assert options["error_model"] == "numpy"
        assert not {"nnan", "ninf", "afn", "fast"} & set(options["fastmath"])


@pytest.mark.slow
def test_machine_code_is_vectorized():
    """Where the processor has vectors, the division is done in them: `vdivps` on x86, `fdiv v` on ARM."""
    code = numba.njit(
        [tanh_forward.forward.signature.replace("F", "f4")], fastmath=compiled.ELEMENTWISE, **compiled._OPTIONS
    )(tanh_forward.forward.py_func)
    assembly = next(iter(code.inspect_asm().values()))
    assert re.search(r"v?divps\s|fdiv\s+v", assembly)


def test_helpers_in_two_files_are_the_same_text():
    """A kernel and its helpers live in one file, so files that share helpers repeat them."""
    assert shared_helpers(tanh_forward, tanh_backward) >= {"_exponentials", "_hide", "_beside", "_seen"}
    assert shared_helpers(tanh_forward, tanh_direct) >= {"_mix", "_row_bits"}
    assert shared_helpers(row_weights, row_slopes) >= {"_exp", "_exp4", "_exp_or_zero", "_hide", "_mix", "_row_bits"}
    assert shared_helpers(row_weights, entmax_rows) >= {"_exp", "_largest"}
    assert shared_helpers(dot_few, best_tokens) == {"_exp"}


def shared_helpers(one: object, other: object) -> set[str]:
    """The names that two files share; what is under them must be the same."""

    def functions(module: object) -> dict[str, str]:
        text = Path(module.__file__).read_text()
        parts = re.findall(r"^@(?:helper|stage|reduction)\ndef (\w+)(.*?)(?=^@|\Z)", text, re.DOTALL | re.MULTILINE)
        return {name: body.strip() for name, body in parts}

    first, second = functions(one), functions(other)
    shared = first.keys() & second.keys()
    assert all(first[name] == second[name] for name in shared)
    return shared


def test_unknown_type_is_refused():
    with pytest.raises(DtypeError, match="float32 or float64; got float16"):
        Kernel(lambda x: None, "void(F[::1])").at(np.float16)


def test_an_error_in_the_code_is_not_hidden():
    def wrong(x):
        return x.no_such_attribute

    with pytest.raises(numba.core.errors.TypingError):
        compiled.compile_kept(wrong, ["void(f4[::1])"])
