"""Run the tests of this folder in a process that has a guard for CUDA, which a C++ compiler makes: `make test-gpu`."""

import sys
import tempfile
from pathlib import Path

from benchmarks.launches.counting import guarded

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "tests/devices", *sys.argv[1:]]
        sys.exit(guarded(command, Path(folder)).returncode)
