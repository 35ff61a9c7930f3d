"""How many files and functions of qkv a job enters, and how many modules it imports.

    python -m benchmarks.entered

Each job runs in a process of its own, once before it is counted, so that imports do not count: a line that a loaded
translator translates, and a small translator that is trained for two updates. Functions are counted by
`sys.setprofile`, which sees those of Python alone, lambdas and comprehensions too.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

PACKAGE = "/qkv/"
JOBS = ("translate", "train", "load")
PAIRS = [(f"{a} {b}", f"{b} {a}") for a in "abcdefgh" for b in "abcdefgh"]
SMALL: dict[str, Any] = {"steps": 2, "model": "gru", "width": 8, "tokenizer": "word", "minimum": 1, "holdout": 4}


def entered(job: Callable[[], object]) -> tuple[int, int]:
    """Return how many files and functions of the package a job enters."""
    functions: set[tuple[str, str, int]] = set()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and PACKAGE in code.co_filename and code.co_name != "<module>":
            functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    job()
    sys.setprofile(profile)
    try:
        job()
    finally:
        sys.setprofile(None)
    return len({file for file, _, _ in functions}), len(functions)


def measure(job: str) -> str:
    """Run a job in this process, and describe what it entered."""
    import qkv

    if job == "load":
        qkv.load("example")
        modules = [name for name in sys.modules if name.startswith("qkv.")]
        training = sum(f"{name}.".startswith("qkv.training.") for name in modules)
        return f'qkv.load("example"): {len(modules)} modules imported, {training} of them of qkv.training'
    if job == "translate":
        translator = qkv.load("example", task="translate")
        files, functions = entered(lambda: translator.translate(["Die Frau hat einen Hund gesehen ."]))
        return f"a line translated: {files} files, {functions} functions"

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            qkv.train("translate", data=PAIRS, out=folder, quiet=True, **SMALL)

    files, functions = entered(train)
    return f"qkv.train, two updates: {files} files, {functions} functions"


def main() -> None:
    """Measure one job, or each in a process of its own."""
    if len(sys.argv) > 1:
        print(measure(sys.argv[1]))
        return
    for job in JOBS:
        subprocess.run([sys.executable, "-m", "benchmarks.entered", job], check=True)


if __name__ == "__main__":
    main()
