"""Which instructions MKL uses on this processor, as MKL reports them.

On x86-64 PyTorch's products are MKL's, which chooses its code by the processors that it knows: AVX2 on some that have
AVX-512. Its version structure says what it chose.
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

_NAMES = ("MKL_Get_Version", "mkl_get_version", "mkl_serv_get_version")
"""The public names of the function, and its internal name, the only one that PyTorch's wheels export."""


class _Version(ctypes.Structure):
    """`MKLVersion` of mkl_types.h."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("major", "minor", "update")),
        *((name, ctypes.c_char_p) for name in ("status", "build", "processor", "platform")),
    )


@lru_cache(maxsize=1)
def optimized_for() -> str | None:
    """Return the processors that MKL's code for this one is optimized for; None without MKL or without an answer.

    Source: oneMKL developer reference, `mkl_get_version`, field `Processor`.

    Example:
        >>> optimized_for() is None or "Intel(R)" in optimized_for()
        True
    """
    if not torch.backends.mkl.is_available():
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
    get_version = next((getattr(library, name) for name in _NAMES if hasattr(library, name)), None)
    if get_version is None:
        return None
    version = _Version()
    get_version(ctypes.byref(version))
    return version.processor.decode("ascii", "replace") if version.processor else None


def leaves_wide_registers_unused() -> bool:
    """Return whether PyTorch uses registers of 512 bits here, and MKL reports that it does not.

    Example:
        >>> leaves_wide_registers_unused() in (True, False)
        True
    """
    processors = optimized_for()
    return (
        processors is not None
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and "AVX-512" not in processors
    )
