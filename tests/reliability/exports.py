"""Kill all exports of models and recordings at random moments, in one warm process that forks.

    python -m tests.reliability.exports --kills 25

Afterwards the given name must be that of nothing, of what stood there before, or of the complete result; the next
export under the same name must succeed, and leave nothing beside a folder. Half of the kills are drawn from the whole
duration, half from the time in which files are written. Prints one line of JSON: for each way, how many kills came
before the first write, while files were written, and after the name was given, and what was wrong.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random

import torch
from tests.fuzz.models import families

from qkv.checkpoint.disk import SAVING
from qkv.checkpoint.folder import save as save_checkpoint
from qkv.recording.recorder import record
from qkv.recording.trace import Trace
from qkv.tasks.exporting import export
from qkv.tasks.load import load
from qkv.view.alignment import Alignment
from qkv.view.export import save as save_alignments
from qkv.view.showing import write_page

OLD = b"what stood there before"


@dataclass
class Outcome:
    """What the kills of one way did.

    Args:
        moments: how many came before the first write, while files were written, and after the name was given.
        faults: what was wrong.
    """

    moments: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def ways(base: Path) -> Mapping[str, Callable[[Path], object]]:
    """Return functions that write to a path, by the name that the path gets."""
    runs = {}
    for name in ("transformer", "language"):
        runs[name] = base / name
        save_checkpoint(runs[name], families()[name])
    scene = load(runs["transformer"]).scene("the cat sat on the mat")
    trace = _trace(runs["language"])
    words = tuple(f"word {number}" for number in range(40))
    alignment = Alignment(words, words, torch.rand(40, 40))
    return {
        "ctranslate2": lambda out: export(runs["transformer"], "ctranslate2", out),
        "transformers": lambda out: export(runs["language"], "transformers", out),
        "onnx": lambda out: export(runs["language"], "onnx", out),
        "trace.safetensors": trace.save,
        "trace.html": trace.save,
        "trace.png": trace.save,
        "scene.html": lambda out: write_page(scene, out),
        "sentences.html": lambda out: save_alignments(out, alignment),
        "sentences.svg": lambda out: save_alignments(out, alignment),
    }


def _trace(run: Path) -> Trace:
    generator = load(run, task="generate")
    with torch.no_grad(), record(generator.model) as trace:
        generator.model(torch.tensor([generator.tokenizer.encode("the cat")]))
    return trace


def contents(path: Path) -> dict[str, str]:
    """Return the digest of a file, or of each file of a folder; nothing for a name that nothing has."""
    files = path.iterdir() if path.is_dir() else [path] if path.exists() else []
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def attempt(write: Callable[[Path], object], out: Path, delay: float | None) -> int:
    """Write in a child process, killed after a delay; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            write(out)
            code = 0
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def durations(write: Callable[[Path], object], out: Path) -> tuple[float, float]:
    """Return the seconds until the first write beside a name, and until the name is given."""
    start, first = time.monotonic(), [0.0]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in {"open", "os.mkdir"} and SAVING in str(arguments[0]) and not first[0]:
            first[0] = time.monotonic() - start
            (out.parent / "first").write_text(str(first[0]))

    def timed(path: Path) -> None:
        sys.addaudithook(hook)
        write(path)

    assert attempt(timed, out, None) == 0
    return float((out.parent / "first").read_text()), time.monotonic() - start


def kill(write: Callable[[Path], object], name: str, kills: int, base: Path) -> Outcome:
    """Kill one way of writing, again and again."""
    random, outcome = Random(name), Outcome()
    home = base / "whole"
    home.mkdir()
    write(home / name)  # in this process, so that its children have all modules imported
    complete = contents(home / name)
    shutil.rmtree(home)
    home.mkdir()
    first, end = durations(write, home / name)
    if contents(home / name) != complete:
        outcome.faults.append("two undisturbed results differ")
    shutil.rmtree(home)
    number = -1
    while sum(outcome.moments.values()) < kills:
        number += 1
        home.mkdir()
        out = home / name
        before = {out.name: sha256(OLD).hexdigest()} if out.suffix and number % 4 < 2 else {}
        if before:
            out.write_bytes(OLD)
        code = attempt(write, out, random.uniform(first if number % 2 else 0.0, end))
        present, litter = contents(out), [path.name for path in home.iterdir() if SAVING in path.name]
        if code == 0:  # too late: it took longer before, on a busy machine
            first, end = 0.9 * first, 0.9 * end
        else:
            outcome.moments["writing" if litter else "after" if present == complete else "before"] += 1
        if code not in {0, -signal.SIGKILL} or present not in (complete, before) or (code == 0 and present != complete):
            outcome.faults.append(f"kill {number}: exit code {code}, {sorted(present)}")
        if out.is_dir():
            shutil.rmtree(out)
        if litter and number % 4 == 1 and (attempt(write, out, None) or contents(out) != complete):
            outcome.faults.append(f"kill {number}: the next one fails")
        elif litter and number % 4 == 1 and out.is_dir() and list(home.iterdir()) != [out]:
            outcome.faults.append(f"kill {number}: litter")
        shutil.rmtree(home)
    return outcome


def main(kills: int, names: list[str]) -> None:
    """Kill all ways, or some."""
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for name, write in ways(base).items():
            if not names or name in names:
                outcomes[name] = vars(kill(write, name, kills, base))
                print(name, outcomes[name], file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps(outcomes))  # noqa: T201


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--names", nargs="*", default=[])
    main(**vars(parser.parse_args()))
