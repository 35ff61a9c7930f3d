"""For which processor kernels are compiled, and whether they are; without importing Numba, which takes 0.3 s.

The settings are Numba's: `NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES`, `NUMBA_ENABLE_AVX` and `NUMBA_DISABLE_JIT`. They and
the processor are read once, and `qkv.compiled.compiler` compiles for what is found here.
"""

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import llvmlite
from llvmlite import binding

_WITHOUT_AVX = ("corei7-avx", "core-avx-i", "sandybridge", "ivybridge")
"""Processors whose AVX is slower than SSE; Numba leaves it off there."""
_NOT_ABOUT_CODE = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")
_SUM = """
target triple = "{triple}"
define <16 x float> @sum(<16 x float> %x, <16 x float> %y) {{
  %z = fadd <16 x float> %x, %y
  ret <16 x float> %z
}}
"""


class Target(NamedTuple):
    """What machine code is for.

    Attributes:
        triple: LLVM's name for the kind of processor and system.
        processor: LLVM's name for the processor.
        features: its features, as LLVM takes them.
        python: Python's version, because kernels call Python's own functions.
        llvm: the versions of llvmlite and LLVM.
        settings: those of Numba that may change machine code: all but those known not to.
    """

    triple: str
    processor: str
    features: str
    python: str
    llvm: str
    settings: tuple[tuple[str, str], ...]


def settings(environment: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """Return the settings of Numba that may change machine code, as they are now.

    Example:
        >>> settings({"NUMBA_OPT": "1", "NUMBA_NUM_THREADS": "2", "HOME": "/"})
        (('NUMBA_OPT', '1'),)
    """
    named = [(name, value) for name, value in environment.items() if name.startswith("NUMBA_")]
    return tuple(sorted((name, value) for name, value in named if name not in _NOT_ABOUT_CODE))


def current() -> Target:
    """Return the target of code that is compiled or loaded now."""
    version = ".".join(map(str, binding.llvm_version_info))
    python = f"{sys.implementation.cache_tag}{sys.abiflags if hasattr(sys, 'abiflags') else ''}"
    return Target(TRIPLE, PROCESSOR, FEATURES, python, f"{llvmlite.__version__} {version}", settings())


def compiles() -> bool:
    """True if kernels are compiled; False if they run as plain Python (`NUMBA_DISABLE_JIT`).

    Example:
        >>> compiles()
        True
    """
    return _COMPILES


def features(environment: Mapping[str, str], processor: str) -> str:
    """Return the features for which code is compiled: those that are set, else those of this processor.

    Args:
        environment: holds Numba's settings.
        processor: LLVM's name for the processor.

    Example:
        >>> features({"NUMBA_CPU_NAME": "generic"}, "generic"), features({"NUMBA_CPU_FEATURES": "+avx"}, "haswell")
        ('', '+avx')
    """
    chosen = environment.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        return chosen
    if environment.get("NUMBA_CPU_NAME", "").lower() == "generic":
        return ""
    try:
        found = binding.get_host_cpu_features()
    except RuntimeError:
        return ""
    if not _number(environment.get("NUMBA_ENABLE_AVX"), processor not in _WITHOUT_AVX):
        for name in found:
            found[name] = found[name] and not name.startswith("avx")
    return str(found.flatten())


def _number(text: str | None, default: int) -> int:
    """Read a setting as Numba does: what is no number leaves the default."""
    return int(text) if text is not None and re.fullmatch(r"\s*[+-]?\d+\s*", text) else default


@cache
def machine() -> binding.TargetMachine:
    """Return LLVM's description of the target."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_triple(TRIPLE).create_target_machine(cpu=PROCESSOR, features=FEATURES)


def _register() -> int:
    """Return the bits of the widest register that machine code for the target holds float32 numbers in.

    They need not be those of the processor that runs this, because settings can name another one. So this compiles a
    sum of 16 numbers. The target is part of what stored code has to match, so code with registers of another size is
    never loaded.
    """
    code = machine().emit_assembly(binding.parse_assembly(_SUM.format(triple=TRIPLE)))
    return next((bits for name, bits in (("zmm", 512), ("ymm", 256)) if name in code), 128)


_COMPILES = not _number(os.environ.get("NUMBA_DISABLE_JIT"), 0)
TRIPLE: str = binding.get_process_triple()
PROCESSOR: str = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
FEATURES = features(os.environ, PROCESSOR)
REGISTER = _register()
"""Bits of a register."""
WIDE = REGISTER == 512
"""True: 32 registers of 16 float32 numbers; False: 16 registers of 8, or twice as many of 4."""
