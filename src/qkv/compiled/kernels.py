"""Kernels: Python functions that are compiled at their first call and kept on disk as object code.

Numba compiles them; what is on disk is loaded without it.

Rules that every kernel keeps:
- `nogil`, so that our own threads can run it side by side.
- Never `parallel=True`: one of Numba's threading layers kills forked children, another aborts under concurrent threads.
- Never `nnan`, `ninf` or `afn` in `fastmath`: scores may be infinite, and a visible NaN must stay NaN. Only `estimated`
  has `ninf`, for numbers that are finite by construction.
- No allocation (Numba's option `_nrt`): counting references to slices costs a tenth of the time.
- Nothing is returned or raised: results go to arrays that are arguments.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from qkv.compiled import cache, linking
from qkv.compiled.deferred import Part, declare_overloads
from qkv.compiled.target import WIDE, compiles
from qkv.compiled.waiting import announced, uncollected
from qkv.errors import DtypeError, UnsupportedError
from qkv.forks import unforked

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
        What other compiled functions call; `.py_func` is the plain function.

    Example:
        >>> helper(lambda x: x if x >= 0 else -x).py_func(-2.0)
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
        What other compiled functions call; `.py_func` is the plain function.

    Example:
        >>> estimated(lambda x: 1 / x).py_func(2.0)
        0.5
    """
    return _part(function, ESTIMATED)


def inlined(function: _Function) -> _Function:
    """Insert a function into each kernel that calls it, for functions with too many arrays to pass in a call.

    Args:
        function: plain Python that Numba understands.

    Returns:
        What other compiled functions call; `.py_func` is the plain function.

    Example:
        >>> inlined(lambda x: x + 1).py_func(1)
        2
    """
    return _part(function, ELEMENTWISE, inline="always")


def reduction(function: _Function) -> _Function:
    """Compile a function that sums along a row; additions may be reordered, because otherwise they fill no register.

    Args:
        function: plain Python that Numba understands.

    Returns:
        What other compiled functions call; `.py_func` is the plain function.

    Example:
        >>> reduction(lambda x, y: x + y).py_func(1.0, 2.0)
        3.0
    """
    return _part(function, REDUCTION)


def _part(function: _Function, fastmath: set[str], **options: Any) -> _Function:
    return cast(_Function, Part(function, {"fastmath": fastmath, **options, **OPTIONS})) if compiles() else function


class Kernel:
    """A function of C-contiguous arrays, compiled for float32 or float64 when it is first needed for that type.

    Args:
        function: plain Python that Numba understands; kept as `.py_func`.
        signature: Numba's signature, with `F` where the float type goes.
        scratch: how many of the last arguments are scratch, if the kernel runs on several threads through
            `qkv.compiled.thread_pool.run_in_chunks`; None if it does not.
        single: whether the kernel exists for float32 alone.

    Example:
        >>> def double(start, stop, x):
        ...     for i in range(start, stop):
        ...         x[i] *= 2
        >>> x = np.ones(3)
        >>> Kernel(double, "void(i8, i8, F[::1])").at(x.dtype)(0, 2, x)
        >>> x
        array([2., 2., 1.])
    """

    def __init__(
        self, function: Callable[..., Any], signature: str, scratch: int | None = None, single: bool = False
    ) -> None:
        """Remember what to compile; compile nothing yet."""
        self.py_func = function
        self.signature = signature
        self.scratch = scratch
        self.dtypes = [np.dtype(np.float32)] if single else list(_LETTERS)
        self._compiled: dict[np.dtype[Any], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        cache.remember_sources(function)

    def at(self, dtype: Any) -> Callable[..., Any]:
        """Return the compiled function for a float type.

        Args:
            dtype: one of `dtypes`, float32 and for most kernels float64.

        Returns:
            The compiled function; it takes exactly the arguments that the signature names.

        Raises:
            DtypeError: the type is another one.

        Example:
            >>> Kernel(lambda x: None, "void(F[::1])").at(np.float16)
            Traceback (most recent call last):
            qkv.errors.DtypeError: dtype: expected float32 or float64; got float16. Convert before the kernel is called.
        """
        key = np.dtype(dtype)
        return self._compiled.get(key) or self._compile(key)

    def _compile(self, dtype: np.dtype[Any]) -> Callable[..., Any]:
        signature = self.signature_at(dtype)
        with unforked(), self._lock:
            if dtype not in self._compiled:
                self._compiled[dtype] = compile_cached(self.py_func, signature)
            return self._compiled[dtype]

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
    """Make a function a kernel, which is compiled when it is first used.

    Args:
        signature, scratch, single: as for `Kernel`.

    Returns:
        A decorator that returns a `Kernel`.

    Example:
        >>> @kernel("void(F[::1], F[::1])")
        ... def double(x, y):
        ...     y[0] = 2 * x[0]
        >>> y = np.zeros(1)
        >>> double.at(y.dtype)(np.array([3.0]), y)
        >>> y, double.signature
        (array([6.]), 'void(F[::1], F[::1])')
    """
    return lambda function: Kernel(function, signature, scratch, single)


def part_of(kernel: Kernel) -> Callable[..., Any]:
    """Return a kernel's function for other compiled functions to call.

    Args:
        kernel: the kernel.

    Returns:
        The compiled function; its machine code is stored with the functions that call it.
    """
    return helper(kernel.py_func)


def compile_cached(function: Callable[..., Any], signature: str, wrapper: bool = False) -> Callable[..., Any]:
    """Compile a function now, or load the machine code that an earlier process stored.

    Args:
        function: plain Python that Numba understands.
        signature: Numba's signature, `void(...)`.
        wrapper: whether the function does nothing but call another one, `part_of` a kernel.

    Returns:
        The compiled function; where kernels are not compiled, the function itself.

    Raises:
        UnsupportedError: the code is not on disk and Numba does not run here.
        TypeError: of the compiled function, if an argument is not what the signature says.
    """
    if not compiles():
        return function
    name = _name(function)
    stored = cache.stored_code(function, {"wrapper": wrapper, **_options()})
    code = stored and stored.load(signature)
    with unforked():
        if code:
            try:
                return linking.load(code, name)
            except RuntimeError:  # it is compiled anew; an error of that code is the caller's
                pass
        with announced(name), uncollected():
            compiled = _compiler(name).compile_object(function, _options(), signature, wrapper)
        if stored:
            stored.save(signature, compiled.code) if compiled.lasting else stored.refuse()
        return linking.load(compiled.code, name)


def assembly(function: Callable[..., Any], signature: str, wrapper: bool = False) -> str:
    """Compile a function, whatever is on disk, and return its instructions as text.

    Args:
        function, signature, wrapper: as for `compile_cached`.
    """
    return cast(str, _compiler(_name(function)).assembly(function, _options(), signature, wrapper))


def _options() -> dict[str, Any]:
    return {"fastmath": ELEMENTWISE, **OPTIONS}


def _name(function: Callable[..., Any]) -> str:
    """Return a function's name for messages: that of its file's module, unless the function has a longer one."""
    return function.__qualname__ if "." in function.__qualname__ else function.__module__ or function.__qualname__


def _compiler(name: str) -> Any:
    """Import Numba, and return the module that compiles with it."""
    try:
        from qkv.compiled import compiler
    except ImportError as error:
        raise UnsupportedError(
            name, "its machine code on disk, or Numba to compile it", str(error), "Install Numba."
        ) from error
    declare_overloads()
    return compiler
