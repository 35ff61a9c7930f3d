"""Measure how long a training run takes from a signal until everything is saved: real command, busy machine.

    python -m tests.reliability.seconds [--burners N] [--repeats N] [--family NAME]

Models and batches have their default sizes. The signal arrives at a random moment of an update or of a validation,
alternating SIGTERM and SIGINT, while other processes keep the processor busy. Prints one line per training run, the
longest of each kind last. The requirement: at most ten seconds.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.reliability.families import QKV, Family, as_texts

from qkv.checkpoint.rotation import latest_complete
from qkv.settings import to_toml

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
FAMILIES = {
    "gru": Family("translate", {"model": "gru"}, "word"),
    "transformer": Family("translate", {"model": "transformer"}, "word"),
    "language": Family("generate", {}, "char"),
    "classifier": Family("classify", {"model": "gru"}, "word"),
}
MOMENTS = ("update", "validation")
LINES, WORDS = 3000, 6000


@dataclass(frozen=True)
class Stopped:
    """How one training run ended.

    Args:
        saved: seconds from the signal until the message that everything is saved.
        ended: seconds from the signal until the process ended.
        code: its exit code.
        step: the newest complete checkpoint.
        said: its last message.
    """

    saved: float
    ended: float
    code: int
    step: str
    said: str


def write_files(folder: Path) -> None:
    """Sentences of 5 to 25 words from a large vocabulary, so that default models have realistic sizes."""
    random = Random(0)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(WORDS)]
    lines = [random.choices(words, k=random.randint(5, 25)) for _ in range(LINES)]
    (folder / "a.txt").write_text("".join(f"{' '.join(line)}\n" for line in lines), encoding="utf-8")
    (folder / "b.txt").write_text("".join(f"{' '.join(line[::-1])}\n" for line in lines), encoding="utf-8")
    labeled = "".join(f"{('odd', 'even')[len(line) % 2]}\t{' '.join(line)}\n" for line in lines)
    (folder / "labeled.tsv").write_text(labeled, encoding="utf-8")


def command(family: Family, folder: Path, out: Path, moment: str) -> list[str]:
    """The training command, which validates after every step or never."""
    every = 1 if moment == "validation" else 10**6
    tables = family.tables(folder, steps=10**6, tokens=4096, validate_every=every, log_every=1, keep=3)
    tables["tokenizer"]["size"] = 8000
    out.with_suffix(".toml").write_text(to_toml(as_texts(tables)), encoding="utf-8")
    return [str(QKV), "train", family.task, "--config", str(out.with_suffix(".toml")), "--out", str(out)]


def stop(arguments: list[str], out: Path, number: signal.Signals, delay: float) -> Stopped:
    """Train until the first log entry and `delay` seconds more, then send the signal."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        arguments,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        preexec_fn=hear,  # noqa: PLW1509 - it takes no lock
    ) as training:
        log = out / "metrics.jsonl"
        while training.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.05)
        time.sleep(delay)
        begun, said, saved = time.monotonic(), "", math.inf
        training.send_signal(number)
        assert training.stderr is not None
        for line in training.stderr:
            if "everything is saved" in line:
                said, saved = line.strip(), time.monotonic() - begun
        training.wait()
        ended = time.monotonic() - begun
    found = latest_complete(out, lambda _: None)
    return Stopped(saved, ended, training.returncode, "none" if found is None else found.name, said)


def hear() -> None:
    """In the child, restore SIGINT: background jobs of a shell without job control ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Run other processes that compete for the processor."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def say(line: str) -> None:
    """Write a line and flush."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Measure all families."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--burners", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--family", choices=tuple(FAMILIES), action="append")
    given = parser.parse_args()
    random, longest, place = Random(0), dict[tuple[str, str], tuple[float, float]](), 0
    with tempfile.TemporaryDirectory() as name, burning(given.burners):
        folder = Path(name)
        write_files(folder)
        for family in given.family or FAMILIES:
            for moment in MOMENTS * given.repeats:
                number, out = list(CODES)[place // 2 % 2], folder / f"run{place}"
                place += 1
                arguments = command(FAMILIES[family], folder, out, moment)
                found = stop(arguments, out, number, random.uniform(0, 3))
                load = os.getloadavg()[0]
                times = f"saved {found.saved:5.1f} s, ended {found.ended:5.1f} s"
                say(f"{family:12} {moment:11} {number.name} {times}  load {load:4.1f}  {found.said[:40]}")
                assert found.code == CODES[number], found
                before = longest.get((family, moment), (0.0, 0.0))
                longest[family, moment] = (max(before[0], found.saved), max(before[1], found.ended))
    for (family, moment), (saved, ended) in longest.items():
        say(f"{family:12} {moment:11} saved within {saved:.1f} s, ended within {ended:.1f} s")


if __name__ == "__main__":
    main()
