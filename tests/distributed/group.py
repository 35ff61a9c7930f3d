"""Groups of processes that stay for a session: each call runs a function of `tests.distributed.work` in all of them."""

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 240
"""Seconds for which an answer is waited for, so that a deadlock fails the test and does not hang it."""


class Group:
    """Processes with one thread each, connected by Gloo."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: str, *arguments: Any) -> list[Any]:
        """What the function returns in each process; an exception of one is raised here."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [self._receive(rank) for rank in range(self.size)]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _receive(self, rank: int) -> Any:
        assert self.pipes[rank].poll(PATIENCE), f"process {rank} of {self.size} does not answer"
        return self.pipes[rank].recv()

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()


@contextmanager
def groups() -> Iterator[dict[int, Group]]:
    """Groups by their size, started when they are asked for."""

    class Lazy(dict[int, Group]):
        def __missing__(self, size: int) -> Group:
            self[size] = Group(size)
            return self[size]

    lazy = Lazy()
    try:
        yield lazy
    finally:
        for group in lazy.values():
            group.close()


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    from tests.distributed import work

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = getattr(work, name)(*arguments)
        except Exception as error:
            answer = error
        try:
            pipe.send(answer)
        except Exception as error:  # an exception that cannot be pickled
            pipe.send(RuntimeError(f"{type(answer).__name__}: {answer} ({error})"))
    dist.destroy_process_group()
