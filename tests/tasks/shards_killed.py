"""Workers over shards that are killed at a random system call of theirs, and replaced.

Arguments: a scratch folder; how many shards there are; how many workers are killed; then numbers of workers at a time.
Each worker is the real command in a fork of one warm process. Prints one line of JSON for a worker that nobody kills,
then one per number: how many were killed, how the others ended, and the sha256 of all answers.
"""

import json
import os
import signal
import sys
from hashlib import sha256
from pathlib import Path
from random import Random

import torch
from tests.checkpoint.crash import Blow, kill
from tests.cli.command import run

from qkv.data.phrases import generate

LINES = 2
FURTHEST = 90
"""The last system call at which a worker is killed: of 20 workers, too few for 30 shards."""


def write_shards(folder: Path, shards: int) -> str:
    """Write the files to translate, and return their pattern."""
    folder.mkdir()
    pairs = iter(generate(shards * LINES, seed=5))
    for number in range(shards):
        lines = [next(pairs).source for _ in range(LINES)]
        (folder / f"part-{number:02d}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder / "part-*")


def command(pattern: str, out: Path) -> list[str | Path]:
    return ["translate", "example", "--beam", "2", "--n-best", "2", "--shards", pattern, "--out", out]


def worker(pattern: str, out: Path, point: int | None) -> int:
    """Start a worker, which is killed at a system call; return its process id."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            if point is not None:
                sys.setprofile(Blow(point, kill, None))
            code = run(*command(pattern, out)).exit_code
        finally:
            os._exit(code)
    return pid


def digest(folder: Path) -> str:
    """Return one sha256 over the names and bytes of all answers."""
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return sha256(b"".join(path.name.encode() + b"\n" + path.read_bytes() for path in files)).hexdigest()


def scenario(pattern: str, out: Path, workers: int, kills: int) -> dict[str, object]:
    random = Random(workers)
    points = [random.randint(1, FURTHEST) for _ in range(kills)]
    running: set[int] = set()
    codes: list[int] = []

    def start(point: int | None) -> None:
        running.add(worker(pattern, out, point))

    def end() -> None:
        pid, status = os.wait()
        running.discard(pid)
        codes.append(os.waitstatus_to_exitcode(status))

    while points:
        while points and len(running) < workers:
            start(points.pop())
        end()
    for _ in range(workers - len(running)):
        start(None)
    while running:
        end()
    start(None)  # what the last one killed left, after the others had passed it
    end()
    killed = codes.count(-signal.SIGKILL)
    others = sorted(code for code in codes if code != -signal.SIGKILL)
    leftovers = sorted(path.name for path in out.rglob("*.saving-*"))
    return {"workers": workers, "killed": killed, "others": others, "sha256": digest(out), "leftovers": leftovers}


if __name__ == "__main__":
    torch.set_num_threads(1)
    home, count = Path(sys.argv[1]), int(sys.argv[3])
    names = write_shards(home / "in", int(sys.argv[2]))
    run("translate", "example", "--quiet", feed="ein Hund\n")  # imports what every worker would import
    for each, kills in ((1, 0), *((int(number), count) for number in sys.argv[4:])):
        sys.stdout.write(json.dumps(scenario(names, home / f"out-{each}-{kills}", each, kills)) + "\n")
        sys.stdout.flush()
