"""The place where `qkv.distributed` divides the sequence of a model among processes, without a change of the model."""

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from qkv._lazy import imported_later
from qkv.errors import UnsupportedError
from qkv.values.execution import PLAIN


class Shard(Protocol):
    """One process of those that share a sequence; `qkv.distributed` makes it."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, arguments: Any, backend: str, also: str | None) -> Any:
        """Compute what `qkv.attention` and its siblings compute, of this process's rows over the keys of all.

        Args:
            query, key, value: what this process has.
            arguments: the others, a `qkv.engine.describe.Arguments`.
            backend: by name.
            also: "weights" or "state" to return a pair.
        """

    def runs(self, count: int, x: Tensor) -> tuple[range, ...]:
        """Return the positions of this process's rows in the whole sequence, as runs.

        Args:
            count: how many rows this process has.
            x: a tensor on the device of the rows.
        """


class SequenceShard(Shard, Protocol):
    """One process of those that `qkv.distributed.shard` gives a part of the sequence."""

    def join(self, x: Tensor, dim: int = -2) -> Tensor:
        """Return the whole tensor from the parts of all processes, detached; every process must call this.

        Args:
            x: the part of this process.
            dim: the dimension of the sequence.
        """

    def map_inputs(self, query: Tensor, key: Tensor, arguments: Any) -> tuple[Tensor, Tensor, Any]:
        """Return the inputs of the attention map of this process's rows; every process must call this.

        Args:
            query, key: what this process has.
            arguments: the others, a `qkv.engine.describe.Arguments`.
        """

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes; every process must call this."""


ACTIVE: list[SequenceShard] = []
"""The shards that contexts have opened, of which the last one serves; like their group, they belong to the process.

Threads that PyTorch starts for a backward pass, in which a model may run again, must see them too.
"""


_items = imported_later("qkv.distributed.dtensor", "Items")  # of a layer above


def computing(*tensors: Tensor) -> Shard | None:
    """Return what computes a call of DTensors; None if no tensor is one.

    Example:
        >>> computing(torch.zeros(2)) is None
        True
    """
    if all(type(x) in PLAIN for x in tensors) or torch.compiler.is_compiling():
        return None
    dtensors = sys.modules.get("torch.distributed.tensor")  # where none is made, none is imported
    if dtensors is None or not any(isinstance(x, dtensors.DTensor) for x in tensors):
        return None
    shard: Shard = _items()()
    return shard


def with_positions(x: Tensor, start: int | Tensor, function: Callable[[Tensor, int | Tensor], Tensor]) -> Tensor:
    """Apply a function of rows and the position of the first one to rows (..., N, M), which a shard may count globally.

    Args:
        x: (..., N, M).
        start: the position of the first row among those of this process.
        function: maps rows that follow one another, and the position of the first, to as many rows.

    Raises:
        UnsupportedError: in a shard, the rows do not begin at 0: they follow a cache, or padding.

    Example:
        >>> with_positions(torch.zeros(2, 1), 3, lambda x, start: x + start).tolist()
        [[3.0], [3.0]]
    """
    if not ACTIVE:
        return function(x, start)
    expect_whole("start", isinstance(start, int) and start == 0, "positions after a cache or padding")
    results, before = [x[..., :0, :]], 0
    for run in ACTIVE[-1].runs(x.shape[-2], x):
        results.append(function(x[..., before : before + len(run), :], run.start))
        before += len(run)
    return torch.cat(results, -2)


def is_sharded() -> bool:
    """Return whether this process has only a part of the sequence.

    Example:
        >>> is_sharded()
        False
    """
    return bool(ACTIVE)


def expect_whole(argument: str, simple: bool, got: str) -> None:
    """Check that nothing speaks of the positions of one process in a shard, where they are another one's too.

    Args:
        argument: the argument that would.
        simple: whether it does not.
        got: what it is.

    Raises:
        UnsupportedError: it does, in a shard.

    Example:
        >>> expect_whole("cache", False, "a cache")
    """
    if not simple and is_sharded():
        hint = "Masks of the whole sequence hide padding; decode in one process, outside of the shard."
        raise UnsupportedError(argument, "neither cache nor padding in a shard", got, hint)
