"""Whether compiled kernels can run here."""

from functools import lru_cache

_FUNCTION = """
target triple = "{triple}"
@qkv_none = external global i8
declare void @Py_IncRef(ptr)
declare ptr @memset(ptr, i32, i64)
define ptr @qkv_kernel(ptr %self, ptr %arguments, i64 %count) {{
  %memory = alloca [64 x i8]
  %same = call ptr @memset(ptr %memory, i32 0, i64 %count)
  call void @Py_IncRef(ptr @qkv_none)
  ret ptr @qkv_none
}}
"""
"""A function that does nothing, and needs what kernels need: Python, what the linker is told, and the C library."""


def why_unavailable() -> str | None:
    """Return why compiled kernels cannot run here, or None.

    Numba is imported to find out, unless kernels for this processor are on disk: so it has run here.
    """
    try:
        from qkv.compiled import kernels  # noqa: F401

        _expect_compiler()
    except (ImportError, OSError, RuntimeError) as error:
        return f"Numba does not run here: {error}"
    try:
        _expect_linker()
    except (OSError, RuntimeError) as error:
        return f"compiled kernels cannot be linked here: {error}"
    return None


@lru_cache  # not of errors
def _expect_compiler() -> None:
    from qkv.compiled import cache
    from qkv.compiled.target import compiles

    if compiles() and not cache.holds_code():
        from qkv.compiled import compiler  # noqa: F401


@lru_cache  # not of errors
def _expect_linker() -> None:
    """Load and call one small function, as kernels are, because a system may let no program write machine code."""
    from llvmlite import binding

    from qkv.compiled import linking, target

    if target.compiles():
        machine = target.machine()
        module = binding.parse_assembly(_FUNCTION.format(triple=target.TRIPLE))
        linking.load(machine.emit_object(module), "qkv.compiled.available")()


# As torch.compiler.assume_constant_result does, but without importing PyTorch's compiler, which takes 1.4 s.
why_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_no_register_kernels() -> str | None:
    """Return why kernels written as LLVM instructions, which have no form in plain Python, cannot run here, or None."""
    reason = why_unavailable()
    if reason is not None:
        return reason
    from qkv.compiled.target import compiles

    return None if compiles() else "Numba does not compile here"


why_no_register_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
