"""Whether compiled kernels can run here."""


def why_unavailable() -> str | None:
    """Return why compiled kernels cannot run here, or None.

    Raises:
        CompilationError: their machine code is older than the source.
    """
    from qkv.compiled import library

    return library.why_unavailable()


# As torch.compiler.assume_constant_result does, but without importing PyTorch's compiler, which takes 1.4 s.
why_unavailable._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_no_register_kernels() -> str | None:
    """Return why kernels written as LLVM instructions, which have no form in plain Python, cannot run here, or None."""
    from qkv.compiled.target import CHOICE

    return "kernels run as plain Python here" if CHOICE.python else why_unavailable()


why_no_register_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
