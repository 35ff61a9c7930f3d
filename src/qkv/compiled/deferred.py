"""Numba's `types`, `intrinsic` and `overload`, and functions for it to compile, without importing it.

Importing Numba takes 0.3 s, and a process that finds all of its kernels on disk never needs it. What is declared with
the names of this file becomes Numba's when a kernel is compiled.
"""

# mypy: ignore-errors
# Numba has no types.

import threading
from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import Any

_lock = threading.Lock()
_overloads: list[tuple[Callable[..., Any], dict[str, Any], Callable[..., Any]]] = []


class _Types:
    """The names of `numba.core.types`."""

    def __getattr__(self, name: str) -> Any:
        from numba.core import types

        return getattr(types, name)


types = _Types()


class Part:
    """A function that only compiled functions call.

    Args:
        py_func: plain Python that Numba understands.
        targetoptions: those of `numba.njit`; Numba reads `inline` here.
    """

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        """Compile nothing yet."""
        update_wrapper(self, py_func)
        self.py_func = py_func
        self.targetoptions = targetoptions

    def __call__(self, *_):
        """Refuse: there is nothing that Python can call."""
        raise TypeError(f"{self.__name__} is for compiled functions; call {self.__name__}.py_func from Python.")

    @cached_property
    def dispatcher(self):
        """What Numba compiles."""
        from qkv.compiled.compiler import PartDispatcher

        return PartDispatcher(self.py_func, self.targetoptions)

    @property
    def _numba_type_(self):
        """What Numba asks of every value that a compiled function names."""
        return self.dispatcher._numba_type_


class _Intrinsic:
    """A function whose LLVM instructions are written by `define`."""

    def __init__(self, define: Callable[..., Any]) -> None:
        update_wrapper(self, define)
        self._define = define

    def __call__(self, *_):
        """Refuse: there are only instructions."""
        raise NotImplementedError(f"{self.__name__} is LLVM instructions; it has no form in plain Python.")

    @cached_property
    def _intrinsic(self):
        from numba.extending import intrinsic

        return intrinsic(self._define)

    @property
    def _numba_type_(self):
        from numba.core.registry import cpu_target

        context, intrinsic = cpu_target.typing_context, self._intrinsic
        context.refresh()
        return context.resolve_value_type(intrinsic)


def intrinsic(define: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a function by its LLVM instructions, as `numba.extending.intrinsic` does.

    Example:
        >>> @intrinsic
        ... def nothing(typing):
        ...     return types.void(), lambda context, *_: context.get_dummy_value()
        >>> nothing()
        Traceback (most recent call last):
        NotImplementedError: nothing is LLVM instructions; it has no form in plain Python.
    """
    return _Intrinsic(define)


def overload(function: Callable[..., Any], **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare what compiled functions run in place of a Python function, as `numba.extending.overload` does."""

    def declare(define: Callable[..., Any]) -> Callable[..., Any]:
        _overloads.append((function, options, define))
        return define

    return declare


def declare_overloads() -> None:
    """Tell Numba the overloads that were declared since the last call."""
    from numba.extending import overload as declare

    with _lock:
        while _overloads:
            function, options, define = _overloads.pop(0)
            declare(function, **options)(define)
