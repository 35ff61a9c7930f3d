"""Kernels: Python functions that are compiled when the package is built, and found in a library when it runs.

`qkv.compiled.build` compiles them with Numba; a process that runs them loads neither Numba nor LLVM.

Rules that every kernel keeps:
- `nogil`, so that our own threads can run it side by side.
- Never `parallel=True`: one of Numba's threading layers kills forked children, another aborts under concurrent threads.
- Never `nnan`, `ninf` or `afn` in `fastmath`: scores may be infinite, and a visible NaN must stay NaN. Only `estimated`
  has `ninf`, for numbers that are finite by construction.
- No allocation (Numba's option `_nrt`): counting references to slices costs a tenth of the time.
- Nothing is returned or raised: results go to arrays that are arguments.
"""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from qkv.compiled.target import BUILDS, CHOICE, WIDE
from qkv.errors import DtypeError

ELEMENTWISE = {"contract", "nsz"}
REDUCTION = {"contract", "nsz", "reassoc", "arcp"}
OPTIONS: dict[str, Any] = {"nogil": True, "parallel": False, "error_model": "numpy"}
ESTIMATED = {*ELEMENTWISE, "arcp", "ninf"} if WIDE else ELEMENTWISE
_LETTERS = {np.dtype(np.float32): "f4", np.dtype(np.float64): "f8"}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def helper(function: _Function) -> _Function:
    """Compile a function that kernels call; floating-point operations keep their order.

    Args:
        function: plain Python that Numba understands.

    Returns:
        What other compiled functions call; where nothing is compiled, the function itself.

    Example:
        >>> helper(lambda x: x if x >= 0 else -x)(-2.0)
        2.0
    """
    return _part(function, ELEMENTWISE)


def estimated(function: _Function) -> _Function:
    """Compile a function of finite numbers; float32 divisions may use an estimated reciprocal and one Newton step.

    That takes a quarter of the time, with an error of one or two units of the last place. Only registers of 512 bits
    have an estimate that is good enough for one step; with smaller registers, nothing is estimated.

    Args:
        function: plain Python that Numba understands.

    Returns:
        What other compiled functions call; where nothing is compiled, the function itself.

    Example:
        >>> estimated(lambda x: 1 / x)(2.0)
        0.5
    """
    return _part(function, ESTIMATED)


def inlined(function: _Function) -> _Function:
    """Insert a function into each kernel that calls it, for functions with too many arrays to pass in a call.

    Args:
        function: plain Python that Numba understands.

    Returns:
        What other compiled functions call; where nothing is compiled, the function itself.

    Example:
        >>> inlined(lambda x: x + 1)(1)
        2
    """
    return _part(function, ELEMENTWISE, inline="always")


def reduction(function: _Function) -> _Function:
    """Compile a function that sums along a row; additions may be reordered, because otherwise they fill no register.

    Args:
        function: plain Python that Numba understands.

    Returns:
        What other compiled functions call; where nothing is compiled, the function itself.

    Example:
        >>> reduction(lambda x, y: x + y)(1.0, 2.0)
        3.0
    """
    return _part(function, REDUCTION)


def _part(function: _Function, fastmath: set[str], **options: Any) -> _Function:
    if not BUILDS:
        return function
    from qkv.compiled.dispatchers import PartDispatcher

    return cast(_Function, PartDispatcher(function, {"fastmath": fastmath, **options, **OPTIONS}))


