"""Calls of every mechanism on fake CUDA tensors, masks by turns."""

from typing import Any

import torch
from benchmarks.launches.counting import Counter
from tests.contract.calls import MECHANISMS
from tests.contract.mechanisms import BATCH, HEADS, MASK, MASKS, MaskCase, NormalizerCase, ScoreCase
from torch import Tensor

QUERIES, KEYS = 560, 600
"""More pairs than `auto` computes by a full matrix."""
Case = tuple[ScoreCase, NormalizerCase, MaskCase]
CASES: list[Case] = [
    (score, normalizer, MASKS[(index + turn) % len(MASKS)])
    for index, (score, normalizer) in enumerate(MECHANISMS)
    for turn in (0, 7)
    if score.name != "learned" or MASKS[(index + turn) % len(MASKS)] is not MASK["none"]
]


def name_of(case: Case) -> str:
    return " ".join(part.name for part in case)


def drawn(case: Case, gradient: bool) -> tuple[list[Tensor], dict[str, Any], list[Tensor]]:
    """Return query, key and value on fake CUDA, the other arguments, and all tensors that learn."""
    score, normalizer, mask = case
    with torch.device("cuda"):
        of_score, of_normalizer = (
            {name: torch.randn(shape, requires_grad=gradient) for name, shape in shapes.items()}
            for shapes in (score.shapes(score.width, score.key_width), normalizer.shapes)
        )
        widths = (QUERIES, score.width), (KEYS, score.key_width), (KEYS, 32)
        x = [torch.randn(BATCH, HEADS, *shape, requires_grad=gradient) for shape in widths]
        visible = mask.build(QUERIES, KEYS, None)  # type: ignore[arg-type]
    options = {"score": score.build(of_score), "normalizer": normalizer.build(of_normalizer), "mask": visible}
    return x, options, [*x, *of_score.values(), *of_normalizer.values()]


def expect_no_waiting(counter: Counter) -> None:
    """Fail if the processor waited for the GPU: for a number, or for a copy."""
    assert not counter.reads, dict(counter.reads)
    assert not counter.copies, dict(counter.copies)
