"""Whether compiled kernels can run here."""


def why_unavailable() -> str | None:
    """Why the kernels cannot run here, or None."""
    try:
        from qkv.compiled import kernels  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return f"Numba does not run here: {error}"
    return None


# What torch.compiler.assume_constant_result does, without the import of the whole compiler: 1.4 s of every start.
why_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_register_kernels() -> bool:
    """Whether kernels written in LLVM's instructions run too: where Numba compiles, and not where it is told not to."""
    if why_unavailable() is not None:
        return False
    from qkv.compiled.kernels import compiles

    return compiles()


has_register_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
