"""Run the tests of this folder in a process that has a guard for CUDA, which a C++ compiler makes: `make test-gpu`.

Where Triton is installed, its interpreter runs the kernels on the CPU.
"""

import os
import sys
import tempfile
from pathlib import Path

from benchmarks.launches.counting import guarded

from qkv.algorithms.additive.triton import INTERPRETED

if __name__ == "__main__":
    os.environ[INTERPRETED] = "1"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "tests/devices", *sys.argv[1:]]
        sys.exit(guarded(command, Path(folder)).returncode)
