"""Kernels: Python functions that Numba compiles at their first call and that `qkv.compiled.cache` keeps on disk.

Rules that every kernel keeps:
- `nogil`, so that our own threads can run it side by side.
- Never `parallel=True`: one of Numba's threading layers kills forked children, another aborts under concurrent threads.
- Never `nnan`, `ninf` or `afn` in `fastmath`: scores may be infinite, and a visible NaN must stay NaN. Only `estimated`
  has `ninf`, for numbers that are finite by construction.
- No allocation (`_nrt=False`): counting references to slices costs a tenth of the time.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core.options import DefaultOptions
from numba.core.registry import cpu_target

from qkv.compiled import cache
from qkv.errors import DtypeError, error_message

ELEMENTWISE = {"contract", "nsz"}
REDUCTION = {"contract", "nsz", "reassoc", "arcp"}
_OPTIONS: dict[str, Any] = {"nogil": True, "parallel": False, "error_model": "numpy"}
if hasattr(DefaultOptions, "_nrt"):  # an option that Numba does not promise to keep; without it kernels are slower
    _OPTIONS["_nrt"] = False


def _has_wide_registers() -> bool:
    """Whether the machine code that Numba writes keeps 16 float32 numbers in one register.

    The processor at hand does not tell: `NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES` and `NUMBA_ENABLE_AVX` make Numba
    compile for another one. So a sum of 16 numbers is compiled for the same processor and features. These are part of
    the key under which machine code is stored: code with registers of another size is never loaded.
    """
    triple, processor, features = cpu_target.target_context.codegen().magic_tuple()
    register, module = ir.VectorType(ir.FloatType(), 16), ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(register, [register, register]), "sum")
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.fadd(*function.args))
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=processor, features=features)
    return "zmm" in machine.emit_assembly(binding.parse_assembly(str(module)))


WIDE = _has_wide_registers()
"""Whether registers hold 16 numbers, and there are 32 of them; else 8, and 16."""
ESTIMATED = {*ELEMENTWISE, "arcp", "ninf"} if WIDE else ELEMENTWISE
_njit: Any = numba.njit
_LETTERS = {np.dtype(np.float32): "f4", np.dtype(np.float64): "f8"}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiles() -> bool:
    """Whether functions are compiled at all, and do not run as plain Python.

    Example:
        >>> compiles()
        True
    """
    return not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


def helper(function: _Function) -> _Function:
    """Compile a function that kernels of the same file call, element by element: its operations keep their order.

    Args:
        function: plain Python that Numba understands.

    Returns:
        The compiled function; `.py_func` is the plain one.

    Example:
        >>> helper(abs_of := lambda x: x if x >= 0 else -x)(-2.0)
        2.0
    """
    return cast(_Function, _njit(fastmath=ELEMENTWISE, **_OPTIONS)(function))


def estimated(function: _Function) -> _Function:
    """Compile a function of finite numbers, whose divisions in float32 may begin with an estimated reciprocal.

    One step of Newton's leaves an error of a unit or two of the last place, in a quarter of the time. The estimate of
    registers of fewer than 512 bits would need two steps; there divisions stay what they are.

    Args:
        function: plain Python that Numba understands.

    Returns:
        The compiled function; `.py_func` is the plain one.

    Example:
        >>> estimated(lambda x: 1 / x)(2.0)
        0.5
    """
    return cast(_Function, _njit(fastmath=ESTIMATED, **_OPTIONS)(function))


def inlined(function: _Function) -> _Function:
    """Compile a function as a part of each kernel that calls it, never alone: it takes too many arrays for a call.

    Args:
        function: plain Python that Numba understands.

    Returns:
        The compiled function; `.py_func` is the plain one.

    Example:
        >>> inlined(lambda x: x + 1)(1)
        2
    """
    return cast(_Function, _njit(fastmath=ELEMENTWISE, inline="always", **_OPTIONS)(function))


def reduction(function: _Function) -> _Function:
    """Compile a function that sums along a row: its additions may be reordered, or they could not fill a register.

    Args:
        function: plain Python that Numba understands.

    Returns:
        The compiled function; `.py_func` is the plain one.

    Example:
        >>> reduction(lambda x, y: x + y)(1.0, 2.0)
        3.0
    """
    return cast(_Function, _njit(fastmath=REDUCTION, **_OPTIONS)(function))


class Kernel:
    """A function over C-contiguous arrays, compiled for one float type when that type is first asked for.

    Args:
        function: plain Python that Numba understands; `.py_func` keeps it.
        signature: Numba's signature, with `F` where the float type goes.

    Example:
        >>> def double(start, stop, x):
        ...     for i in range(start, stop):
        ...         x[i] *= 2
        >>> x = np.ones(3)
        >>> Kernel(double, "void(i8, i8, F[::1])").at(x.dtype)(0, 2, x)
        >>> x
        array([2., 2., 1.])
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        """Remember what to compile; compile nothing yet."""
        self.py_func = function
        self.signature = signature
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        cache.remember_sources(function)

    def at(self, dtype: Any) -> Callable[..., Any]:
        """Give the machine code for a float type.

        Args:
            dtype: float32 or float64.

        Returns:
            The compiled function. It takes exactly the arrays that the signature names.

        Raises:
            DtypeError: for another type.

        Example:
            >>> Kernel(lambda x: None, "void(F[::1])").at(np.float16)
            Traceback (most recent call last):
            qkv.errors.DtypeError: dtype: expected float32 or float64; got float16. Convert before the kernel is called.
        """
        found = self._compiled.get(dtype)
        return found if found is not None else self._compile(dtype)

    def _compile(self, dtype: Any) -> Callable[..., Any]:
        key = np.dtype(dtype)
        if key not in _LETTERS:
            message = error_message("dtype", "float32 or float64", str(key), "Convert before the kernel is called.")
            raise DtypeError(message)
        with self._lock:
            if dtype not in self._compiled:
                self._compiled[dtype] = self._compiled.get(key) or compile_cached(
                    self.py_func, self.signature.replace("F", _LETTERS[key])
                )
                self._compiled[key] = self._compiled[dtype]
            return self._compiled[dtype]


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Mark a function as a kernel that is compiled at its first use.

    Args:
        signature: Numba's signature, with `F` where the float type goes.

    Returns:
        A decorator that makes a `Kernel`.

    Example:
        >>> @kernel("F(F[::1])")
        ... def first(x):
        ...     return x[0]
        >>> first.py_func(np.array([3.0])), first.signature
        (np.float64(3.0), 'F(F[::1])')
    """
    return lambda function: Kernel(function, signature)


def part_of(kernel: Kernel) -> Callable[..., Any]:
    """A kernel's function as a part of other compiled functions.

    Args:
        kernel: whose.

    Returns:
        The compiled function, which is kept with those that call it.
    """
    return helper(kernel.py_func)


def compile_cached(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile a function now, or load what an earlier process compiled and stored on disk.

    Args:
        function: plain Python that Numba understands.
        signature: of its arguments.

    Returns:
        The compiled function.
    """
    code = _njit(fastmath=ELEMENTWISE, **_OPTIONS)(function)
    if compiles():
        cache.attach(code)
        code.compile(signature)
        code.disable_compile()
    return cast(Callable[..., Any], code)
