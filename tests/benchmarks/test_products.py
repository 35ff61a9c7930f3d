"""The floor of a training step is its matrix products; cells of dot products are judged by both limits."""

import time
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import dot_products, train


def test_the_floor_holds_every_product_of_a_step() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)

    def step() -> None:
        layer(x).sum().backward()

    run = train.floor(step)
    operands = next(cell.cell_contents for cell in run.__closure__ if isinstance(cell.cell_contents, train._Operands))
    shapes = {(left.shape[0], left.shape[1], right.shape[1]) for left, right in operands.found}
    assert shapes in ({(3, 5, 7), (3, 7, 5), (7, 3, 5)}, {(3, 5, 7), (3, 7, 5), (5, 3, 7)})
    run()


@pytest.mark.parametrize(
    ("theirs", "ours", "slower"),
    [(1.0, 1.02, False), (1.0, 1.05, True), (0.1, 0.105, False), (0.1, 0.115, True)],
)
def test_a_cell_is_slower_by_a_ratio_if_long_and_by_microseconds_if_short(
    theirs: float, ours: float, slower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(*_: Any) -> dict[str, list[float]]:
        return {"PyTorch": [theirs] * 5, "qkv": [ours] * 5}

    monkeypatch.setattr(dot_products, "by_turns", timed)
    row = dot_products.measure(dot_products.Cell(512, 1, "causal", "forward"), 0.0, time.perf_counter)
    assert row["slower"] == slower
    assert row["algorithm"] == "sdpa.flash"


def test_cells_are_bounded_by_their_pairs() -> None:
    found = list(dot_products.cells(4 * 512 * 512))
    assert {(cell.keys, cell.heads) for cell in found} >= {(64, 64), (512, 4), (1024, 1)}
    assert all(cell.heads * cell.keys**2 <= 4 * 512 * 512 for cell in found)
