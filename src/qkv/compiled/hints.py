"""Hints from compiled functions to LLVM and the processor: the width of registers, and memory to prefetch."""

# mypy: ignore-errors
# Numba's signatures are the types here.

from collections.abc import Callable
from typing import Any

from qkv.compiled.codegen import intrinsic, ir, overload, types


def wide_registers() -> None:
    """Let the loops of a compiled function use registers of 512 bits, if the processor has them; called first in it.

    LLVM prefers 256 bits on most processors that have 512, because the first of them lowered their clock for wide
    registers. Measured (`docs/project/tuning.md`): the loops of these kernels gain a tenth to two fifths if two
    programs share a core, and lose nothing otherwise. In plain Python this does nothing.

    Example:
        >>> wide_registers()
    """


@overload(wide_registers, inline="always")
def _wide_registers() -> Callable[[], None]:
    def hint() -> None:
        _prefer_wide()

    return hint


@intrinsic
def _prefer_wide(_: Any) -> Any:
    def hint(context: Any, builder: Any, *_: Any) -> Any:
        # llvmlite writes this attribute, but its `add` refuses names that it does not list.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), hint


def prefetch(row: Any) -> None:
    """Load a row of numbers into the caches while a compiled function does other work.

    Processors fetch what is read in order by themselves, but not during long computations: sixteen tanhs take as long
    as loading a cache line from the outermost cache. In plain Python this does nothing.

    Args:
        row: a contiguous array; its numbers are not read.

    Example:
        >>> import numpy as np
        >>> prefetch(np.zeros(8))
    """


@overload(prefetch, inline="always")
def _prefetch_row(row: Any) -> Callable[[Any], None]:
    line = 64 // (row.dtype.bitwidth // 8)

    def hint(row: Any) -> None:
        for index in range(0, row.size, line):
            _prefetch(row, index)

    return hint


@intrinsic
def _prefetch(_: Any, row: Any, index: Any) -> Any:
    def hint(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        prefetch_at(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.none(row, index), hint


def prefetch_at(builder: Any, index: Any) -> None:
    """Write LLVM's instruction that loads what a pointer points to into the caches.

    Args:
        builder: llvmlite's builder, which writes instructions.
        index: the pointer.
    """
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    builder.call(call, [builder.bitcast(index, byte), number(0), number(3), number(1)])
