"""Numba's compiler for functions that become parts of kernels, and for a target that need not be this machine.

`numba.njit` would write two wrappers for each function, for calls from Python and from C, then machine code for all
three, and would optimize every function again in each of its callers. That took more than half of the time.
"""

# mypy: ignore-errors
# Numba's compiler has no types.

from collections.abc import Callable
from functools import cached_property
from typing import Any

import llvmlite.binding as llvm
from numba.core import config, dispatcher, types
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.options import DefaultOptions
from numba.core.registry import CPUDispatcher, cpu_target

from qkv.compiled.target import CHOICE

_TARGET = CHOICE.target
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


class TargetCodegen(JITCPUCodegen):
    """Numba's writer of code, for a target that need not be this machine: it starts no engine to run anything."""

    def _init(self, llvm_module):
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        self._tm_features, self._engine = "", None
        # Position-independent, as every shared library.
        self._tm = llvm.Target.from_triple(_TARGET.triple).create_target_machine(
            cpu=_TARGET.processor, features="", opt=config.OPT, reloc="pic", codemodel="small"
        )
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)
        self._loopvect, self._opt_level = False, 0

    def _create_empty_module(self, name):
        module = super()._create_empty_module(name)
        module.triple = _TARGET.triple
        return module


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
        kind = type("Codegen", (TargetCodegen,), {"_library_class": self._library})
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


class ShellDispatcher(PartDispatcher):
    """A function that does nothing but call a part."""

    targetdescr = _Target(_Shell)
