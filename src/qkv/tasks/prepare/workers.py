"""Processes that make shards: each receives one shard after another, and reports the result."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import IO, BinaryIO, cast, final

from qkv.errors import QkvError, from_json_value, to_json_value
from qkv.strict_json import parse_json
from qkv.system import python_command
from qkv.tasks.corpora.manifest import Shard
from qkv.tasks.prepare.input_files import LineBlock
from qkv.tasks.prepare.making import ShardJob, ShardMaker

_LAST = 10.0
"""Seconds in which a process ends after its last shard."""


def make_shards(folder: Path, jobs: Iterable[ShardJob], processes: int) -> Iterator[tuple[int, Shard]]:
    """Make shards, in this process or in several others.

    Args:
        folder: the folder of the corpus, with what it is made from.
        jobs: the shards in order; read as far as processes are free.
        processes: how many make shards; 1 for this one.

    Returns:
        Number and content of each shard, in the order in which they are ready.

    Raises:
        DataError: a line is invalid. Of several errors it is that of the first shard, whatever the processes.
        QkvError: a process ended.
    """
    if processes == 1:
        maker = ShardMaker.load(folder)
        for job in jobs:
            yield job.number, maker.make(job)
        return
    with ThreadPoolExecutor(processes) as threads, ExitStack() as stack:
        idle: Queue[Worker] = Queue()
        for _ in range(processes):
            idle.put(stack.enter_context(Worker(folder)))
        running: dict[Future[Shard], int] = {}
        failed: dict[int, QkvError] = {}
        for job in jobs:
            running[threads.submit(_make, idle, [job])] = job.number
            del job  # its bytes are sent to another process
            while len(running) == processes and not failed:
                yield from _ready(running, failed)
            if failed:
                break
        while running:
            yield from _ready(running, failed)
        if failed:
            raise failed[min(failed)]


def _make(idle: "Queue[Worker]", jobs: list[ShardJob]) -> Shard:
    worker = idle.get()
    try:
        worker.send(jobs.pop())
        return worker.receive()
    finally:
        idle.put(worker)


def _ready(running: dict["Future[Shard]", int], failed: dict[int, QkvError]) -> Iterator[tuple[int, Shard]]:
    """Wait until a shard is ready, and yield those that are."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        number = running.pop(future)
        try:
            shard = future.result()
        except QkvError as error:
            failed[number] = error
        else:
            yield number, shard


@final
class Worker:
    """Another process that makes shards; it ends with the context.

    Args:
        folder: the folder of the corpus.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            python_command("from qkv.tasks.prepare.workers import main; main()", str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the first process, which ends the others
        )

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def __enter__(self) -> "Worker":
        """Return the worker itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the process: at once if something failed."""
        if kind is not None:
            self._process.kill()
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(_LAST)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        cast("IO[bytes]", self._process.stdout).close()

    def send(self, job: ShardJob) -> None:
        """Let the process make a shard."""
        with contextlib.suppress(OSError):  # it has ended: `receive` reports that
            send_job(cast("BinaryIO", self._process.stdin), job)

    def receive(self) -> Shard:
        """Return the shard that the process made.

        Raises:
            DataError: a line is invalid.
            QkvError: the process ended.
        """
        answer = cast("IO[bytes]", self._process.stdout).readline()
        if not answer:
            code = self._process.wait()
            got = f"one that ended with code {code}" if code >= 0 else f"one that signal {-code} ended"
            hint = "Run the same command again: it continues with what is missing."
            raise QkvError("processes", "every process to go on", got, hint)
        value = parse_json(answer)
        if "error" in value:
            raise from_json_value(value["error"])
        return Shard.from_json_value(value["shard"], "the answer of a process")


def send_job(stream: BinaryIO, job: ShardJob) -> None:
    """Write a job for another process: a line that describes it, then the bytes of its lines."""
    blocks = [[block.files, block.first, block.line, block.lines, list(map(len, block.bodies))] for block in job.blocks]
    stream.write(json.dumps([job.number, blocks]).encode() + b"\n")
    for block in job.blocks:
        for body in block.bodies:
            stream.write(body)
    stream.flush()


def receive_job(stream: BinaryIO) -> ShardJob | None:
    """Read what `send_job` wrote; None at the end.

    Example:
        >>> from io import BytesIO
        >>> job = ShardJob(3, (LineBlock(("a.txt",), 1, 1, 1, (b"one",)),))
        >>> stream = BytesIO()
        >>> send_job(stream, job)
        >>> _ = stream.seek(0)
        >>> receive_job(stream) == job, receive_job(stream)
        (True, None)
    """
    line = stream.readline()
    if not line:
        return None
    number, blocks = parse_json(line)
    return ShardJob(
        number,
        tuple(
            LineBlock(tuple(files), first, line_number, count, tuple(stream.read(size) for size in sizes))
            for files, first, line_number, count, sizes in blocks
        ),
    )


def answer_jobs(folder: Path, jobs: BinaryIO, answers: BinaryIO) -> None:
    """Make the shards that another process asks for, until it ends.

    Args:
        folder: the folder of the corpus.
        jobs: where jobs come from.
        answers: where answers go.
    """
    maker: ShardMaker | None = None
    while (job := receive_job(jobs)) is not None:
        try:
            maker = maker or ShardMaker.load(folder)
            answer: dict[str, object] = {"shard": maker.make(job).to_json_value()}
        except QkvError as error:
            answer = {"error": to_json_value(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Make the shards of the corpus whose folder is the first argument, until standard input ends."""
    with contextlib.suppress(BrokenPipeError):  # the process that started this one has ended
        answer_jobs(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
