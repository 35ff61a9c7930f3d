"""Refuse memory to whole runs of real commands, one allocation of Python, PyTorch or NumPy at a time.

    python -m tests.reliability.refused --refusals 500

Each run is forked from one process that has made every run before, with one thread. The library that refuses is
compiled from refuse.c with the system's `cc`, and preloaded. An allocation is refused alone ("once"), or with every
later one of at least 4 KiB ("lasting"). Prints one line of JSON: how many were refused, how many runs each exit code
ended, and what was wrong.
"""

import argparse
import ctypes
import faulthandler
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import cast

from tests.reliability.families import FAMILIES, STEPS, write_data

SOURCE = Path(__file__).with_name("refuse.c")
CALLBACK = re.compile(r"^Exception ignored (in|while)|^Exception in thread", re.MULTILINE)
"""How Python reports what was raised in a callback, a destructor or a thread."""
GROUPS = ("python", "objects", "torch", "numpy", "libraries")
"""Of Python by size, above and up to 512 bytes; PyTorch's own allocator; NumPy; and what PyTorch's libraries allocate
without looking at the answer, which no program can survive."""
WAYS = {"once": (1, 0), "lasting": (1 << 60, 4096)}
"""How many allocations are refused, and from which size on."""
MEMORY = re.compile(r"^qkv: [^\n]*(memory|alloca)[^\n]*\n\Z", re.MULTILINE)
SECONDS = 400
FAILED, REFUSED = 1, 2


@dataclass(frozen=True)
class Job:
    """A command, and what it leaves.

    Args:
        command: its arguments, with {run} for the folder of a finished run of its family, and {out} for a new file.
        family: the family of the run.
        suffix: of the file that it writes; "" if it writes none.
        feed: its standard input.
        reached: updates that the run made before, of one that trains; None for a command that trains nothing.
    """

    command: tuple[str, ...]
    family: str = "gru"
    suffix: str = ""
    feed: str = ""
    reached: int | None = None


_PAIRS = ("--source", "{data}/a.txt", "--target", "{data}/b.txt")
JOBS = {
    "train": Job(("--tensorboard",), reached=0),
    "resume": Job((), reached=7),
    "train text": Job((), "language", reached=0),
    "translate": Job(("translate", "{run}", "--beam", "2", "--attention", "{out}"), suffix=".png", feed="the cat\na\n"),
    "evaluate": Job(("evaluate", "{run}", *_PAIRS, "--out", "{out}"), suffix=".txt"),
    "align": Job(("align", "{run}", *_PAIRS)),
    "view": Job(("view", "{run}", "--text", "the cat sat", "--export", "{out}"), suffix=".html"),
    "generate": Job(("generate", "{run}", "--tokens", "20", "--attention", "{out}"), "language", ".svg"),
    "tag": Job(("tag", "{run}"), "tagger", feed="the cat\na\n"),
}


