"""The processes of one training, and what they exchange, so that any number of them gives the same bits.

An update has W parts (its batches, `accumulate`, each cut into `parts`), of which each process computes some in a row.
Gradients are summed in the order of one binary tree over the W parts, for any number of processes: a process sums the
subtrees of its own, and sends each segment of the vector to the process that sums that segment for all. Process 0
leads: it alone has the run folder, and sends orders to the others.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from qkv.errors import (
    ConfigError,
    OutOfMemoryError,
    QkvError,
    TrainingError,
    brief,
    from_json_value,
    out_of_memory_text,
    setting,
    to_json_value,
)
from qkv.heartbeat import Heartbeat
from qkv.strict_json import parse_json
from qkv.training_settings import Settings

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_ARRIVAL = timedelta(minutes=10)
"""How long a process waits for all to start."""
_CONNECTING = timedelta(seconds=20)
"""How long it then tries to connect to them; Gloo waits five times as long for connections from others."""
PATIENCE = timedelta(minutes=30)
"""How long a process waits for another. A process that ends is noticed at once, an unreachable machine after this."""
ALIVE_EVERY = 60.0
"""Seconds after which the first process tells the others that it is alive, while it works alone."""
ARRIVED = "qkv.here."
"""Prefix of the key that a process stores once it has started."""
_FAILED = "qkv.failed"
_EXCERPT = 200
"""Characters of PyTorch's message that an error quotes."""
_DIGITS = 10
"""Digits of the largest number of a process."""


class LostProcessError(TrainingError):
    """Another process of the training ended."""


@final
@dataclass(frozen=True, eq=False)
class Node:
    """The sum of the vectors of 2^level parts.

    Args:
        start: number of the first part, a multiple of 2^level.
        level: height of the subtree; 0 for one part.
        sums: the vectors; changed in place by further sums.
    """

    start: int
    level: int
    sums: list[Tensor]


@final
class Tree:
    """Adds vectors in the order of a binary tree over numbered parts; it holds at most one sum per level of the tree.

    Example:
        >>> tree = Tree()
        >>> for number in range(6):
        ...     tree.add(Node(number, 0, [torch.tensor([float(number)])]))
        >>> [(node.start, node.level) for node in tree.nodes], tree.total()
        ([(0, 2), (4, 1)], [tensor([15.])])
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Add the next subtree, and join subtrees that have the same parent."""
        while self.nodes and self.nodes[-1].level == node.level and not self.nodes[-1].start >> node.level & 1:
            sibling = self.nodes[-1]
            if sibling.start + (1 << sibling.level) != node.start:
                break
            self.nodes.pop()
            node = Node(sibling.start, sibling.level + 1, _added(sibling.sums, node.sums))
        self.nodes.append(node)

    def total(self) -> list[Tensor]:
        """Return the sum of all parts; those beyond the largest complete tree are joined from the right."""
        *nodes, last = self.nodes
        sums = last.sums
        for node in reversed(nodes):
            sums = _added(node.sums, sums)
        return sums