class Kernel:
    """A function of C-contiguous arrays, compiled for float32 and float64.

    Args:
        function: plain Python that Numba understands; kept as `.py_func`.
        signature: Numba's signature, with `F` where the float type goes.
        scratch: how many of the last arguments are scratch, if the kernel runs on several threads through
            `qkv.compiled.thread_pool.run_in_chunks`; None if it does not.
        single: whether the kernel exists for float32 alone.

    Example:
        >>> from qkv.linalg.packed_kernel import product_alone
        >>> product_alone.scratch, product_alone.dtypes
        (1, [dtype('float32')])
    """

    def __init__(
        self, function: Callable[..., Any], signature: str, scratch: int | None = None, single: bool = False
    ) -> None:
        """Load nothing yet."""
        self.py_func = function
        self.signature = signature
        self.scratch = scratch
        self.dtypes = [np.dtype(np.float32)] if single else list(_LETTERS)
        self._loaded: dict[np.dtype[Any], Callable[..., Any]] = {}

    def at(self, dtype: Any) -> Callable[..., Any]:
        """Return the machine code for a float type, as a function.

        Args:
            dtype: one of `dtypes`, float32 and for most kernels float64.

        Returns:
            A function that takes exactly the arguments that the signature names, and releases Python's lock (the GIL)
            while it runs; under `QKV_KERNELS=python`, the plain function.

        Raises:
            DtypeError: the type is another one.
            UnsupportedError: there is no machine code for this processor.
            CompilationError: the machine code is older than the source.
            TypeError: of the function, if an argument is not what the signature says.

        Example:
            >>> Kernel(lambda x: None, "void(F[::1])").at(np.float16)
            Traceback (most recent call last):
            qkv.errors.DtypeError: dtype: expected float32 or float64; got float16. Convert before the kernel is called.
        """
        key = np.dtype(dtype)
        code = self._loaded.get(key)
        if code is None:
            code = self._loaded[key] = self.py_func if CHOICE.python else load(self.symbol(key), self.py_func)
        return code

    def symbol(self, dtype: Any, team: bool = False) -> str:
        """Return the name under which a library holds the machine code for a float type.

        Args:
            dtype: one of `dtypes`.
            team: whether it is the kernel in a parallel region of OpenMP.

        Raises:
            DtypeError: the type is another one.

        Example:
            >>> Kernel(lambda x: None, "void(F[::1])").symbol(np.float64, team=True)
            'compiled.kernels.lambda-a794c0c5-team'
        """
        signature = self.signature_at(dtype)
        name = f"{self.py_func.__module__.removeprefix('qkv.')}.{self.py_func.__qualname__.strip('<>')}"
        digest = hashlib.sha256(f"{signature} {self.scratch}".encode()).hexdigest()[:8]
        return f"{name}-{digest}{'-team' * team}"

    def signature_at(self, dtype: Any) -> str:
        """Return the signature for a float type.

        Args:
            dtype: one of `dtypes`.

        Raises:
            DtypeError: the type is another one.

        Example:
            >>> Kernel(lambda x: None, "void(F[::1])").signature_at(np.float64)
            'void(f8[::1])'
        """
        if np.dtype(dtype) not in self.dtypes:
            expected = " or ".join(map(str, self.dtypes))
            raise DtypeError("dtype", expected, f"{np.dtype(dtype)}", "Convert before the kernel is called.")
        return self.signature.replace("F", _LETTERS[np.dtype(dtype)])


def kernel(signature: str, scratch: int | None = None, single: bool = False) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a function a kernel.

    Args:
        signature, scratch, single: as for `Kernel`.

    Returns:
        A decorator that returns a `Kernel`.

    Example:
        >>> @kernel("void(F[::1], F[::1])")
        ... def double(x, y):
        ...     y[0] = 2 * x[0]
        >>> double.signature_at(np.float32)
        'void(f4[::1], f4[::1])'
    """
    return lambda function: Kernel(function, signature, scratch, single)


def part_of(kernel: Kernel) -> Callable[..., Any]:
    """Return a kernel's function for other compiled functions to call; its machine code becomes a part of theirs.

    Args:
        kernel: the kernel.
    """
    return helper(kernel.py_func)


def load(symbol: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the machine code of a function from the library of this processor.

    Args:
        symbol: its name in the library.
        function: the plain function, for messages.

    Raises:
        UnsupportedError, CompilationError: as for `Kernel.at`.
    """
    from qkv.compiled import library

    return library.function(symbol, function.__module__)
