"""What needs a guard for CUDA is collected in a process that has one: `make test-gpu`."""

from benchmarks.launches.counting import has_guard

collect_ignore = [] if has_guard() else ["test_attention.py", "test_models.py"]
