"""Several processes: `shard` divides a sequence, exactly, for any mechanism; `fully_shard` parameters, by FSDP2."""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.distributed.fsdp import fully_shard as fully_shard
    from qkv.distributed.layout import Layout as Layout
    from qkv.distributed.sharding import Shard as Shard
    from qkv.distributed.sharding import ShardPlan as ShardPlan
    from qkv.distributed.sharding import explain as explain
    from qkv.distributed.sharding import shard as shard
    from qkv.training.processes import LostProcessError as LostProcessError


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.distributed.fsdp": "fully_shard",
        "qkv.distributed.layout": "Layout",
        "qkv.distributed.sharding": "Shard ShardPlan explain shard",
        "qkv.training.processes": "LostProcessError",
    },
)
