"""Kernels for tests of what every kernel does. They have a library of their own, built when this module is imported.

`python -m tests.compiled.small_kernel TARGET` builds it for another machine, which need not be able to.
"""

import importlib.util
import sys
from pathlib import Path

from qkv.compiled import library
from qkv.compiled.build import build
from qkv.compiled.kernels import kernel
from qkv.compiled.target import BUILDS, CHOICE, named

NAME = "tests.compiled.small_kernel"
BUILT = Path(__file__).parents[2] / "build" / "tests"


@kernel("void(i8, i8, F[::1])", scratch=0)
def double(start, stop, x):
    """Double the numbers start to stop."""
    for i in range(start, stop):
        x[i] *= 2


@kernel("void(i8, i8, F[:,::1], F[::1], F[:,::1])", scratch=1)
def add_each(start, stop, rows, sums, room):
    """Sum the rows start to stop by way of scratch, which may hold anything before."""
    for i in range(start, stop):
        room[0, 0] = 0
        for j in range(rows.shape[1]):
            room[0, 0] += rows[i, j]
        sums[i] = room[0, 0]


@kernel("void(i8, f8[::1])", single=True)
def repeat(turns, x):
    """Do something that takes a while: each turn needs the one before."""
    for _ in range(turns):
        x[0] = x[0] * 0.5 + 1.0


@kernel("void(f8[::1])", single=True)
def refuse_negative(x):
    """Raise an error, which no kernel of the package does."""
    if x[0] < 0:
        raise ValueError("negative")
    x[0] = 7


@kernel(
    "void(b1, i8, u8, f4, f8, Tuple((i4[::1], f8[:,::1])), Tuple((UniTuple(u2[::1], 2), b1[::1])), f8[::1])",
    single=True,
)
def every_kind(flag, whole, natural, single, wide, pair, nested, out):
    """Write all numbers that were given to an array."""
    out[0], out[1], out[2], out[3], out[4] = flag, whole, natural, single, wide
    out[5], out[6], out[7] = pair[0][0], pair[1][1, 0], nested[0][0][0]


def build_for(target: str) -> Path:
    """Build the library, if this machine can; otherwise it must be there."""
    path = BUILT / f"{target}.so"
    if importlib.util.find_spec("numba"):
        build(named(target), path, [NAME], BUILT / "objects")
    return path


if __name__ == "__main__":
    build_for(sys.argv[1])
elif not BUILDS and CHOICE.target is not None:
    library.add(build_for(CHOICE.target.name))
