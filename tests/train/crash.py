"""Kills a training at random moments, again and again, until it has ended; in one warm process that forks.

Arguments: a folder to work in, how many kills. Prints one line of JSON.
"""

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from tests.train.parts import SETTINGS, fresh, run_training

from qkv.checkpoint.folder import verify
from qkv.checkpoint.rotation import latest_complete

KILLED, ENDED = -signal.SIGKILL, 0


def attempt(run: Path, delay: float | None, kills: int) -> int:
    """Train in a child, killed after a delay; give its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run_training(run, replace(SETTINGS, steps=6 + kills // 4, validate_every=3), task=fresh())
            code = ENDED
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder: Path, kills: int) -> None:
    start = time.monotonic()
    codes = [attempt(folder / "whole", None, kills)]
    duration = time.monotonic() - start
    random, said = Random(kills), []
    for _ in range(kills):
        # Most moments within one attempt's first part, so that there is work left for the next one.
        codes.append(attempt(folder / "parts", random.random() ** 2 * duration, kills))
        if (folder / "parts").is_dir():
            latest_complete(folder / "parts", said.append)
    codes.append(attempt(folder / "parts", None, kills))
    digests = [verify(latest_complete(folder / name, said.append)).digest for name in ("whole", "parts")]
    json.dump({"codes": codes, "digests": digests, "said": said}, sys.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