class Refusals:
    """The preloaded library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.refuse.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_size_t]
        self._library.allocations.restype = ctypes.c_long
        self._library.refusals.restype = ctypes.c_long

    def start(self, way: str, group: str = GROUPS[0], point: int = 0) -> None:
        """Refuse in one of the ways, from the given allocation of a group on; 0 only counts."""
        self._library.refuse(GROUPS.index(group), point, *WAYS[way])

    def stop(self) -> dict[str, int]:
        """Refuse no more; return how many allocations each group made, and how many were refused."""
        self._library.relent()
        made = {name: self._library.allocations(group) for group, name in enumerate(GROUPS)}
        return made | {"refused": self._library.refusals()}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    output: bytes
    errors: str
    counted: dict[str, int]


def call(arguments: list[str]) -> int:
    """Run the command in this process as `qkv` does; return its exit code."""
    from qkv.cli.main import main

    sys.argv = ["qkv", *arguments]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return FAILED
    return 0


def run(arguments: list[str], feed: str, folder: Path, refuse: Callable[[Refusals], None]) -> Ended:
    """Run a command in a child with some refusals."""
    refusals = Refusals()
    names = [folder / name for name in ("in", "out", "err", "counted")]
    names[0].write_text(feed, encoding="utf-8")
    pid = os.fork()
    if pid == 0:
        code = FAILED
        try:
            for handle, name in enumerate(("stdin", "stdout", "stderr")):
                how = "r" if handle == 0 else "w"
                setattr(sys, name, names[handle].open(how, encoding="utf-8"))
                os.dup2(getattr(sys, name).fileno(), handle)
            faulthandler.enable(sys.stderr)
            faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.stderr)
            refuse(refusals)
            code = call(arguments)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            names[3].write_text(json.dumps(refusals.stop()))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    counted = json.loads(names[3].read_text()) if names[3].exists() else {}
    ended = Ended(code, names[1].read_bytes(), names[2].read_text(errors="replace"), counted)
    for name in names:
        name.unlink(missing_ok=True)
    return ended


class Campaign:
    """All runs of all commands.

    Args:
        base: a scratch folder.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.data = write_data(base)
        self.whole: dict[str, Ended] = {}
        self.counted: dict[tuple[str, str], dict[str, int]] = {}
        self.files: dict[str, bytes] = {}
        self.digests: dict[str, str] = {}

    def prepare(self, names: list[str]) -> None:
        """Make every run in this process, which imports and compiles all that they need; then count allocations."""
        for family in sorted({JOBS[name].family for name in names}):
            out = self.base / f"{family}-whole"
            assert call(FAMILIES[family].command(self.data, out)[1:]) == 0
            self.digests[family] = _digest(out)
        for name in names:
            for place in (self.place(name, "warm"), self.place(name, "counted")):
                self._fresh(name, place)
                if place.name.endswith("warm"):
                    _warm(self.arguments(name, place), JOBS[name].feed)
            for way in WAYS:
                ended = self.attempt(name, place, lambda refusals, way=way: refusals.start(way))
                assert ended.code == 0, ended
                self.whole[name], self.counted[name, way] = ended, ended.counted
            self.files[name] = self.written(name, place)

    def place(self, name: str, kind: str) -> Path:
        return self.base / f"{name.replace(' ', '-')}-{kind}"

    def arguments(self, name: str, place: Path) -> list[str]:
        job = JOBS[name]
        if job.reached is not None:
            return [*FAMILIES[job.family].command(self.data, place)[1:], *job.command]
        words = {"run": self.base / f"{job.family}-whole", "data": self.data, "out": place.with_suffix(job.suffix)}
        return [each.format(**words) for each in job.command]

    def _fresh(self, name: str, place: Path) -> None:
        job = JOBS[name]
        shutil.rmtree(place, ignore_errors=True)
        place.with_suffix(job.suffix or ".none").unlink(missing_ok=True)
        if job.reached:
            whole = self.base / f"{job.family}-whole"
            shutil.copytree(whole, place, symlinks=True)
            for folder in place.glob("step-*"):
                if int(folder.name.removeprefix("step-")) > job.reached:
                    shutil.rmtree(folder)

    def attempt(self, name: str, place: Path, refuse: Callable[[Refusals], None]) -> Ended:
        self._fresh(name, place)
        return run(self.arguments(name, place), JOBS[name].feed, self.base, refuse)

    def written(self, name: str, place: Path) -> bytes:
        path = place.with_suffix(JOBS[name].suffix or ".none")
        return path.read_bytes() if path.exists() else b""

    def judge(self, name: str, place: Path, ended: Ended) -> str:
        """Return what is wrong, or ""."""
        fault = ""
        if CALLBACK.search(ended.errors) and ended.code in (0, REFUSED):
            pass  # Python says so itself, and the command cannot know what a library left out, such as letters
        elif ended.code == REFUSED:
            last = ended.errors[ended.errors.rstrip("\n").rfind("\n") + 1 :]
            if "Traceback" in ended.errors or not MEMORY.match(last):
                fault = "another message"
        elif ended.code != 0:
            fault = "crash"
        elif JOBS[name].reached is None and ended.output != self.whole[name].output:
            fault = "another output"
        elif self.written(name, place) != self.files[name]:
            fault = "another file"
        if JOBS[name].reached is not None:
            fault = fault or self._judge_run(name, place)
        return fault

    def _judge_run(self, name: str, place: Path) -> str:
        from qkv.checkpoint.folder import load
        from qkv.checkpoint.rotation import present

        try:
            for folder in present(place) if place.is_dir() else ():
                load(folder)
        except Exception as error:
            return f"damaged: {error}"
        arguments = FAMILIES[JOBS[name].family].command(self.data, place)[1:]
        again = run(arguments, "", self.base, lambda refusals: None)
        if again.code or _digest(place) != self.digests[JOBS[name].family]:
            return f"not resumed: {again.errors[-500:]}"
        litter = [each for each in os.listdir(place) if each.startswith(".") and each != ".lock"]
        return f"litter: {litter}" if litter else ""


