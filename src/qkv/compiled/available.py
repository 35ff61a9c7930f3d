"""Whether compiled kernels can run here."""


def why_unavailable() -> str | None:
    """Return why compiled kernels cannot run here, or None."""
    try:
        from qkv.compiled import kernels  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return f"Numba does not run here: {error}"
    return None


# As torch.compiler.assume_constant_result does, but without importing PyTorch's compiler, which takes 1.4 s.
why_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_register_kernels() -> bool:
    """True if kernels written as LLVM instructions can run too, which have no form in plain Python."""
    if why_unavailable() is not None:
        return False
    from qkv.compiled.kernels import compiles

    return compiles()


has_register_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
