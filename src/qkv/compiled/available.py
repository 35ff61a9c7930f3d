"""Whether compiled kernels can run here."""

from functools import lru_cache


def why_unavailable() -> str | None:
    """Return why compiled kernels cannot run here, or None.

    Numba is imported to find out, unless kernels for this processor are on disk: so it has run here.
    """
    try:
        from qkv.compiled import kernels  # noqa: F401

        _expect_compiler()
    except (ImportError, OSError, RuntimeError) as error:
        return f"Numba does not run here: {error}"
    return None


@lru_cache  # not of errors
def _expect_compiler() -> None:
    from qkv.compiled import cache
    from qkv.compiled.target import compiles

    if compiles() and not cache.holds_code():
        from qkv.compiled import compiler  # noqa: F401


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