def _digest(folder: Path) -> str:
    from qkv.checkpoint.folder import verify

    return verify(folder / f"step-{STEPS:08d}").digest


def _warm(arguments: list[str], feed: str) -> None:
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(each)) for each in (feed.encode(), b"", b""))
    try:
        code, said = call(arguments), cast("BytesIO", sys.stderr.buffer).getvalue()
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    assert code == 0, said


def refuse_one(campaign: Campaign, way: str, name: str, group: str, point: int) -> tuple[Ended, str]:
    """Make one run with one refusal; return how it ended, and what was wrong."""
    place = campaign.place(name, "run")
    ended = campaign.attempt(name, place, lambda refusals: refusals.start(way, group, point))
    return ended, campaign.judge(name, place, ended)


def main(count: int, seed: int, names: list[str], groups: list[str], again: str) -> None:
    """Refuse as often as asked, in every way, to every command, from every group."""
    draw, codes, faults = Random(seed), Counter[str](), {}
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder))
        campaign.prepare([again.split("/")[1]] if again else names)
        possible = [
            (way, name, group, made[group])
            for (name, way), made in campaign.counted.items()
            for group in groups
            if made[group]
        ]
        for number in range(1 if again else count):
            way, name, group, made = possible[number % len(possible)]
            key = again or f"{way}/{name}/{group}/{draw.randint(1, made)}"
            way, name, group, point = key.split("/")
            ended, fault = refuse_one(campaign, way, name, group, int(point))
            missed = ended.code == 0 and not ended.counted["refused"]
            codes["missed" if missed else str(ended.code)] += 1
            if fault:
                faults[key] = fault
                print(key, ended.code, fault, _shortened(ended.errors), sep="\n", file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps({"refused": count, "kinds": len(possible), "codes": codes, "faults": faults}))  # noqa: T201


def _shortened(text: str) -> str:
    return text if len(text) <= 8000 else f"{text[:4000]}\n...\n{text[-4000:]}"


def preload() -> None:
    """Start this program again with the library that refuses, unless it is loaded."""
    if hasattr(ctypes.CDLL(None), "refuse"):
        return
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/refuse.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        # A child forked after PyTorch has computed with two threads would wait for threads that it does not have.
        environment = {**os.environ, "LD_PRELOAD": library, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", "tests.reliability.refused", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    preload()
    parser = argparse.ArgumentParser()
    parser.add_argument("--refusals", type=int, default=500, dest="count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", nargs="*", default=list(JOBS))
    parser.add_argument("--groups", nargs="*", default=[name for name in GROUPS if name != "libraries"])
    parser.add_argument("--again", default="", metavar="KEY", help="only this one of an earlier run")
    main(**vars(parser.parse_args()))
