"""Small corpora, their preparation, and a preparation that is killed.

Run as a program it prepares in processes that are killed at one system call after another, until one is not. Arguments:
a folder of files, the folder of the corpus, the first system call, the number of calls between two, whether pairs.
"""

import gzip
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from qkv.tasks.prepare.preparing import Preparation, Prepared

WORDS = ["der", "die", "hund", "katze", "läuft", "springt", "e\u0301té", "ΣΑΣ", "12,5", "(nicht)"]
SMALL = 0.002
"""MiB of a shard, so that small corpora have several."""


def sentence(random: Random) -> str:
    return " ".join(random.choices(WORDS, k=random.randint(1, 9)))


def sentences(count: int, seed: int) -> list[str]:
    random = Random(seed)
    return [sentence(random) for _ in range(count)]


def write_text(folder: Path, count: int = 400, seed: int = 0) -> list[Path]:
    """Write a text in three files: the first with Windows' line ends, the second compressed, the last without end."""
    lines = sentences(count, seed)
    third = count // 3
    files = [folder / "a.txt", folder / "b.txt.gz", folder / "c.txt"]
    files[0].write_bytes(b"\xef\xbb\xbf" + "".join(f"{line}\r\n" for line in lines[:third]).encode())
    with gzip.open(files[1], "wb") as stream:
        stream.write("".join(f"{line}\n" for line in lines[third : 2 * third]).encode())
    files[2].write_bytes("\n".join(lines[2 * third :]).encode())
    return files


def write_pairs(folder: Path, count: int = 400, seed: int = 0) -> Path:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{line}\t{line.upper()}\n" for line in sentences(count, seed)), encoding="utf-8")
    return path


def prepared(files: list[Path], out: Path, processes: int = 1, **settings: Any) -> Prepared:
    tables: dict[str, dict[str, Any]] = {"data": {"shard_size": SMALL}, "tokenizer": {"vocabulary": 350}}
    for name, item in settings.items():
        table = "tokenizer" if name in ("tokenizer", "vocabulary", "minimum", "lowercase", "unicode") else "data"
        tables[table][name] = item
    return Preparation.of(files, tables).prepare(out, processes)


def contents(folder: Path) -> Mapping[str, bytes]:
    """Return the files of a corpus by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def prepare_and_die(files: list[Path], out: Path, point: int, **settings: Any) -> bool:
    """Prepare in a fork that is killed at a system call; return whether it was."""
    from tests.checkpoint.crash import Blow, kill

    pid = os.fork()
    if pid == 0:
        try:
            sys.setprofile(Blow(point, kill, None))
            prepared(files, out, **settings)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) == -signal.SIGKILL


if __name__ == "__main__":
    source, target, point, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    inputs, deaths = sorted(source.iterdir()), 0
    while prepare_and_die(inputs, target, point, pairs=sys.argv[5] == "True"):
        deaths, point = deaths + 1, point + step
    sys.stdout.write(json.dumps(deaths))
