"""Kernels: the rules that each keeps, what they take, and what happens to code that cannot be compiled."""

import ast
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from tests.compiled import every_kernel
from tests.compiled.small_kernel import double

from qkv.compiled import kernels, openmp
from qkv.compiled.deferred import Part
from qkv.compiled.kernels import Kernel
from qkv.errors import DtypeError, UnsupportedError

SOURCE = Path(kernels.__file__).parents[2]
PLAIN = """
import numpy as np
from tests.compiled.small_kernel import double
x = np.ones(3)
double.at(x.dtype)(0, 2, x)
print(type(double.at(x.dtype)).__name__, x)
"""


def test_without_compiling_kernels_run_as_plain_python():
    path = os.pathsep.join((str(SOURCE), str(Path(__file__).parents[2])))
    settings = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", PLAIN], env=settings, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("function [2. 2. 1.]\n", "")


def test_every_kernel_and_every_part_has_its_rules():
    found = [vars(importlib.import_module(module)).values() for module in every_kernel.modules()]
    parts = [part.targetoptions for values in found for part in values if isinstance(part, Part)]
    assert len(parts) > 100
    for options in (kernels._options(), *parts):
        assert options["nogil"]
        assert not options.get("parallel")
        assert options["error_model"] == "numpy"
        forbidden = {"nnan", "ninf", "afn", "fast"} - ({"ninf"} if options["fastmath"] == kernels.ESTIMATED else set())
        assert not forbidden & set(options["fastmath"])
    for _, kernel in every_kernel.kernels():
        assert kernel.signature.startswith("void(")


def repeat(turns, x):
    """Do something that takes a while: each turn needs the one before."""
    for _ in range(turns):
        x[0] = x[0] * 0.5 + 1.0


def test_other_threads_run_python_while_a_kernel_runs():
    code, x, turns, done = kernels.compile_cached(repeat, "void(i8, f8[::1])"), np.zeros(1), [0], threading.Event()

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


def refuse_negative(x):
    """Raise an error, which no kernel of the package does."""
    if x[0] < 0:
        raise ValueError("negative")
    x[0] = 7


def test_an_error_inside_a_kernel_is_not_silent():
    code = kernels.compile_cached(refuse_negative, "void(f8[::1])")
    with pytest.raises(RuntimeError, match="refuse_negative: expected to run without an error"):
        code(np.array([-1.0]))
    x = np.array([1.0])
    code(x)
    assert x[0] == 7


def every_kind(flag, whole, natural, single, wide, pair, nested, out):
    """Write all numbers that were given to an array."""
    out[0], out[1], out[2], out[3], out[4] = flag, whole, natural, single, wide
    out[5], out[6], out[7] = pair[0][0], pair[1][1, 0], nested[0][0][0]


def test_arguments_of_every_kind_arrive():
    signature = "void(b1, i8, u8, f4, f8, Tuple((i4[::1], f8[:,::1])), Tuple((UniTuple(u2[::1], 2), b1[::1])), f8[::1])"
    code, out = kernels.compile_cached(every_kind, signature), np.empty(8)
    pair = np.array([-7], np.int32), np.array([[1.0], [2.5]])
    short = np.array([65535], np.uint16)
    code(True, -(2**53), 2**53, 0.1, 0.1, pair, ((short, short), np.zeros(1, bool)), out)
    assert out.tolist() == [1, -(2**53), 2**53, np.float32(0.1), 0.1, -7, 2.5, 65535]


@pytest.mark.parametrize("signature", ["f4(f4[::1])", "void(f4[:])", "void(i4)", "void(c8)", "void(unicode_type)"])
def test_signatures_that_no_kernel_has_are_refused(signature):
    with pytest.raises(UnsupportedError, match="signature: expected"):
        kernels.compile_cached(ignore, signature)


def ignore(x):
    """Do nothing with an argument."""


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
