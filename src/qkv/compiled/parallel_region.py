"""OpenMP's parallel region as LLVM instructions inside a compiled function: threads take chunks until none is left."""

# mypy: ignore-errors
# llvmlite and Numba's code generation have no types.

from functools import lru_cache
from typing import Any, NamedTuple

from qkv.compiled.codegen import intrinsic, ir, types
from qkv.compiled.library import TEAM

_I8P, _I32, _I64 = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
_MEMBER = ir.FunctionType(ir.VoidType(), [_I8P])


@lru_cache
def run_parallel(count: str, scratch: int):
    """Return an intrinsic that calls a function for each chunk of a range of items, in a parallel region of OpenMP.

    Args:
        count: the type of the function's first two arguments, the start and stop of a chunk: `i8` or `u8`.
        scratch: how many of the function's last arguments are scratch.

    Returns:
        A function `call(part, threads, chunks, items, packed)` for compiled code. For each chunk it calls
        `part(start, stop, *packed)`, with the chunk's row of each scratch array.
    """

    @intrinsic
    def call(typing, part, threads, chunks, items, packed):
        index = getattr(types, count)
        parameters = [*packed.types[: len(packed) - scratch], *map(_row_type, packed.types[len(packed) - scratch :])]
        called = part.get_call_type(typing, (index, index, *parameters), {})

        def generate(context, builder, _, values):
            from numba.core import cgutils

            _, threads, chunks, items, packed_value = values
            code = part.dispatcher.overloads[called.args]
            context.active_code_library.add_linking_library(code.library)
            # What the threads share: the next chunk, the number of chunks and of items, and the packed arguments.
            shared = ir.LiteralStructType([_I64, _I64, _I64, context.get_value_type(packed)])
            state = cgutils.alloca_once(builder, shared)
            for field, value in enumerate((ir.Constant(_I64, 0), chunks, items, packed_value)):
                builder.store(value, cgutils.gep_inbounds(builder, state, 0, field))
            member = _member(context, builder, shared, _Call(code.fndesc, called, packed, scratch))
            _call_team(builder, member, builder.bitcast(state, _I8P), threads)
            return context.get_dummy_value()

        return types.void(part, threads, chunks, items, packed), generate

    return call


class _Call(NamedTuple):
    """A compiled function, its signature, the type of the packed arguments, and how many of them are scratch."""

    described: Any
    signature: Any
    packed: Any
    scratch: int


def _member(context, caller, shared, call):
    """Write the function that each thread runs: it takes chunks until none is left."""
    from numba.core import cgutils

    name = caller.module.get_unique_name(f"{caller.function.name}.member")
    member = ir.Function(caller.module, _MEMBER, name)
    member.linkage = "internal"
    builder = ir.IRBuilder(member.append_basic_block("entry"))
    take, work, done = (member.append_basic_block(part) for part in ("take", "work", "done"))
    state = builder.bitcast(member.args[0], shared.as_pointer())
    counter = cgutils.gep_inbounds(builder, state, 0, 0)
    chunks, items, packed = (builder.load(cgutils.gep_inbounds(builder, state, 0, field)) for field in (1, 2, 3))
    arguments = cgutils.unpack_tuple(builder, packed, len(call.packed))
    builder.branch(take)
    builder.position_at_end(take)
    chunk = builder.atomic_rmw("add", counter, ir.Constant(_I64, 1), "monotonic")
    builder.cbranch(builder.icmp_unsigned("<", chunk, chunks), work, done)
    builder.position_at_end(work)
    start, stop = (
        builder.udiv(builder.mul(at, items), chunks) for at in (chunk, builder.add(chunk, ir.Constant(_I64, 1)))
    )
    for index in range(len(arguments) - call.scratch, len(arguments)):
        arguments[index] = _row(context, builder, call.packed.types[index], arguments[index], chunk)
    context.call_internal_no_propagate(builder, call.described, call.signature, [start, stop, *arguments])
    builder.branch(take)
    builder.position_at_end(done)
    builder.ret_void()
    return member


def _row(context, builder, kind, value, index):
    """Return one row of a C-contiguous array, as an array."""
    from numba.core import cgutils
    from numba.np.arrayobj import make_array, populate_array

    array, row = make_array(kind)(context, builder, value), make_array(_row_type(kind))(context, builder)
    shape, strides = (cgutils.unpack_tuple(builder, each, kind.ndim)[1:] for each in (array.shape, array.strides))
    first = cgutils.unpack_tuple(builder, array.strides, kind.ndim)[0]
    populate_array(
        row,
        data=cgutils.pointer_add(builder, array.data, builder.mul(index, first), array.data.type),
        shape=shape,
        strides=strides,
        itemsize=array.itemsize,
        meminfo=None,
    )
    return row._getvalue()


def _row_type(kind):
    return types.Array(kind.dtype, kind.ndim - 1, kind.layout)


def _call_team(builder, member, state, threads):

    kind = ir.FunctionType(ir.VoidType(), [_MEMBER.as_pointer(), _I8P, _I32, _I32])
    known = builder.module.globals.get(TEAM) or ir.GlobalVariable(builder.module, _I8P, TEAM)
    with builder.if_else(builder.icmp_unsigned("<=", threads, ir.Constant(_I64, 1))) as (alone, in_parallel):
        with alone:
            builder.call(member, [state])
        with in_parallel:
            team = builder.bitcast(builder.load(known), kind.as_pointer())
            builder.call(team, [member, state, builder.trunc(threads, _I32), ir.Constant(_I32, 0)])
