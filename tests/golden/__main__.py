"""Check that a refactoring changed nothing that was not meant to change: record before it, compare after it.

`python -m tests.golden record FOLDER` writes

- digests of outputs and gradients of the contract's cases at one and two threads, the algorithm chosen for about
  200,000 problems, ids of greedy and beam decoding, and weights of models before and after 20 updates;
- the help of every command, and all settings of every task and kind of model;
- weights and logs of short trainings, and runs, whose answers, figures and saved pages are compared later;
- every refusal in the tests of what is above the engine: class, argument, expected, got and hint.

`python -m tests.golden compare FOLDER` makes them again, from the recorded runs too, and names what differs. Digests
are valid on one machine only: bits can differ between processors.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from tests.golden import commands, numbers
from tests.golden.refusals import FOLDER

UPPER = ("tasks", "cli", "data", "training", "checkpoint", "models", "metrics", "decode", "test_errors_and_messages.py")

NUMBERS: Mapping[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "answers": numbers.answers,
    "choices": numbers.choices,
    "decoded": numbers.decoded,
    "trained": numbers.trained,
    "models": numbers.models,
    "readers": numbers.readers,
}
COMMANDS: Mapping[str, Callable[[Path], Iterator[tuple[str, str]]]] = {
    "helps": commands.helps,
    "configs": commands.configs,
    "trainings": commands.trainings,
    "runs": commands.runs,
}
PARTS = (*NUMBERS, *COMMANDS, "refusals")


def refusals() -> dict[str, str]:
    """Every refusal that the tests above the engine expect."""
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-m", "not slow"]
        here = [f"tests/{part}" for part in UPPER]
        subprocess.run([*call, "-p", "tests.golden.refusals", *here], env={**os.environ, FOLDER: folder}, check=False)
        found = (json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("*.json"))
        return {refusal: "refused" for worker in found for refusal in worker}


def make(part: str, folder: Path) -> dict[str, str]:
    """The entries of a part; commands run in the folder, which has data and runs."""
    if part == "refusals":
        return refusals()
    if part in NUMBERS:
        return dict(NUMBERS[part]())
    before = Path.cwd()
    os.chdir(folder)
    try:
        return dict(COMMANDS[part](folder))
    finally:
        os.chdir(before)


def main() -> None:
    """Record, or compare and report what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=PARTS, action="append", help="some of the parts only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = options.folder.resolve()
    if options.what == "record":
        before = Path.cwd()
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        commands.make_shelf(folder)
        os.chdir(before)
    differing = 0
    for part in options.part or PARTS:
        entries, file = make(part, folder), folder / f"{part}.json"
        if options.what == "record":
            file.write_text(json.dumps(entries, indent=1), encoding="utf-8")
            print(f"{part}: recorded {len(entries):,}")  # noqa: T201
            continue
        recorded = json.loads(file.read_text(encoding="utf-8"))
        names = [name for name in sorted({*recorded, *entries}) if recorded.get(name) != entries.get(name)]
        differing += len(names)
        print(f"{part}: {len(names):,} of {len(entries):,} differ")  # noqa: T201
        for name in names[:50]:
            print(f"  {name}\n    - {recorded.get(name)}\n    + {entries.get(name)}")  # noqa: T201
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
