"""Compiling: once per machine, by two processes at once, with or without a folder to keep the result."""

import ast
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
from tests.algorithms.additive.direct import case, ours
from tests.compiled import every_kernel

from qkv.algorithms.additive import forward_kernel
from qkv.compiled import kernels
from qkv.compiled.kernels import Kernel
from qkv.errors import DtypeError

SOURCE = Path(kernels.__file__).parents[2]
PROGRAM = textwrap.dedent(
    """
    import json, sys, time, warnings
    import numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from qkv.algorithms.additive.layout_kernel import collect, lay_out
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
    from tests.algorithms.additive.direct import case, ours
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
    (copy / "qkv" / "algorithms" / "additive" / "__pycache__").write_text("not a folder")
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
    for _, kernel in every_kernel.kernels():
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
        [forward_kernel.forward.signature.replace("F", "f4")], fastmath=kernels.ELEMENTWISE, **kernels._OPTIONS
    )(forward_kernel.forward.py_func)
    assembly = next(iter(code.inspect_asm().values()))
    assert re.search(r"v?divps\s|fdiv\s+v", assembly)


def test_no_helper_is_written_twice():
    """Kernels import what they share."""
    found: dict[str, str] = {}
    for module in every_kernel.modules():
        path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8") if path.exists() else "").body:
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                text = ast.unparse([node.args, *node.body[ast.get_docstring(node) is not None :]])
                where = found.setdefault(text, f"{module}.{node.name}")
                assert where == f"{module}.{node.name}"
    assert len(found) > 100


def test_unknown_type_is_refused():
    with pytest.raises(DtypeError, match="float32 or float64; got float16"):
        Kernel(lambda x: None, "void(F[::1])").at(np.float16)


def test_an_error_in_the_code_is_not_hidden():
    def wrong(x):
        return x.no_such_attribute

    with pytest.raises(numba.core.errors.TypingError):
        kernels.compile_cached(wrong, "void(f4[::1])")
