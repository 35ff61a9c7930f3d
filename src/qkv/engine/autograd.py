"""What every derivative of ours says of its own derivative."""

from qkv.errors import UnsupportedError, error_message


def second_derivative(backend: str) -> UnsupportedError:
    """The error for a derivative of a derivative."""
    hint = (
        'Pass backend="reference", which PyTorch differentiates any number of times; '
        'in a layer set layer.attention.backend = "reference".'
    )
    return UnsupportedError(
        error_message("backend", "first derivatives", f"a second derivative through {backend}", hint)
    )
