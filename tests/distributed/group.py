"""Processes that stay for a session: each call runs a function of `tests.distributed.work` in some of them."""

import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from qkv.distributed import LostProcessError

PATIENCE = 120
"""Seconds for which an answer is waited for, so that a deadlock fails the test and does not hang it."""


class Processes:
    """Processes with one thread each, connected by Gloo; new ones after a failure, which leaves some waiting."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []

    def run(self, count: int, function: str, *arguments: Any) -> list[Any]:
        """What the function returns in each of the first processes, None where one ends; raises their exceptions."""
        if not self.processes:
            self._start()
        for pipe in self.pipes[:count]:
            pipe.send((count, function, arguments))
        answers: dict[int, Any] = {}
        until = time.monotonic() + PATIENCE
        while len(answers) < count and time.monotonic() < until:
            for pipe in wait([self.pipes[rank] for rank in range(count) if rank not in answers], PATIENCE):
                try:
                    answer = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    answer = None
                answers[self.pipes.index(pipe)] = answer  # type: ignore[arg-type]
                if isinstance(answer, BaseException):
                    self.close()
                    raise answer
        if len(answers) < count:
            self.close()
            raise TimeoutError(f"only processes {sorted(answers)} of {count} answer")
        return [answers[rank] for rank in range(count)]

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "tests.distributed.work"])  # imported once
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, store, theirs), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()
        if self.processes:
            self._folder.cleanup()
        self.pipes, self.processes = [], []


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    from tests.distributed import work

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {count: dist.new_group(list(range(count))) for count in range(1, size + 1)}
    while True:
        count, name, arguments = pipe.recv()
        try:
            answer = getattr(work, name)(groups[count], *arguments)
        except LostProcessError as error:
            pipe.send(f"{type(error).__name__}: {error}")
            return  # as a program that reports its error: its closed connections tell those that wait for it
        except Exception as error:
            answer = error
        try:
            pipe.send(answer)
        except Exception as error:  # an exception that cannot be pickled
            pipe.send(RuntimeError(f"{type(answer).__name__}: {answer} ({error})"))
