"""Several processes: `shard` divides a sequence, exactly, for any mechanism; `fully_shard` parameters, by FSDP2."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.distributed.fsdp import fully_shard
    from qkv.distributed.layout import Layout
    from qkv.distributed.sharding import Shard, ShardPlan, attention, explain, shard
    from qkv.training.processes import LostProcessError

__all__ = ["Layout", "LostProcessError", "Shard", "ShardPlan", "attention", "explain", "fully_shard", "shard"]

__getattr__ = lazy(
    __name__,
    {
        "Layout": "qkv.distributed.layout",
        "LostProcessError": "qkv.training.processes",
        "Shard": "qkv.distributed.sharding",
        "ShardPlan": "qkv.distributed.sharding",
        "attention": "qkv.distributed.sharding",
        "explain": "qkv.distributed.sharding",
        "fully_shard": "qkv.distributed.fsdp",
        "shard": "qkv.distributed.sharding",
    },
)


def __dir__() -> list[str]:
    return __all__
