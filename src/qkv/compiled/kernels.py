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
from qkv.compiled.parts import Part, Shell
from qkv.compiled.waiting import announced, uncollected
from qkv.errors import DtypeError, error_message

ELEMENTWISE = {"contract", "nsz"}
REDUCTION = {"contract", "nsz", "reassoc", "arcp"}
_OPTIONS: dict[str, Any] = {"nogil": True, "parallel": False, "error_model": "numpy"}
if hasattr(DefaultOptions, "_nrt"):  # an option that Numba does not promise to keep; without it kernels are slower
    _OPTIONS["_nrt"] = False


def _has_wide_registers() -> bool:
    """True if one register holds 16 float32 numbers in the machine code that Numba writes.

    That need not be so for the processor that runs this: `NUMBA_CPU_NAME`, `NUMBA_CPU_FEATURES` and `NUMBA_ENABLE_AVX`
    make Numba compile for another one. So this compiles a sum of 16 numbers for Numba's processor and features. They
    are part of the names of stored files, so code with registers of another size is never loaded.
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
"""True: 32 registers of 16 float32 numbers; False: 16 registers of 8."""
ESTIMATED = {*ELEMENTWISE, "arcp", "ninf"} if WIDE else ELEMENTWISE
_njit: Any = numba.njit
_LETTERS = {np.dtype(np.float32): "f4", np.dtype(np.float64): "f8"}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiles() -> bool:
    """True if Numba compiles functions; False if they run as plain Python (`NUMBA_DISABLE_JIT`).

    Example:
        >>> compiles()
        True
    """
    return not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


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
    return cast(_Function, Part(function, {"fastmath": fastmath, **options, **_OPTIONS})) if compiles() else function


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
        with self._lock:
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
            raise DtypeError(
                error_message("dtype", expected, f"{np.dtype(dtype)}", "Convert before the kernel is called.")
            )
        return self.signature.replace("F", _LETTERS[np.dtype(dtype)])


def kernel(signature: str, scratch: int | None = None, single: bool = False) -> Callable[[Callable[..., Any]], Kernel]:
    """Make a function a kernel, which is compiled when it is first used.

    Args:
        signature, scratch, single: as for `Kernel`.

    Returns:
        A decorator that returns a `Kernel`.

    Example:
        >>> @kernel("F(F[::1])")
        ... def first(x):
        ...     return x[0]
        >>> first.py_func(np.array([3.0])), first.signature
        (np.float64(3.0), 'F(F[::1])')
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


def compile_cached(function: Callable[..., Any], signature: Any, wrapper: bool = False) -> Callable[..., Any]:
    """Compile a function now, or load the machine code that an earlier process stored.

    Args:
        function: plain Python that Numba understands.
        signature: Numba's signature.
        wrapper: whether the function does nothing but call another one, `part_of` a kernel.

    Returns:
        The compiled function.
    """
    options = {"fastmath": ELEMENTWISE, "no_cfunc_wrapper": True, **_OPTIONS}
    code = Shell(function, options) if wrapper and compiles() else _njit(**options)(function)
    if compiles():
        cache.attach(code)
        with announced(function.__qualname__ if "." in function.__qualname__ else function.__module__), uncollected():
            code.compile(signature)
        code.disable_compile()
    return cast(Callable[..., Any], code)
