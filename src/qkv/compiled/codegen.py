"""Names of Numba and LLVM for kernels that write their own instructions.

Only `qkv.compiled.build` compiles, so only its processes import Numba. Elsewhere these names stand for nothing:
modules of kernels name registers and intrinsics when they are imported, and no one uses them.
"""

# mypy: ignore-errors
# Numba and llvmlite have no types.

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from qkv.compiled.target import BUILDS

__all__ = ["intrinsic", "ir", "overload", "types"]


class _Unused:
    """Any name of a compiler that does not run, and what it would return."""

    def __getattr__(self, name: str) -> "_Unused":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> "_Unused":
        return self


class _Instructions:
    """A function whose LLVM instructions are written by `define`."""

    def __init__(self, define: Callable[..., Any]) -> None:
        update_wrapper(self, define)

    def __call__(self, *_: Any) -> None:
        """Refuse: there are only instructions."""
        raise NotImplementedError(f"{self.__name__} is LLVM instructions; it has no form in plain Python.")


if BUILDS:
    from llvmlite import ir
    from numba.core import types
    from numba.extending import intrinsic, overload
else:
    ir = types = _Unused()

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
        return _Instructions(define)

    def overload(function: Callable[..., Any], **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare what compiled functions run in place of a Python function, as `numba.extending.overload` does."""
        return lambda define: define
