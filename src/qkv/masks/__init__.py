"""Masks: which keys a query may see. `True` means may attend; combine with `&`, `|` and `~`."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.masks.base import Mask as Mask
    from qkv.masks.lower import matrix as matrix
    from qkv.masks.patterns import causal as causal
    from qkv.masks.patterns import dense as dense
    from qkv.masks.patterns import documents as documents
    from qkv.masks.patterns import lengths as lengths
    from qkv.masks.patterns import span as span
    from qkv.masks.patterns import window as window


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.masks.base": "Mask",
        "qkv.masks.lower": "matrix",
        "qkv.masks.patterns": "causal dense documents lengths span window",
    },
)
