"""One sequence over several processes: `shard` divides it, exactly, for any mechanism."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.distributed.layout import Layout
    from qkv.distributed.sharding import Shard, ShardPlan, attention, explain, shard
    from qkv.training.processes import LostProcessError

__all__ = ["Layout", "LostProcessError", "Shard", "ShardPlan", "attention", "explain", "shard"]

__getattr__ = lazy(
    __name__,
    {
        "Layout": "qkv.distributed.layout",
        "LostProcessError": "qkv.training.processes",
        "Shard": "qkv.distributed.sharding",
        "ShardPlan": "qkv.distributed.sharding",
        "attention": "qkv.distributed.sharding",
        "explain": "qkv.distributed.sharding",
        "shard": "qkv.distributed.sharding",
    },
)


def __dir__() -> list[str]:
    return __all__
