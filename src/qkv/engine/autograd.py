"""The error that our backward passes raise when they are differentiated again."""

from qkv.errors import UnsupportedError, error_message


def second_derivative(backend: str) -> UnsupportedError:
    """Return the error for a second derivative through a backend."""
    hint = (
        'Pass backend="reference", which PyTorch differentiates any number of times; '
        'in a layer set layer.attention.backend = "reference".'
    )
    return UnsupportedError(
        error_message("backend", "first derivatives", f"a second derivative through {backend}", hint)
    )
