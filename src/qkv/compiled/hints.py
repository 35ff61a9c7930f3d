"""Hints from compiled functions to LLVM and the processor: how wide loops should be, and what will be read soon."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload


def wide_registers() -> None:
    """Ask, at the head of a compiled function, for loops that fill registers of 512 bits where there are any.

    LLVM takes 256 bits on most processors that have 512, because the first of them lowered their clock for the wide
    ones. Measured (`docs/tuning.md`): loops of these kernels gain a tenth to two fifths where two programs share
    a core's units, and lose nothing elsewhere. In plain Python nothing happens.

    Example:
        >>> wide_registers()
    """


@overload(wide_registers, inline="always")
def _wide_registers() -> Callable[[], None]:
    def ask() -> None:
        _prefer_wide()  # type: ignore[call-arg]

    return ask


@intrinsic
def _prefer_wide(_: Any) -> Any:
    def ask(context: Any, builder: Any, *_: Any) -> Any:
        # An attribute that llvmlite writes down but does not have in its list of names.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), ask


def prefetch(row: Any) -> None:
    """Ask, in a compiled function, for a row of numbers to be brought into the caches while other work is done.

    Cores fetch ahead what is read in order, but not while they compute: sixteen tanhs take as long as a line from the
    outermost cache. In plain Python nothing happens.

    Args:
        row: numbers beside each other; none is read.

    Example:
        >>> import numpy as np
        >>> prefetch(np.zeros(8))
    """


@overload(prefetch, inline="always")
def _fetch_row(row: Any) -> Callable[[Any], None]:
    line = 64 // (row.dtype.bitwidth // 8)

    def ask(row: Any) -> None:
        for place in range(0, row.size, line):
            _prefetch(row, place)  # type: ignore[call-arg]

    return ask


@intrinsic
def _prefetch(_: Any, row: Any, place: Any) -> Any:
    def ask(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        prefetch_at(builder, builder.gep(data, [given[1]]))
        return context.get_dummy_value()

    return types.none(row, place), ask


def prefetch_at(builder: Any, place: Any) -> None:
    """Write down, as LLVM's instruction, that what lies at a place is wanted in the caches.

    Args:
        builder: where instructions are written.
        place: a pointer.
    """
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    builder.call(call, [builder.bitcast(place, byte), number(0), number(3), number(1)])
