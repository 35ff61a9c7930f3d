"""Kernels: the rules that each keeps, what they take, and what happens to code that cannot be compiled."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.compiled import every_kernel
from tests.compiled.small_kernel import double, every_kind, refuse_negative, repeat

from qkv.compiled import kernels, openmp
from qkv.compiled.kernels import Kernel
from qkv.compiled.target import BUILD_VARIABLE, CHOICE
from qkv.errors import DtypeError, UnsupportedError

SOURCE = Path(kernels.__file__).parents[2]
ROOT = Path(__file__).parents[2]
PLAIN = """
import numpy as np
from tests.compiled.small_kernel import double
x = np.ones(3)
double.at(x.dtype)(0, 2, x)
print(type(double.at(x.dtype)).__name__, x)
"""
compiled = pytest.mark.skipif(CHOICE.target is None, reason="no compiled kernels here")
compiles = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")


def run(*arguments: str, **environment: str) -> str:
    path = os.pathsep.join((str(SOURCE), str(ROOT)))
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, *arguments], env=settings, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_without_machine_code_kernels_run_as_plain_python():
    assert run("-c", PLAIN, QKV_KERNELS="python") == "function [2. 2. 1.]\n"


RULES = textwrap.dedent(
    """
    import importlib, json
    from numba.core.dispatcher import Dispatcher
    from tests.compiled import every_kernel
    parts = [
        {name: sorted(value) if isinstance(value, set) else value for name, value in part.targetoptions.items()}
        for module in every_kernel.modules()
        for part in vars(importlib.import_module(module)).values()
        if isinstance(part, Dispatcher)
    ]
    print(json.dumps(parts))
    """
)


@compiled
@compiles
def test_every_kernel_and_every_part_has_its_rules():
    parts = json.loads(run("-c", RULES, **{BUILD_VARIABLE: CHOICE.target.name}))
    assert len(parts) > 100
    for options in (kernels.OPTIONS | {"fastmath": kernels.ELEMENTWISE}, *parts):
        assert options["nogil"]
        assert not options.get("parallel")
        assert options["error_model"] == "numpy"
        estimated = set(options["fastmath"]) == kernels.ESTIMATED
        assert not ({"nnan", "ninf", "afn", "fast"} - ({"ninf"} if estimated else set())) & set(options["fastmath"])
    for _, kernel in every_kernel.kernels():
        assert kernel.signature.startswith("void(")


def test_one_symbol_is_one_machine_code():
    found = {}
    for name, kernel in every_kernel.kernels():
        for dtype in kernel.dtypes:
            code = kernel.py_func, kernel.signature_at(dtype), kernel.scratch
            assert found.setdefault(kernel.symbol(dtype), code) == code, name
    assert len(found) > 40


@compiled
def test_other_threads_run_python_while_a_kernel_runs():
    code, x, turns, done = repeat.at(np.float32), np.zeros(1), [0], threading.Event()

    def count():
        while not done.is_set():
            turns[0] += 1

    other = threading.Thread(target=count)
    other.start()
    before = turns[0]
    code(50_000_000, x)
    after = turns[0]
    done.set()
    other.join()
    assert after > before
    assert x[0] == 2.0


@compiled
@pytest.mark.parametrize(
    "wrong",
    [
        (np.ones(3),),
        (np.ones((3, 1), np.float32),),
        (np.ones(6, np.float32)[::2],),
        (np.ones(3, ">f4"),),
        (np.frombuffer(bytes(12), np.float32),),
        (np.frombuffer(bytearray(13), np.uint8)[1:].view(np.float32),),
        (np.ma.ones(3, np.float32),),
        ([1.0, 2.0, 3.0],),
        (None,),
    ],
    ids=str,
)
def test_arrays_that_a_kernel_cannot_use_are_refused(wrong):
    code = double.at(np.float32)
    with pytest.raises(TypeError, match="double argument 2: expected a C-contiguous, writable array of float32 with 1"):
        code(0, 3, *wrong)


@compiled
def test_numbers_that_a_kernel_cannot_use_are_refused():
    code, x = double.at(np.float32), np.ones(3, np.float32)
    for given, error in [
        ((0.5, 3), TypeError),
        ((0, "3"), TypeError),
        ((0, None), TypeError),
        ((0, 2**63), OverflowError),
    ]:
        with pytest.raises(error):
            code(*given, x)
    for given in ((0, 3), (0, 3, x, x), ()):
        with pytest.raises(TypeError, match="double: expected 3 arguments"):
            code(*given)
    assert x.tolist() == [1, 1, 1]
    code(np.int32(0), np.uint64(3), x)
    assert x.tolist() == [2, 2, 2]


def test_tuples_that_a_kernel_cannot_use_are_refused():
    if not openmp.available():
        pytest.skip("PyTorch has no libgomp here")
    code, x = openmp.launcher(double, np.float32), np.ones(3, np.float32)
    for wrong in ((), (x, x), [x], x):
        with pytest.raises(TypeError, match="argument 3: expected a tuple of 1"):
            code(1, 1, 3, wrong)
    with pytest.raises(TypeError, match=r"argument 3\[0\]: expected a C-contiguous"):
        code(1, 1, 3, (x.astype(np.float64),))
    with pytest.raises(OverflowError):
        code(-1, 1, 3, (x,))
    assert x.tolist() == [1, 1, 1]


@compiled
def test_an_error_inside_a_kernel_is_not_silent():
    code = refuse_negative.at(np.float32)
    with pytest.raises(RuntimeError, match="refuse_negative: expected to run without an error"):
        code(np.array([-1.0]))
    x = np.array([1.0])
    code(x)
    assert x[0] == 7


@compiled
def test_arguments_of_every_kind_arrive():
    code, out = every_kind.at(np.float32), np.empty(8)
    pair = np.array([-7], np.int32), np.array([[1.0], [2.5]])
    short = np.array([65535], np.uint16)
    code(True, -(2**53), 2**53, 0.1, 0.1, pair, ((short, short), np.zeros(1, bool)), out)
    assert out.tolist() == [1, -(2**53), 2**53, np.float32(0.1), 0.1, -7, 2.5, 65535]


@compiled
@compiles
def test_what_cannot_be_a_kernel_is_refused_when_it_is_built():
    *signatures, wrong = run("-m", "tests.compiled.refused_kernels", CHOICE.target.name).splitlines()
    assert len(signatures) == 5
    for line in signatures:
        assert line.startswith("UnsupportedError: signature: expected"), line
    assert wrong.startswith("TypingError")


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


def test_a_kernel_that_no_library_holds_is_named():
    def absent(x):
        """Be compiled nowhere."""

    with pytest.raises(UnsupportedError, match=r"test_kernels: expected machine code .*python -m qkv\.compiled\.build"):
        kernels.load(Kernel(absent, "void(F[::1])").symbol(np.float32), absent)
