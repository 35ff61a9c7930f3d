"""What the attributes of a user-defined mask mean is known to it alone; its methods count."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.mechanisms import ON_CPU
from tests.pairs import in_turn
from torch import Tensor

import qkv
from qkv.errors import MaskError
from qkv.masks.base import Both, Bounds, Dense, Either, Grid, Inverse, Mask
from qkv.masks.patterns import Causal, Documents, Lengths, Span, Window, causal, dense, documents, lengths, span

H, Q, K = 2, 5, 7
NAMES = sorted(
    {
        field
        for kind in (Both, Either, Inverse, Dense, Causal, Documents, Lengths, Span, Window)
        for field in kind.__dataclass_fields__
    }
    | {"mask", "whole", "parts", "grid"}
)
"""Every attribute that a mask of this package has, and some more."""
HELD: dict[str, Callable[[], Any]] = {
    "a table of other sizes": lambda: dense(torch.ones(3, 4, dtype=torch.bool)),
    "a large length": lambda: lengths(torch.tensor([100, 3])),
    "a combination of other sizes": lambda: dense(torch.ones(2, 3, dtype=torch.bool)) & lengths(50),
    "documents of other sizes": lambda: ~documents(torch.tensor([0, 1, 1])),
    "a table of other sizes elsewhere": lambda: dense(torch.ones(3, 4, dtype=torch.bool, device="meta")),
}


class Pooled(Mask):
    """Every second key, whatever else it holds."""

    def __init__(self, name: str, held: object) -> None:
        setattr(self, name, held)

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return (columns_K % 2 == 0) & (rows_Q1 >= 1)


TABLE = (torch.arange(K) % 2 == 0) & (torch.arange(Q)[:, None] >= 1)
COMBINED: dict[str, tuple[Callable[[Mask], Mask], Tensor]] = {
    "alone": (lambda mask: mask, TABLE),
    "and": (lambda mask: mask & causal(1), TABLE & (torch.arange(K) <= torch.arange(Q)[:, None] + 1)),
    "or": (lambda mask: span(3) | mask, TABLE | (torch.arange(K) >= 3)),
    "not": (lambda mask: ~mask, ~TABLE),
}


@pytest.mark.parametrize(("name", "held"), in_turn(NAMES, HELD, every=3))
def test_attributes_of_any_name_mean_nothing_here(name: str, held: str) -> None:
    query, key = torch.randn(2, H, max(Q, K), 4, generator=torch.Generator().manual_seed(0)).unbind()
    query, key = query[:, :Q], key[:, :K]
    for combine, table in COMBINED.values():
        mask = combine(Pooled(name, HELD[held]()))
        expected = qkv.attention(query, key, key, mask=table, backend="reference")
        for backend in ("auto", "reference", "blocked", "sdpa"):
            assert torch.allclose(qkv.attention(query, key, key, mask=mask, backend=backend), expected, atol=1e-6)
        assert torch.equal(qkv.attention_map(query, key, mask=mask).dense() > 0, table.expand(H, Q, K))


@pytest.mark.parametrize("backend", ON_CPU)
def test_every_backend_that_serves(backend: str) -> None:
    query, key = torch.randn(2, H, Q, 4, generator=torch.Generator().manual_seed(0)).unbind()
    for name in ("left", "inner"):
        mask, plain = (Pooled(name, held) for held in (HELD["a large length"](), None))
        try:
            expected = qkv.attention(query, key, key, mask=plain, backend=backend)
        except qkv.errors.UnsupportedError:
            continue
        assert torch.equal(qkv.attention(query, key, key, mask=mask, backend=backend), expected)


class Shifted(Mask):
    """The mask of a longer sequence, of which these are the last keys."""

    def __init__(self, inner: Mask, before: int) -> None:
        self.inner, self.before = inner, before

    def _grid(self, grid: Grid) -> Grid:
        return grid._replace(keys=grid.keys + self.before)

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.inner.visible(self._grid(grid), rows_Q1, columns_K + self.before)

    def inside(self, grid: Grid) -> list[tuple[Mask, Grid]]:
        return [(self.inner, self._grid(grid))]


class ShiftedBounds(Shifted):
    def bounds(self, grid: Grid) -> Bounds | None:
        bounds = self.inner.bounds(self._grid(grid))
        return bounds and Bounds(*(None if x is None else (x - self.before).clamp(0, grid.keys) for x in bounds))


@pytest.mark.parametrize("kind", [Shifted, ShiftedBounds])
def test_a_mask_that_says_what_it_consists_of_is_checked_against_those_sizes(kind: type[Shifted]) -> None:
    query, key = torch.randn(1, H, Q, 4), torch.randn(1, H, K, 4)
    seen = torch.arange(K) + 3 < 8
    expected = qkv.attention(query, key, key, mask=seen)
    assert torch.allclose(qkv.attention(query, key, key, mask=kind(lengths(8), 3)), expected, atol=1e-6)
    table = torch.ones(Q, K + 3, dtype=torch.bool)
    assert torch.allclose(
        qkv.attention(query, key, key, mask=kind(dense(table), 3)), qkv.attention(query, key, key), atol=1e-6
    )
    with pytest.raises(MaskError, match=r"lengths\(keys\): expected lengths from 0 to 10"):
        qkv.attention(query, key, key, mask=kind(lengths(11), 3))
    with pytest.raises(MaskError):
        qkv.attention(query, key, key, mask=kind(dense(table[:, 3:]), 3))
