"""Compile a kernel with Numba to object code, which `qkv.compiled.cache` stores and `qkv.compiled.linking` loads.

`numba.njit` would write two wrappers for each function, for calls from Python and from C, then machine code for all
three, and would optimize every function again in each of its callers. That took more than half of the time.
"""

# mypy: ignore-errors
# Numba's compiler has no types.

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba.core import dispatcher, sigutils, types
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.options import DefaultOptions
from numba.core.registry import CPUDispatcher, cpu_target

from qkv.compiled import target
from qkv.compiled.entry import write_entry
from qkv.errors import UnsupportedError

_UNCOUNTED = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
"""Numba does not promise to keep this option; without it kernels are slower."""


class _Library(CPUCodeLibrary):
    """LLVM code that is optimized for other libraries to link, and never becomes machine code on its own."""

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


class _Shell(_Library):
    """A small function and the libraries that it calls, which have been optimized: only the function still is."""

    def _optimize_functions(self, ll_module):
        super()._optimize_functions(ll_module)
        passes, builder = self._codegen._module_pass_manager()
        passes.run(ll_module, builder)

    def _optimize_final_module(self):
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()  # functions that their callers have inlined
        passes.run(self._final_module, self._codegen._pass_builder())


class _Codegen(JITCPUCodegen):
    """Numba's writer of code, for the processor that `target` names."""

    def _get_host_cpu_name(self):
        return target.PROCESSOR

    def _get_host_cpu_features(self):
        return target.FEATURES


class _Target:
    """Numba's target for a processor, except for what happens to a function's LLVM code.

    Args:
        library: the class of that code.
    """

    options = cpu_target.options

    def __init__(self, library):
        """Start no compiler yet."""
        self._library = library

    @property
    def typing_context(self):
        return cpu_target.typing_context

    @cached_property
    def target_context(self):
        kind = type("Codegen", (_Codegen,), {"_library_class": self._library})
        return cpu_target.target_context.subtarget(_internal_codegen=kind(f"qkv.{self._library.__name__}"))


class _Compiler(dispatcher._FunctionCompiler):
    def _customize_flags(self, flags):
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return flags


class PartDispatcher(CPUDispatcher):
    """A function that only compiled functions call.

    Args:
        py_func: plain Python that Numba understands.
        targetoptions: those of `numba.njit`.
    """

    targetdescr = _Target(_Library)

    def __init__(self, py_func: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        """Compile nothing yet."""
        super().__init__(py_func, targetoptions={"nopython": True, **_UNCOUNTED, **targetoptions})
        self._compiler = _Compiler(
            py_func, self.targetdescr, self.targetoptions, self.locals, self._compiler.pipeline_class
        )

    def get_call_template(self, args, kws):
        """Compile one variant for constants and for variables; Numba would write one more for each constant."""
        plain = {name: types.unliteral(kind) for name, kind in kws.items()}
        return super().get_call_template([types.unliteral(kind) for kind in args], plain)

    def add_overload(self, cres):
        """Remember a compiled function under a key of its own: Numba's is the entry point, which this one lacks."""
        key = object()
        self.targetctx.insert_user_function(key, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres._replace(entry_point=key)


class _ShellDispatcher(PartDispatcher):
    """A function that does nothing but call a part."""

    targetdescr = _Target(_Shell)


class Compiled(NamedTuple):
    """A kernel's machine code.

    Attributes:
        code: an object file, whose function `entry.SYMBOL` Python can call.
        lasting: whether another process can run it, since it holds no addresses of this one.
    """

    code: bytes
    lasting: bool


def compile_object(function: Callable[..., Any], options: dict[str, Any], signature: str, shell: bool) -> Compiled:
    """Compile a function.

    Args:
        function: plain Python that Numba understands; returns nothing.
        options: those of `numba.njit`.
        signature: Numba's signature.
        shell: whether the function does nothing but call a part.

    Raises:
        UnsupportedError: the function returns something, or takes what Python cannot pass to a kernel.
        NumbaError: Numba does not understand the function.
    """
    with global_compiler_lock:
        library = _library(function, options, signature, shell)
        return Compiled(library._codegen._tm.emit_object(library._final_module), not library.has_dynamic_globals)


def assembly(function: Callable[..., Any], options: dict[str, Any], signature: str, shell: bool) -> str:
    """Return the instructions that `compile_object` writes, as text."""
    with global_compiler_lock:
        library = _library(function, options, signature, shell)
        return library._codegen._tm.emit_assembly(library._final_module)


def _library(function, options, signature, shell):
    """Compile a function, and the function through which Python calls it, as LLVM code."""
    arguments, result = sigutils.normalize_signature(signature)
    if result != types.void:
        raise UnsupportedError("signature", "void(...)", signature, "Write results to an array that is an argument.")
    code = (_ShellDispatcher if shell else PartDispatcher)(function, options)
    code.compile(signature)
    compiled = code.overloads[tuple(arguments)]
    context = _ShellDispatcher.targetdescr.target_context
    library = context.codegen().create_library("qkv.entry")
    module = library.create_ir_module("qkv.entry")
    write_entry(module, context, compiled.fndesc, arguments)
    library.add_linking_library(compiled.library)
    library.add_ir_module(module)
    library.finalize()
    return library
