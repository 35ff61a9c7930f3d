"""Threads that wait for work soon sleep, as under the command `qkv`: another worker of the tests needs their core.

Imported before PyTorch, whose threads read this when they are loaded.
"""

import os

from qkv.cli.main import SPINS

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
