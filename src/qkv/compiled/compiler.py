"""Compile kernels, and the functions through which Python calls them, to object files."""

# mypy: ignore-errors
# Numba's compiler has no types.

import re
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import sigutils, types
from numba.core.compiler_lock import global_compiler_lock

from qkv.compiled.dispatchers import PartDispatcher, ShellDispatcher
from qkv.compiled.entry import write_entry
from qkv.compiled.kernels import ELEMENTWISE, OPTIONS, Kernel, part_of
from qkv.compiled.library import MANIFEST, NDARRAY, TEAM
from qkv.compiled.parallel_region import run_parallel
from qkv.compiled.target import CHOICE
from qkv.errors import UnsupportedError


@global_compiler_lock
def kernel_object(kernel: Kernel, dtype: Any) -> bytes:
    """Compile a kernel for a float type.

    Args:
        kernel: with the functions for its symbols: the kernel, and if it has scratch, a parallel region that runs it.
        dtype: one of the kernel's.

    Returns:
        An object file.

    Raises:
        UnsupportedError: the function returns something, takes what Python cannot pass to a kernel, or its code would
            hold an address of this process.
        NumbaError: Numba does not understand the function.
    """
    return _machine().emit_object(_module(kernel, dtype))


@global_compiler_lock
def assembly(kernel: Kernel, dtype: Any) -> str:
    """Return the instructions that `kernel_object` writes, as text."""
    return _machine().emit_assembly(_module(kernel, dtype))


@global_compiler_lock
def data_object(manifest: bytes) -> bytes:
    """Return an object file with the variables of a library, of which the manifest is one."""
    module = ir.Module("qkv.library")
    module.triple = CHOICE.target.triple
    for name in (NDARRAY, TEAM):
        variable = ir.GlobalVariable(module, ir.IntType(8).as_pointer(), name)
        variable.initializer = ir.Constant(variable.value_type, None)
    text = bytearray(manifest + b"\0")
    constant = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), len(text)), MANIFEST)
    constant.global_constant, constant.initializer = True, ir.Constant(constant.value_type, text)
    return _machine().emit_object(llvm.parse_assembly(str(module)))


def _machine():
    return _context().codegen()._tm


def _context():
    return ShellDispatcher.targetdescr.target_context


def _module(kernel, dtype):
    """Compile a kernel, and the functions through which Python calls it, as LLVM code."""
    functions = [(kernel.symbol(dtype), PartDispatcher, kernel.py_func, kernel.signature_at(dtype))]
    if kernel.scratch is not None:
        functions.append((kernel.symbol(dtype, team=True), ShellDispatcher, *_region(kernel, dtype)))
    library = _context().codegen().create_library("qkv.entry")
    module = library.create_ir_module("qkv.entry")
    for symbol, compiler, function, signature in functions:
        arguments, result = sigutils.normalize_signature(signature)
        if result != types.void:
            raise UnsupportedError(
                "signature", "void(...)", signature, "Write results to an array that is an argument."
            )
        code = compiler(function, {"fastmath": ELEMENTWISE, **OPTIONS})
        code.compile(signature)
        compiled = code.overloads[tuple(arguments)]
        write_entry(module, symbol, _context(), compiled.fndesc, arguments)
        library.add_linking_library(compiled.library)
    library.add_ir_module(module)
    library.finalize()
    if library.has_dynamic_globals:
        raise UnsupportedError(
            functions[0][0], "code without addresses", "an address of this process", "Close over nothing."
        )
    return _internal(library._final_module, {symbol for symbol, *_ in functions})


def _internal(module, symbols):
    """Leave only some names to the linker: other objects hold functions of the same names, which may differ."""
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name not in symbols:
            each.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, _context().codegen()._pass_builder())
    return module


def _region(kernel, dtype):
    """Return a function that runs a kernel in a parallel region of OpenMP, and its signature."""
    scratch = kernel.scratch
    # Types of arrays have commas between brackets.
    start, _, *parameters = re.findall(r"\w+(?:\[[^\]]*\])?", kernel.signature_at(dtype).removeprefix("void"))
    whole = len(parameters) - scratch
    # Scratch has one more dimension in front, the chunks.
    arguments = [*parameters[:whole], *(each.replace("[", "[:,") for each in parameters[whole:])]
    parallel, part = run_parallel(start, scratch), part_of(kernel)

    def launch(threads: int, chunks: int, items: int, packed: tuple[Any, ...]) -> None:
        parallel(part, threads, chunks, items, packed)

    return launch, f"void(u8, u8, u8, Tuple(({', '.join(arguments)},)))"
