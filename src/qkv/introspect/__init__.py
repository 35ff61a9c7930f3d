"""Inspecting the weights of any mechanism without storing the matrix."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.introspect.attention_rollout import rollout as rollout
    from qkv.introspect.lazy_map import AttentionMap as AttentionMap
    from qkv.introspect.lazy_map import attention_map as attention_map
    from qkv.introspect.statistics import Statistics as Statistics


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.introspect.lazy_map": "AttentionMap attention_map",
        "qkv.introspect.attention_rollout": "rollout",
        "qkv.introspect.statistics": "Statistics",
    },
)
