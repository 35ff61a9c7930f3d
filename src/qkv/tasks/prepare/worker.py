"""A process that makes shards for the one that started it, in the folder of a corpus."""

import contextlib
import sys
from pathlib import Path

from qkv.tasks.prepare.workers import answer_jobs


def main() -> None:
    """Make the shards of the corpus whose folder is the first argument, until standard input ends."""
    with contextlib.suppress(BrokenPipeError):  # the process that started this one has ended
        answer_jobs(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
