"""Inspecting the weights of any mechanism without storing the matrix."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.introspect.lazy_map import AttentionMap, attention_map
    from qkv.introspect.rollout import rollout
    from qkv.introspect.statistics import Statistics

__all__ = ["AttentionMap", "Statistics", "attention_map", "rollout"]

__getattr__ = lazy(
    __name__,
    {
        "AttentionMap": "qkv.introspect.lazy_map",
        "Statistics": "qkv.introspect.statistics",
        "attention_map": "qkv.introspect.lazy_map",
        "rollout": "qkv.introspect.rollout",
    },
)


def __dir__() -> list[str]:
    return __all__
