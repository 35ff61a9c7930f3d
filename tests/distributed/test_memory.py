"""A process holds its part of the activations, and few parts of others."""

import sys

import pytest
from tests.distributed.group import Processes

from benchmarks import one_sequence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")
TOKENS = 4096


def test_a_model_takes_its_share_of_memory(processes: Processes) -> None:
    (alone,) = processes.run(1, "memory", "model", TOKENS, "contiguous")
    for layout in ("contiguous", "zigzag"):
        assert max(processes.run(4, "memory", "model", TOKENS, layout)) <= 1.25 * alone / 4


def test_a_ring_holds_six_parts_of_keys_and_values(processes: Processes) -> None:
    """Two of keys and values, three of their gradients, one for sums: the formula of the page about scale."""
    (alone,) = processes.run(1, "memory", "attention", TOKENS // 4, "contiguous")
    rows = TOKENS // 4 * one_sequence.HEADS / 2**20
    part, states = 2 * rows * one_sequence.WIDTH * 4, 8 * rows
    for layout in ("contiguous", "zigzag"):
        assert max(processes.run(4, "memory", "attention", TOKENS, layout)) <= alone + 6 * part + states
