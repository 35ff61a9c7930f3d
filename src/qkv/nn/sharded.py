"""The place where `qkv.distributed` divides the sequence of a model among processes, without a change of the model."""

from contextvars import ContextVar
from typing import Any, Protocol

from torch import Tensor


class Shard(Protocol):
    """One process of those that share a sequence; `qkv.distributed` makes it."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any], backend: str, also: str | None
    ) -> Any:
        """Compute what `nn.Attention` computes, of this process's rows over the keys of all processes."""

    def runs(self, count: int, x: Tensor) -> tuple[range, ...]:
        """Return the positions of this process's rows in the whole sequence, as runs.

        Args:
            count: how many rows this process has.
            x: a tensor on the device of the rows.
        """


SHARD: ContextVar[Shard | None] = ContextVar("shard", default=None)
"""The shard of the models that run in this context; None where one process has the whole sequence."""
