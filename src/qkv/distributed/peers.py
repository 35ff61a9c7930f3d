"""The processes of a group, and what they send each other."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from qkv.errors import ConfigError, TrainingError
from qkv.shapes import Shape
from qkv.training.processes import LostProcessError, first_line

Tensors = Sequence[Tensor]
_NUMBERS = 16
"""How many numbers processes exchange before a call."""


@final
class Peers:
    """This process and the others of a group of `torch.distributed`.

    Args:
        group: the group; None for the default one.

    Raises:
        ConfigError: `torch.distributed` is not initialized, or this process is not in the group.

    Attributes:
        rank: the number of this process in the group.
        size: how many processes the group has.
        sent: bytes of queries, keys, values and gradients that this process has sent so far.
    """

    def __init__(self, group: "dist.ProcessGroup | None" = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            hint = 'Call torch.distributed.init_process_group("gloo") first; torchrun sets its environment.'
            raise ConfigError("group", "a process that belongs to a group", "none", hint)
        rank = dist.get_rank(group)
        if rank < 0:
            hint = "Pass the group that torch.distributed.new_group returned in its own processes."
            raise ConfigError("group", "a group of this process", "one without it", hint)
        self.group, self.rank, self.size = group, rank, dist.get_world_size(group)
        self.sent = 0

    def agreed(
        self, call: str, numbers: Sequence[int], facts: Mapping[str, str], device: torch.device
    ) -> list[list[int]]:
        """Return the numbers of each process, after a check that all make the same call.

        Args:
            call: what is called.
            numbers: as many in every process that makes this call.
            facts: texts by name, which must be the same everywhere.
            device: where the backend of the group takes tensors.

        Raises:
            TrainingError: a process makes another call, or has another fact; raised in every process.
        """
        if self.size == 1:
            return [list(numbers)]
        facts = {"call": call, **facts}
        digests = [int.from_bytes(sha256(fact.encode()).digest()[:8], "little", signed=True) for fact in facts.values()]
        # As many numbers for every call: processes that make different ones must find out.
        row = [*digests, *numbers]
        own = torch.tensor([*row, *[0] * (_NUMBERS - len(row))], dtype=torch.int64, device=device)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        with self._connected():
            dist.all_gather(gathered, own, group=self.group)
        rows = [other.tolist() for other in gathered]
        for index, (name, fact) in enumerate(facts.items()):
            different = [rank for rank, row in enumerate(rows) if row[index] != rows[0][index]]
            if different:
                got = f"another in process {', '.join(map(str, different))} than in 0 (here: {fact})"
                hint = "Only the number of rows of query, key and value may differ between processes."
                raise TrainingError("shard", f"the same {name} in all {self.size} processes", got, hint)
        return [row[len(digests) :][: len(numbers)] for row in rows]

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all processes, in every one."""
        whole = x.clone()
        if self.size > 1:
            with self._connected():
                dist.all_reduce(whole, group=self.group)
        return whole

    def start(self, sends: Mapping[int, Tensors], receives: Mapping[int, Tensors], tag: int = 0) -> Callable[[], None]:
        """Begin to send tensors to some processes and to receive them from some; return what waits for the end.

        Args:
            sends, receives: contiguous tensors by process, of shapes that both sides know.
            tag: keeps messages of two kinds apart.
        """
        pairs = [(dist.isend, sends), (dist.irecv, receives)]
        operations = [
            dist.P2POp(function, tensor.detach().view(-1).view(torch.uint8), self._global(rank), self.group, tag)
            for function, by_rank in pairs
            for rank, tensors in sorted(by_rank.items())
            for tensor in tensors
            if tensor.numel()
        ]
        self.sent += sum(tensor.nbytes for tensors in sends.values() for tensor in tensors)
        with self._connected():
            works: list[Any] = dist.batch_isend_irecv(operations) if operations else []

        def wait() -> None:
            with self._connected():
                for work in works:
                    work.wait()
            operations.clear()

        return wait

    @contextmanager
    def circulated(self, own: Tensors, shapes: Sequence[Sequence[Shape]]) -> Iterator[Iterator[tuple[int, Tensors]]]:
        """Iterate over the tensors of each process, those of this one first, while the next ones are under way.

        Each process sends what it holds to the process after it, as many times as there are others.

        Args:
            own: the contiguous tensors of this process.
            shapes: those of each process; dtypes are the same.
        """
        with closing(self._circulate(own, shapes)) as parts:
            yield parts

    def _circulate(self, own: Tensors, shapes: Sequence[Sequence[Shape]]) -> Generator[tuple[int, Tensors]]:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        held = own
        for hop in range(self.size - 1):
            owner = (self.rank - hop) % self.size
            arriving = shapes[(owner - 1) % self.size]
            incoming = [x.new_empty(shape) for x, shape in zip(own, arriving, strict=True)]
            wait = self.start({after: held}, {before: incoming})
            try:
                yield owner, held
            finally:  # also after an error: memory that is under way must not be freed
                wait()
            held = incoming
        yield after, held

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # how PyTorch reports a closed connection
            got = f"one that ended or is out of reach ({first_line(error)})"
            hint = "The process that ended says why; start all of them again."
            raise LostProcessError("processes", f"all {self.size} processes to go on", got, hint) from None
