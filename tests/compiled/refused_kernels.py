"""Functions that cannot be kernels: `python -m tests.compiled.refused_kernels TARGET` prints why, one line each."""

import os
import sys

from qkv.compiled.target import BUILD_VARIABLE


def ignore(x):
    """Do nothing with an argument."""


def wrong(x):
    """Use what an array lacks."""
    return x.no_such_attribute


def holding(x, numbers=()):
    """Hold an address of this process."""


if __name__ == "__main__":
    os.environ[BUILD_VARIABLE] = sys.argv[1]
    for name in [name for name in sys.modules if name.startswith("qkv.")]:
        del sys.modules[name]
    from qkv.compiled.compiler import kernel_object
    from qkv.compiled.kernels import Kernel

    signatures = ["f4(f4[::1])", "void(f4[:])", "void(i4)", "void(c8)", "void(unicode_type)"]
    for function, signature in [*((ignore, each) for each in signatures), (wrong, "void(f4[::1])")]:
        try:
            kernel_object(Kernel(function, signature), "float32")
        except Exception as error:
            print(f"{type(error).__name__}: {str(error).splitlines()[0]}")  # noqa: T201
        else:
            print("compiled")  # noqa: T201
