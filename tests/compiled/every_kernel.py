"""Every kernel of the package."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

from tests.compiled.small_kernel import double

import qkv
from qkv.compiled import openmp
from qkv.compiled.kernels import Kernel
from qkv.nn.decoding import block_kernel


def modules() -> list[str]:
    """The names of the modules that may hold kernels."""
    found = [info.name for info in pkgutil.walk_packages(qkv.__path__, "qkv.")]
    return [
        name
        for name in found
        if name.endswith(("_kernel", "row_softmax")) or name.startswith(("qkv.linalg.", "qkv.compiled."))
    ]


def kernels() -> Iterator[tuple[str, Kernel]]:
    """Every kernel with its name."""
    for module in modules():
        for name, found in vars(importlib.import_module(module)).items():
            several = found if isinstance(found, dict) else {None: found}
            for key, each in several.items():
                if isinstance(each, Kernel) and each.py_func.__module__ == module:
                    yield ".".join([module.rpartition(".")[2], name, *([str(key)] if key else [])]), each


def functions() -> dict[str, Callable[..., Any]]:
    """Every function that is compiled on its own: kernels, one of them for PyTorch's threads, and a block's step."""
    named: dict[str, Callable[..., Any]] = {name: each.py_func for name, each in kernels()}
    named["block_kernel.step"] = block_kernel._step
    named["openmp.launch"] = openmp._region(double, "f4")[0]
    return named
