"""Make a training fail at every call by which it changes the disk, in one warm process that forks.

Run it with OMP_NUM_THREADS=1: a child forked after a computation with two threads would wait for ever.

Arguments: a scratch folder; a stride (1 fails every call, n every n-th); the names of the errors. Prints one line of
JSON per error: how many calls were made to fail, how each training ended, and what was wrong.
"""

import errno
import io
import json
import os
import shutil
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType

from tests.curves import one_of_each_kind
from tests.training.parts import SETTINGS, fresh, run_training

from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import latest_complete, steps
from qkv.errors import CheckpointError
from qkv.training import curve
from qkv.training.journal import NAME, read_journal

LOGGED = replace(SETTINGS, steps=12, log_every=2)
TOLERATED, TYPED, WRONG, MISSED = 0, 3, 4, 5
CHANGING = {"open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir"}


class Fault:
    """A profile function that makes the n-th call that changes the disk fail."""

    def __init__(self, point: int, why: str) -> None:
        self.point, self.number, self.seen = point, getattr(errno, why), 0

    def __call__(self, _frame: FrameType, event: str, function: object) -> None:
        if event != "c_call" or not _changes(function):
            return
        self.seen += 1
        if self.seen == self.point:
            threading.setprofile(None)
            sys.setprofile(None)
            raise OSError(self.number, os.strerror(self.number))


def _changes(function: object) -> bool:
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if isinstance(owner, io.IOBase):  # what a library writes
        return name in {"write", "flush"} and not owner.closed and owner.writable()
    return getattr(function, "__module__", None) == "posix" and name in CHANGING


def train(run: Path, *, tensorboard: bool) -> None:
    """A training with everything that it logs and draws: the picture at every checkpoint."""
    task = fresh()
    task.model.train()
    run_training(run, LOGGED, task, tensorboard=tensorboard)


def child(run: Path, fault: Fault, *, tensorboard: bool) -> None:
    """Train once with one fault, and end the process with a code that says how."""
    code = WRONG
    try:
        threading.setprofile(fault)  # TensorBoard writes from a thread of its own
        sys.setprofile(fault)
        train(run, tensorboard=tensorboard)
        sys.setprofile(None)
        code = MISSED if fault.seen < fault.point else TOLERATED
    except CheckpointError as error:
        code = TYPED if os.strerror(fault.number) in str(error) else WRONG
    except BaseException as error:  # the parent must be told in any case
        sys.stderr.write(f"{error!r}\n")
    os._exit(code)


def judge(run: Path, digest: str) -> str:
    """Return what is wrong with the run after a fault and after resuming it, or ""."""
    said: list[str] = []
    newest = latest_complete(run, said.append) if run.is_dir() else None
    if said:
        return f"damaged: {said}"
    if newest is not None:
        load(newest)
        last = steps(run)[-1]
        lines = {line["step"] for line in read_journal(run / NAME) if line["kind"] == "train"}
        if not lines >= set(range(LOGGED.log_every, last + 1, LOGGED.log_every)):
            return f"the journal has {sorted(lines)} at step {last}"
    outcome = run_training(run, LOGGED)
    if outcome.digest != digest:
        return "resumed to other bits"
    lines = [line["step"] for line in read_journal(run / NAME) if line["kind"] == "train"]
    litter = [name for name in os.listdir(run) if name.startswith(".") and name != ".lock"]
    return f"{lines} {litter}" if lines != list(range(2, 13, 2)) or litter else ""


def campaign(base: Path, why: str, stride: int, *, tensorboard: bool = False) -> dict[str, object]:
    """Fail at every n-th call."""
    curve.Curve.__init__.__defaults__ = (None, 0.0)
    train(base / "whole", tensorboard=tensorboard)
    digest = run_training(base / "whole", LOGGED).digest
    shutil.rmtree(base / "whole")
    point, codes, faults = 1 - stride, Counter[int](), []
    while MISSED not in codes:
        point += stride
        run = base / "run"
        pid = os.fork()
        if pid == 0:
            child(run, Fault(point, why), tensorboard=tensorboard)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        codes[code] += 1
        fault = "no typed error" if code not in (TOLERATED, TYPED, MISSED) else judge(run, digest)
        if fault:
            faults.append(f"point {point}: {fault}")
        shutil.rmtree(run, ignore_errors=True)
    return {"name": why, "calls": point - 1, "codes": dict(codes), "faults": faults}


def main(base: Path, stride: int, names: list[str]) -> None:
    for why in names:
        for tensorboard in (False, True):
            found = campaign(base, why, stride, tensorboard=tensorboard)
            sys.stdout.write(json.dumps(found | {"tensorboard": tensorboard}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    with one_of_each_kind():
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
