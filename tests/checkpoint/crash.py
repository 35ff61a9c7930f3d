"""Kill a save, or make it fail, at every system call, in one warm process that forks.

Arguments: a scratch folder; a stride of kills (1 kills at every call, n at every n-th) and one of errors; the names of
the errors that the calls are made to raise. Prints one line of JSON per scenario: how many points were tried, and what
went wrong.
"""

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tests.checkpoint.parts import same, small

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import best, latest_complete, save_step, steps
from qkv.checkpoint.run import open_run
from qkv.errors import CheckpointError

CONFIG = {"width": 3}
TOLERATED, TYPED, WRONG, MISSED = 0, 3, 4, 5
FAILING = {"open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "scandir", "listdir"}


class Blow:
    """A profile function that acts before or after the n-th system call."""

    def __init__(self, point: int, deed: Callable[[], None], only: set[str] | None) -> None:
        self.point, self.deed, self.only, self.seen = point, deed, only, 0

    def __call__(self, _frame: object, event: str, function: object) -> None:
        if event not in ({"c_call"} if self.only else {"c_call", "c_return"}):
            return
        if getattr(function, "__module__", None) != "posix" or (self.only and function.__name__ not in self.only):
            return
        self.seen += 1
        if self.seen == self.point:
            sys.setprofile(None)
            self.deed()


def advance(run: Path) -> None:
    """Save a step that is the new best, which removes an old one."""
    with open_run(run, CONFIG):
        save_step(run, 2, small(2), keep=1, best=True)


def again(run: Path) -> None:
    """Save a step a second time, this time with metrics."""
    with open_run(run, CONFIG):
        save_step(run, 1, small(9), keep=1, best=True)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(why: str) -> None:
    number = getattr(errno, why)
    raise OSError(number, os.strerror(number))


def child(run: Path, save: Callable[[Path], None], blow: Blow, expected: str) -> None:
    code = WRONG
    try:
        sys.setprofile(blow)
        save(run)
        sys.setprofile(None)
        code = MISSED if blow.seen < blow.point else TOLERATED
    except CheckpointError as error:
        code = TYPED if expected in str(error) else WRONG
    except BaseException as error:  # the parent must be told in any case
        sys.stderr.write(f"{error!r}\n")
    os._exit(code)


def judge(run: Path, new: int) -> str:
    """Return what is wrong after the failure, or ""."""
    said: list[str] = []
    newest = latest_complete(run, said.append)
    if newest is None or said:
        return f"newest {newest}, {said}"
    contents = load(newest)
    if not (same(contents, small(1)) or same(contents, small(new))):
        return "neither the old nor the new checkpoint"
    load(best(run))
    with open_run(run, CONFIG):
        save_step(run, 3, small(3), keep=1, best=True)
    names = sorted(os.listdir(run))
    return "" if names == [".lock", "best", "run.json", "step-00000003"] and steps(run) == [3] else f"litter: {names}"


def scenario(base: Path, save: Callable[[Path], None], new: int, why: str, stride: int) -> None:
    """Kill a save at every call, or make each call fail with one error."""
    start = base / "start"
    with open_run(start, CONFIG):
        save_step(start, 1, small(1), keep=1, best=True)
    deed, only = (kill, None) if why == "kill" else (partial(fail, why), FAILING)
    expected = "" if why == "kill" else os.strerror(getattr(errno, why))
    point, faults, codes = 1 - stride, [], []
    while MISSED not in codes:
        point += stride
        run = base / "run"
        shutil.copytree(start, run)
        pid = os.fork()
        if pid == 0:
            child(run, save, Blow(point, deed, only), expected)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        codes.append(code)
        fault = "no typed error" if code == WRONG else judge(run, new)
        if fault:
            faults.append(f"point {point}: {fault}")
        shutil.rmtree(run)
    shutil.rmtree(start)
    sys.stdout.write(json.dumps({"name": f"{why} {save.__name__}", "codes": codes, "faults": faults}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *strides = Path(sys.argv[1]), *map(int, sys.argv[2:4])
    for reason in ("kill", *sys.argv[4:]):
        scenario(folder, advance, 2, reason, strides[reason != "kill"])
        scenario(folder, again, 9, reason, strides[reason != "kill"])
