"""Whether compiled kernels can run here."""


def trouble() -> str | None:
    """Why the kernels cannot run here, or None."""
    try:
        from qkv.compiled import kernels  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return f"Numba does not run here: {error}"
    return None


# What torch.compiler.assume_constant_result does, without the import of the whole compiler: 1.4 s of every start.
trouble._dynamo_marked_constant = True  # type: ignore[attr-defined]


def registers() -> bool:
    """Whether kernels written in LLVM's instructions run too: where Numba compiles, and not where it is told not to."""
    if trouble() is not None:
        return False
    from qkv.compiled.kernels import compiles

    return compiles()


registers._dynamo_marked_constant = True  # type: ignore[attr-defined]
