"""For which processors kernels are compiled, and which of their libraries this process uses.

A library serves every processor with the instructions of its target. By default a process uses the library for the most
that its processor has. The environment variable QKV_KERNELS names another one, for instance `x86-64-v3` on a processor
with AVX-512; `python` runs kernels as plain Python, and `none` leaves their work to PyTorch's operators.
"""

import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from qkv.errors import ConfigError, nearest

VARIABLE = "QKV_KERNELS"
BUILD_VARIABLE = "QKV_BUILD_KERNELS"
"""Set by `qkv.compiled.build` in the processes that compile: the target for which kernels write their instructions."""
PYTHON, NONE = "python", "none"


class Target(NamedTuple):
    """A kind of processor.

    Attributes:
        name: of the library.
        machine: as `platform.machine()` names the kind.
        triple: LLVM's name for the kind of processor and system.
        processor: LLVM's name for the processor.
        register: bits of the widest register that holds float32 numbers.
        needs: flags of the processor in /proc/cpuinfo.
    """

    name: str
    machine: str
    triple: str
    processor: str
    register: int
    needs: frozenset[str]


_V3 = frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
TARGETS = (
    Target("x86-64-v4", "x86_64", "x86_64-unknown-linux-gnu", "x86-64-v4", 512, _V4),
    Target("x86-64-v3", "x86_64", "x86_64-unknown-linux-gnu", "x86-64-v3", 256, _V3),
    Target("aarch64", "aarch64", "aarch64-unknown-linux-gnu", "generic", 128, frozenset()),
)
"""All targets; of two that serve a processor the first is the faster. Their names are those of the System V ABI's
levels of x86-64: v3 has AVX2 and fused multiply-adds, v4 has AVX-512."""


class Choice(NamedTuple):
    """What runs kernels in a process.

    Attributes:
        target: of the library; None if there is none.
        python: whether kernels run as plain Python.
        reason: why kernels cannot run, or "".
    """

    target: Target | None
    python: bool
    reason: str


def named(name: str) -> Target:
    """Return a target by its name.

    Raises:
        ConfigError: no target has that name.

    Example:
        >>> named("x86-64-v3").register
        256
    """
    names = [target.name for target in TARGETS]
    for target in TARGETS:
        if target.name == name:
            return target
    raise ConfigError("target", " or ".join(names), repr(name), nearest(name, names))


def served() -> tuple[list[Target], str]:
    """Return the targets that this process can use, the fastest first, and if there is none, why."""
    if sys.platform != "linux":
        return [], "compiled kernels are built for Linux only"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        what = "free-threaded Python" if sys.implementation.name == "cpython" else sys.implementation.name
        return [], f"compiled kernels read Python objects as CPython with a GIL lays them out, not as {what} does"
    kind, flags = platform.machine(), _flags()
    known = [target for target in TARGETS if target.machine == kind]
    if not known:
        return [], f"compiled kernels are built for x86_64 and aarch64, not for {kind}"
    able = [target for target in known if target.needs <= flags]
    missing = sorted(known[-1].needs - flags)
    return able, "" if able else f"compiled kernels need a processor with {known[-1].name} (it lacks {missing[0]}, ...)"


def choose(environment: Mapping[str, str] = os.environ) -> Choice:
    """Return what runs kernels.

    Args:
        environment: may hold `QKV_KERNELS`.

    Raises:
        ConfigError: the variable names nothing, or what this processor cannot run.

    Example:
        >>> choose({"QKV_KERNELS": "none"}).reason
        'QKV_KERNELS=none'
    """
    building, name = environment.get(BUILD_VARIABLE), environment.get(VARIABLE, "")
    if building:
        return Choice(named(building), False, "")
    if name == PYTHON:
        return Choice(None, True, "")
    if name == NONE:
        return Choice(None, False, f"{VARIABLE}={NONE}")
    able, reason = served()
    if not name:
        return Choice(able[0], False, "") if able else Choice(None, False, reason)
    names = [target.name for target in able]
    if name not in names:
        expected = f"{' or '.join([*names, PYTHON, NONE])} on this machine"
        raise ConfigError(VARIABLE, expected, repr(name), nearest(name, names))
    return Choice(named(name), False, "")


def _flags(cpu: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the flags of the first processor that Linux lists; none if it lists none."""
    try:
        with cpu.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, flags = line.partition(":")
                if name.strip() == "flags":
                    return set(flags.split())
    except OSError:
        pass
    return set()


CHOICE = choose()
BUILDS = bool(os.environ.get(BUILD_VARIABLE))
"""Whether this process compiles kernels."""
REGISTER = CHOICE.target.register if CHOICE.target else 128
"""Bits of a register."""
WIDE = REGISTER == 512
"""True: 32 registers of 16 float32 numbers; False: 16 registers of 8, or twice as many of 4."""
