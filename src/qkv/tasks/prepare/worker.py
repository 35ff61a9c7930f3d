"""A process that makes shards for the one that started it: `python -m qkv.tasks.prepare.worker FOLDER`."""

import contextlib
import sys
from pathlib import Path

from qkv.tasks.prepare.workers import answer_jobs

if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the process that started this one has ended
        answer_jobs(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
