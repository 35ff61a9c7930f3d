"""Which backends run on this machine: some are compiled kernels and nothing else."""

from qkv.planner.registry import algorithms_of


def here(*names: str) -> tuple[str, ...]:
    """Return those of some backends and algorithms that run here; "auto" always does."""
    return tuple(name for name in names if name == "auto" or _runs(name))


def _runs(name: str) -> bool:
    return any(each.kernels is None or each.kernels() is None for each in algorithms_of(name))
