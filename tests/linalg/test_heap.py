"""Free pages of the heap return to the system when a loop's memory has grown."""

import subprocess
import sys

import pytest

from qkv.linalg import heap
from qkv.linalg.heap import GROWTH, GrowthLimit, resident_bytes


def returned(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> list[int]:
    """The passes after which free pages are returned, if memory has these sizes after each."""
    left, trimmed = list(sizes), []
    monkeypatch.setattr(heap, "_trim", lambda: lambda _: trimmed.append(len(sizes) - len(left)))
    limit = GrowthLimit(lambda: left.pop(0))
    for _ in sizes:
        limit.after_pass()
    return trimmed


@pytest.mark.parametrize(
    ("sizes", "passes"),
    [
        ([100, 100, 100], []),
        ([0, GROWTH, GROWTH + 1, GROWTH, 2 * GROWTH, 2 * GROWTH + 1], [3, 6]),
        ([GROWTH, 0, GROWTH, GROWTH + 1], [4]),
    ],
)
def test_pages_are_returned_after_growth_beyond_the_least(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], passes: list[int]
) -> None:
    assert returned(monkeypatch, sizes) == passes


def test_a_system_that_does_not_tell_its_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_trim", lambda: pytest.fail("nothing has grown"))
    limit = GrowthLimit(lambda: None)
    limit.after_pass()
    limit.after_pass()


# In a process of its own: a collection in a long one returns pages while others are counted.
HOLD = """
import torch
from qkv.linalg.heap import resident_bytes
before = resident_bytes()
held = torch.ones(1 << 24)
print((resident_bytes() - before) / held.nbytes)
"""


@pytest.mark.skipif(resident_bytes() is None, reason="this system does not tell")
def test_resident_bytes_are_those_of_tensors() -> None:
    done = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout) < 1.5
