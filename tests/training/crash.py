"""Kill training runs at random moments, repeatedly, until each has ended, in one warm process that forks.

Arguments: a scratch folder, and the number of kills. Prints one line of JSON.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch
from tests.curves import one_of_each_kind
from tests.training.parts import SETTINGS, fresh, run_training

from qkv.checkpoint.folder import verify
from qkv.checkpoint.rotation import latest_complete

KILLED, ENDED = -signal.SIGKILL, 0


@dataclass
class Found:
    """The outcome of all attempts.

    Args:
        codes: how often each exit code occurred.
        kills: how often a kill came after the checkpoint of each update; 0 means before the first checkpoint.
        digests: the last checkpoint of each training run; the first run was never killed.
        said: messages while looking for a checkpoint.
        lost: how often an earlier look had found a later checkpoint.
    """

    codes: Counter[int] = field(default_factory=Counter)
    kills: Counter[int] = field(default_factory=Counter)
    digests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    lost: int = 0


def train(run: Path) -> None:
    """Run the whole training, or the rest of it."""
    run_training(run, replace(SETTINGS, steps=42, validate_every=3), task=fresh())


def attempt(run: Path, delay: float | None) -> int:
    """Train in a child process, killed after a delay; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(run)
            code = ENDED
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def reached(run: Path, found: Found) -> int:
    """The update of the newest complete checkpoint."""
    newest = latest_complete(run, found.said.append) if run.is_dir() else None
    return 0 if newest is None else int(newest.name.removeprefix("step-"))


def train_to_the_end(run: Path, random: Random, duration: float, kills: int, found: Found) -> None:
    """Kill a training run until it ends or no kills are left; then let it end."""
    before, code = 0, KILLED
    while code == KILLED:
        left = kills - found.codes[KILLED]
        code = attempt(run, random.random() * duration if left else None)
        found.codes[code] += 1
        now = reached(run, found)
        found.lost += now < before
        before = now
        if code == KILLED:
            found.kills[now] += 1
    found.digests.append(verify(latest_complete(run, found.said.append)).digest)


def main(folder: Path, kills: int) -> None:
    found, random = Found(), Random(kills)
    train(folder / "first")  # in this process, so that its children have all modules imported
    start = time.monotonic()
    train_to_the_end(folder / "whole", random, 0.0, 0, found)
    duration = time.monotonic() - start
    number = 0
    while found.codes[KILLED] < kills:
        train_to_the_end(folder / str(number), random, duration, kills, found)
        number += 1
    json.dump(vars(found), sys.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with one_of_each_kind():
        main(Path(sys.argv[1]), int(sys.argv[2]))