def _added(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    return [a.add_(b) for a, b in zip(left, right, strict=True)]


@final
class Processes:
    """One process of a training, and its connections to the others.

    Args:
        rank: the number of this process; 0 leads.
        size: how many there are.
        store: a key-value store that they share; None for one process.
        address: of this machine, by which the others reach this process; None for PyTorch's choice.

    Example:
        >>> alone = Processes()
        >>> alone.part(4), alone.leads
        (range(0, 4), True)
    """

    def __init__(
        self, rank: int = 0, size: int = 1, store: "Store | None" = None, address: str | None = "127.0.0.1"
    ) -> None:
        self.rank, self.size, self._store, self._address = rank, size, store, address
        self._group: Any = None  # a ProcessGroupGloo; no frame may hold it, or a traceback would keep its threads

    @property
    def leads(self) -> bool:
        """Whether this process owns the run folder, the log and the screen."""
        return self.rank == 0

    def part(self, count: int, rank: int | None = None) -> range:
        """Return which of an update's parts a process computes; this one by default."""
        rank = self.rank if rank is None else rank
        return range(rank * count // self.size, (rank + 1) * count // self.size)

    def announce(self, *order: int) -> None:
        """Tell the others what comes next; called by process 0.

        Args:
            order: as many numbers as `receive` expects.
        """
        if self.size > 1:
            self._broadcast(torch.tensor(order, dtype=torch.int64, device="cpu"))

    def receive(self, count: int) -> list[int]:
        """Wait until process 0 announces what comes next; called by the others."""
        order = torch.zeros(count, dtype=torch.int64, device="cpu")
        self._broadcast(order)
        return order.tolist()

    @contextmanager
    def kept_waiting(self, *order: int) -> Iterator[None]:
        """Keep the others waiting while process 0 works alone, such as in a validation, by an order from time to time.

        Args:
            order: what `receive` gives them, for which they do nothing.
        """
        if self.size == 1:
            yield
            return

        def tell() -> None:
            with suppress(QkvError):  # the next order meets the same error
                self.announce(*order)

        heartbeat = Heartbeat(tell, ALIVE_EVERY)
        try:
            yield
        finally:
            heartbeat.close()

    def expect_same(self, facts: Mapping[str, str]) -> None:
        """Compare facts between all processes, before anything is sent whose size depends on them.

        Args:
            facts: any texts by name, the same names everywhere.

        Raises:
            TrainingError: a process has another one; the message names both. It is raised in every process.
        """
        if self.size == 1:
            return
        for name, fact in facts.items():
            digest = torch.frombuffer(bytearray(sha256(fact.encode()).digest()), dtype=torch.uint8)
            digests = self._all_gather(digest)
            different = [rank for rank in range(self.size) if not torch.equal(digests[rank], digests[0])]
            if different:
                hint = "Give every process the same command, data and number of threads, on machines of one kind."
                got = f"another one in process {', '.join(map(str, different))}"
                raise TrainingError("processes", f"the same {name} in all of them", got, hint)

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors of process 0 into those of the others, which have the same sizes."""
        if self.size > 1:
            for tensor in tensors:
                copied = tensor.detach().contiguous()
                self._broadcast(copied.view(-1).view(torch.uint8))  # Gloo does not know every dtype
                if self.rank:
                    tensor.detach().copy_(copied)

    def copy_text(self, text: str = "") -> str:
        """Return a text of process 0."""
        if self.size == 1:
            return text
        data = bytearray(text.encode())
        self.copy([size := torch.tensor(len(data), device="cpu")])
        body = (
            torch.frombuffer(data, dtype=torch.uint8)
            if self.leads
            else torch.empty(int(size), dtype=torch.uint8, device="cpu")
        )
        self.copy([body])
        return body.numpy().tobytes().decode()

    def gather(self, rows: Sequence[Sequence[float]], count: int) -> list[list[float]]:
        """Return the rows of all of an update's parts, from those of this process.

        Args:
            rows: one for each part, all of one length.
            count: how many parts an update has; at least one for each process.
        """
        if self.size == 1:
            return [list(row) for row in rows]
        per_process = -(-count // self.size)
        padded = torch.zeros(per_process, len(rows[0]), dtype=torch.float64, device="cpu")
        padded[: len(rows)] = torch.tensor(rows, dtype=torch.float64, device="cpu")
        parts = self._all_gather(padded)
        return [row for rank, part in enumerate(parts) for row in part[: len(self.part(count, rank))].tolist()]

    def total(self, tree: Tree, count: int) -> list[Tensor]:
        """Return the sums of all of an update's parts, the same bits in every process.

        Args:
            tree: the sums of this process's parts.
            count: how many parts an update has.
        """
        if self.size == 1:
            return tree.total()
        shapes = [self._shapes(rank, count) for rank in range(self.size)]
        vectors = range(len(tree.nodes[0].sums))
        return [self._total([node.sums[index] for node in tree.nodes], shapes) for index in vectors]

    def _total(self, vectors: list[Tensor], shapes: Sequence[Sequence[Node]]) -> Tensor:
        """Sum one vector: each process sums one segment of it for all."""
        length, dtype = vectors[0].numel(), vectors[0].dtype
        width = -(-length // self.size)
        padded = torch.zeros(len(vectors), self.size * width, dtype=dtype, device="cpu")
        for row, vector in zip(padded, vectors, strict=True):
            row[:length] = vector
        outgoing = [segment.contiguous() for segment in padded.view(len(vectors), self.size, width).unbind(1)]
        incoming = [torch.empty(len(nodes), width, dtype=dtype, device="cpu") for nodes in shapes]
        incoming[self.rank] = outgoing[self.rank]
        self._exchange(outgoing, incoming)
        tree = Tree()
        for nodes, segments in zip(shapes, incoming, strict=True):
            for node, segment in zip(nodes, segments, strict=True):
                tree.add(Node(node.start, node.level, [segment]))
        (sums,) = tree.total()
        return torch.cat(self._all_gather(sums.contiguous()))[:length]

    def _shapes(self, rank: int, count: int) -> list[Node]:
        """Return the subtrees that a process sums, without their sums."""
        tree = Tree()
        for index in self.part(count, rank):
            tree.add(Node(index, 0, []))
        return tree.nodes

    def _broadcast(self, tensor: Tensor) -> None:
        """Overwrite a contiguous tensor by that of process 0."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = 0, 0, PATIENCE
        with self._connected():
            self._group.broadcast([tensor], options).wait()

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the contiguous tensors of all processes, which have one size."""
        from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]  # not exported

        options = AllgatherOptions()
        options.timeout = PATIENCE
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._connected():
            self._group.allgather([tensors], [tensor], options).wait()
        return tensors

    def _exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        """Send each other process a contiguous tensor, and receive one from it."""
        transfers: list[Any] = []
        with self._connected():
            try:
                for rank in range(self.size):
                    if rank != self.rank:
                        transfers.append(self._group.recv([incoming[rank]], rank, 0))
                        transfers.append(self._group.send([outgoing[rank]], rank, 0))
                while transfers:
                    transfers.pop().wait(PATIENCE)
            finally:
                transfers.clear()

    def connect(self) -> None:
        """Connect to the others once all have started.

        The connections belong to this object alone. PyTorch's default group would be kept until Python ends by any
        module that is imported meanwhile and has it as the default of an argument, as `torch.distributed.nn` does;
        its threads, which take Python's lock (the GIL), would then abort a process that is about to end.

        Raises:
            TrainingError: one has not started in time, or cannot be reached.
        """
        from torch.distributed import ProcessGroupGloo

        assert self._store is not None
        try:
            self._store.set(f"{ARRIVED}{self.rank}", "")
            self._store.wait([f"{ARRIVED}{rank}" for rank in range(self.size)], _ARRIVAL)
            self._group = ProcessGroupGloo(self._store, self.rank, self.size, _transport(self._address))
        except RuntimeError as error:
            hint = "On several machines, set GLOO_SOCKET_IFNAME to the interface by which each reaches the others."
            got = f"process {self.rank}, which cannot reach another one ({first_line(error)})"
            lost = TrainingError("processes", f"{self.size} processes that reach each other", got, hint)
            failure = self.failure()  # one that has connected may fail while this one still connects
            if failure is None:
                with suppress(RuntimeError):  # the process that leads may be the one out of reach
                    self._store_failure(lost)
            raise failure or lost from None

    def leave(self) -> None:
        """Close the connections, and wait until their threads have ended."""
        self._group = None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # how PyTorch reports a closed connection
            hint = "Run the same command again to resume from the newest checkpoint."
            got = f"one that ended or is out of reach ({first_line(error)})"
            lost = LostProcessError("processes", f"all {self.size} processes to go on", got, hint)
            raise self.failure() or lost from None

    def fail(self, error: QkvError) -> None:
        """Store an error for process 0, which reports it."""
        if self._store is not None and self.rank and not isinstance(error, LostProcessError):
            self._store_failure(error)

    def _store_failure(self, error: QkvError) -> None:
        assert self._store is not None
        self._store.set(_FAILED, json.dumps(to_json_value(error)))
        self._store.get(_FAILED)  # read it back: it must be stored before process 0 notices the closed connection

    def failure(self) -> QkvError | None:
        """Return the error that another process stored."""
        try:
            if self._store is None or not self._store.check([_FAILED]):
                return None
            failure = parse_json(self._store.get(_FAILED))
        except RuntimeError:  # process 0 has ended, and the store with it
            return None
        return from_json_value(failure)


def _transport(address: str | None) -> Any:
    """Return Gloo's options for connections from an address, or the default. Keep no reference: it holds a thread."""
    from torch.distributed import ProcessGroupGloo

    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not among its types
    options._timeout = _CONNECTING
    named, default = ProcessGroupGloo.create_device, ProcessGroupGloo.create_default_device
    options._devices = [default() if address is None else named(hostname=address)]
    return options


def first_line(error: Exception) -> str:
    """Return the first line of an error of PyTorch, for a message.

    Example:
        >>> first_line(RuntimeError("connection closed\\nframes of C++"))
        'connection closed'
    """
    return str(error).split("\n")[0][:_EXCERPT]


_ALONE = Processes()
_CURRENT: ContextVar[Processes] = ContextVar("processes", default=_ALONE)


def current() -> Processes:
    """Return the processes of the trainings of this context; by default this one alone."""
    return _CURRENT.get()


def expect_enough(processes: Processes, settings: Settings) -> None:
    """Check that an update has at least one part for each process.

    Raises:
        ConfigError: there are fewer.

    Example:
        >>> expect_enough(Processes(), Settings())
    """
    if processes.size > settings.parts_of_update:
        parts = f"at most {settings.parts_of_update}, the number of parts of an update ("
        expected = parts + setting("accumulate") + " times " + setting("parts") + ")"
        more = -(-processes.size // settings.accumulate)
        hint = "Use fewer, or begin another run with " + setting("parts", more) + "."
        raise ConfigError("processes", expected, f"{processes.size}", hint)


@contextmanager
def connected(processes: Processes) -> Iterator[None]:
    """Connect this process to the others, for every training inside. An error inside is left for process 0.

    Raises:
        LostProcessError: another process has ended.
    """
    if processes.size == 1:
        yield
        return
    processes.connect()
    token = _CURRENT.set(processes)
    try:
        yield
    except Exception as error:
        processes.fail(_typed(error, processes))
        raise
    finally:
        _CURRENT.reset(token)
        processes.leave()


def _typed(error: Exception, processes: Processes) -> QkvError:
    """Return the error that process 0 reports about another process, which also prints it unless it is typed."""
    if isinstance(error, QkvError):
        return error
    if (reason := out_of_memory_text(error)) is not None:
        hint = "Use fewer processes, or smaller batches: each process has the model and the data."
        return OutOfMemoryError("memory", f"room for process {processes.rank}", reason, hint)
    got = f"{type(error).__name__} in process {processes.rank}: {brief(str(error))}"
    hint = "This is a bug in qkv or one of its libraries; standard error has its traceback."
    return TrainingError("processes", f"all {processes.size} processes to go on", got, hint)


def in_environment(variables: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return rank and number of the processes that `torchrun` started; None if this process was started otherwise.

    Raises:
        ConfigError: the variables do not hold such numbers.

    Example:
        >>> in_environment({"RANK": "1", "WORLD_SIZE": "2"}), in_environment({})
        ((1, 2), None)
    """
    texts = [variables.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not all(texts):
        return None
    numbers = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < _DIGITS]
    if len(numbers) < len(texts) or numbers[0] >= numbers[1]:
        got = f"RANK={brief(texts[0])} and WORLD_SIZE={brief(texts[1])}"
        hint = "Start the command with torchrun, or unset both."
        raise ConfigError("environment", "the number of a process and how many there are", got, hint)
    return numbers[0], numbers[1]


def part_seed(seed: int, step: int, part: int) -> int:
    """Return the seed of all random numbers of one part of an update, for any number of processes.

    Args:
        seed: the run's.
        step: number of the update.
        part: number of the part in it; the number of parts itself for what comes after the update.

    Example:
        >>> part_seed(0, 1, 0) != part_seed(0, 1, 1), part_seed(0, 1, 0) < 2**63
        (True, True)
    """
    return int.from_bytes(sha256(f"qkv:{seed}:{step}:{part}".encode()).digest()[:8], "little") >> 1


def weights_digest(tensors: Mapping[str, Any]) -> str:
    """Return a sha256 over the bits of tensors."""
    total = sha256()
    for tensor in tensors.values():
        total.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return total.hexdigest()
