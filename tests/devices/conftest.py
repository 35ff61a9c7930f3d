"""What needs a guard for CUDA, or Triton's interpreter, is collected in a process that has it: `make test-gpu`."""

import importlib.util
import os

from benchmarks.launches.counting import has_guard

from qkv.algorithms.additive.triton import INTERPRETED

collect_ignore = [] if has_guard() else ["test_attention.py", "test_models.py"]
if not importlib.util.find_spec("triton") or os.environ.get(INTERPRETED) != "1":
    collect_ignore.append("test_triton.py")
