"""Read many corrupted files in separate processes, each limited in time, memory and folder, with typed errors only."""

import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from tests.fuzz.opened import Watch
from tests.fuzz.targets import Attempt, SilentError, Target

from qkv.errors import QkvError

MEMORY = 256 << 20
CHUNK = 500
_WARM = 8
_LOST, _TURN = 120.0, 0.02
_PLACE = struct.Struct("q")


@dataclass
class Tally:
    """The outcome of one target.

    Args:
        name: the target's name.
        tried: the number of attempts.
        refused: how many ended in a typed error.
        slowest: the longest processor time of one attempt, in seconds.
        faults: what must not happen but did.
    """

    name: str
    tried: int = 0
    refused: int = 0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)


def seed_of(target: Target, seed: int, number: int) -> str:
    """The key that determines one attempt."""
    return f"{target.name}:{seed}:{number}"


def attempt_once(attempt: Attempt, key: str) -> tuple[bool, str]:
    """Try once.

    Returns:
        True if the file was refused, and what is wrong ("" if nothing is).
    """
    try:
        attempt(Random(key))
    except SilentError as error:
        return False, f"{key}: read as if it were sound: {error}"
    except QkvError as error:
        return True, "" if len(str(error)) < 4000 else f"{key}: a message of {len(str(error)):,} characters"
    except (Exception, RecursionError) as error:  # any other exception is a finding
        return False, f"{key}: {type(error).__name__}: {str(error)[:200]}"
    return False, ""


def try_target(target: Target, count: int, seed: int) -> Tally:
    """Try a target many times, each chunk in a process with enforced limits."""
    tally = Tally(target.name)
    start = 0
    while start < count:
        stop = min(start + CHUNK, count)
        start = _chunk(target, range(start, stop), seed, tally)
    tally.tried = count
    return tally


def _chunk(target: Target, numbers: range, seed: int, tally: Tally) -> int:
    """Return the number to resume from: one past the attempt that ended its process, if any."""
    shared = mmap.mmap(-1, _PLACE.size)
    shared[:] = _PLACE.pack(numbers.start)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(target, numbers, seed, shared, write)
    os.close(write)
    ended, code = _wait(pid, shared)
    with os.fdopen(read) as stream:
        lines = [json.loads(line) for line in stream if line.endswith("\n")]
    tally.refused += sum(line["refused"] for line in lines)
    tally.slowest = max([tally.slowest, *(line["slowest"] for line in lines)])
    tally.faults += [fault for line in lines for fault in line["faults"]]
    if ended and code == 0:
        return numbers.stop
    place = _PLACE.unpack(shared[:])[0]
    way = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    how = f"process ended {way}" if ended else f"no end within {_LOST:.0f} s"
    tally.faults.append(f"{seed_of(target, seed, place)}: {how}")
    return place + 1


def _wait(pid: int, shared: mmap.mmap) -> tuple[bool, int]:
    """Wait until a process ends, or until one attempt has used up all patience.

    Patience is counted in iterations of this loop, so that none is lost while both processes are suspended.
    """
    place, turns = shared[:], 0
    while turns * _TURN < _LOST:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return True, os.waitstatus_to_exitcode(status)
        turns = turns + 1 if shared[:] == place else 0
        place = shared[:]
        time.sleep(_TURN)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False, 0


def _child(target: Target, numbers: range, seed: int, shared: mmap.mmap, pipe: int) -> None:
    code = 1
    try:
        with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as base:
            _quietly(target, numbers, seed, shared, pipe, Path(base))
        code = 0
    finally:
        os._exit(code)


def _quietly(target: Target, numbers: range, seed: int, shared: mmap.mmap, pipe: int, base: Path) -> None:
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    (base / "inside").mkdir()
    attempt = target.make(base / "inside")
    (base / "outside").mkdir(exist_ok=True)
    watch = Watch(base / "outside")
    for number in range(-_WARM, 0):  # imports at first use do not count
        attempt_once(attempt, seed_of(target, seed, number))
    _limit_memory()
    with os.fdopen(pipe, "w") as stream:
        for number in numbers:
            key = seed_of(target, seed, number)
            shared[:] = _PLACE.pack(number)
            begun = time.process_time()
            refused, fault = attempt_once(attempt, key)
            taken = time.process_time() - begun
            faults = [fault] if fault else []
            faults += [f"{key}: opened {name} outside" for name in watch.seen()]
            stream.write(json.dumps({"refused": refused, "slowest": taken, "faults": faults}) + "\n")
            stream.flush()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
