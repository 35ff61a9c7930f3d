"""Looking at the weights of any mechanism without holding the matrix."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.introspect.lazy_map import AttentionMap, attention_map

__all__ = ["AttentionMap", "attention_map"]

__getattr__ = lazy(__name__, {"AttentionMap": "qkv.introspect.lazy_map", "attention_map": "qkv.introspect.lazy_map"})


def __dir__() -> list[str]:
    return __all__
