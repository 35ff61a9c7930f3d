"""Kernels: the rules that each keeps, and what happens to code that cannot be compiled."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from tests.compiled import every_kernel

from qkv.compiled import kernels
from qkv.compiled.kernels import Kernel
from qkv.errors import DtypeError

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


@pytest.mark.slow
def test_every_kernel_has_its_rules():
    for _, kernel in every_kernel.kernels():
        code = kernel.at(np.dtype(np.float32))
        options = code.targetoptions
        assert options["nogil"]
        assert not options.get("parallel")
        assert options["error_model"] == "numpy"
        assert not {"nnan", "ninf", "afn", "fast"} & set(options["fastmath"])


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
