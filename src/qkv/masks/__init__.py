"""Masks: which keys a query may see. `True` means may attend; combine with `&`, `|` and `~`."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.masks.base import Mask
    from qkv.masks.lower import matrix
    from qkv.masks.patterns import causal, dense, documents, lengths, span, window

__all__ = ["Mask", "causal", "dense", "documents", "lengths", "matrix", "span", "window"]

__getattr__ = lazy(
    __name__,
    {
        "Mask": "qkv.masks.base",
        "causal": "qkv.masks.patterns",
        "dense": "qkv.masks.patterns",
        "documents": "qkv.masks.patterns",
        "lengths": "qkv.masks.patterns",
        "matrix": "qkv.masks.lower",
        "span": "qkv.masks.patterns",
        "window": "qkv.masks.patterns",
    },
)


def __dir__() -> list[str]:
    return __all__
