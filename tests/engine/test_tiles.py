"""Tiles cover what rows may see, in few widths, and what one of them frees fits the next."""

import pytest
import torch

from qkv.engine.tiles import WIDTHS, Tiling
from qkv.masks.base import Grid, Mask
from qkv.masks.lower import lower
from qkv.masks.patterns import causal, documents, lengths, span, window

N = 9000
MASKS = {
    "none": None,
    "causal": causal(),
    "from the diagonal on": window(0, N),
    "window": window(2100, 50),
    "lengths": lengths(torch.tensor([N, 700])),
    "span": span(torch.tensor([0, 300]), torch.tensor([N, N])),
    "documents": documents(torch.arange(N) // 2500),
}


def _tiling(mask: Mask | None, queries: int = N, keys: int = N) -> Tiling:
    leading = (2,)
    return Tiling(leading, queries, keys, lower(mask, Grid(leading, queries, keys, torch.device("cpu"))))


def _widths(tiling: Tiling) -> list[int]:
    return [tile.slices.columns.stop - tile.slices.columns.start for tile in tiling.widest_first()]


@pytest.mark.parametrize("mask", MASKS)
def test_tiles_cover_all_that_their_rows_may_see(mask: str) -> None:
    tiling = _tiling(MASKS[mask])
    for tile in tiling.widest_first():
        columns = tile.slices.columns
        first = 0 if tile.first is None else int(tile.first.min())
        last = N if tile.last is None else int(tile.last.max())
        assert columns.start <= max(first, 0)
        assert columns.stop >= min(last, N)


@pytest.mark.parametrize("mask", MASKS)
def test_the_order_changes_no_tile(mask: str) -> None:
    tiling = _tiling(MASKS[mask])
    places = [str(tile.slices) for tile in tiling.widest_first()]
    assert sorted(places) == sorted(str(slices) for slices, _ in tiling)


@pytest.mark.parametrize("mask", ["causal", "from the diagonal on"])
def test_no_tile_is_wider_than_the_one_before(mask: str) -> None:
    widths = _widths(_tiling(MASKS[mask]))
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) > 1


def test_twice_the_keys_add_eight_widths() -> None:
    counts = [
        len({width for width in _widths(_tiling(causal(), n, n)) if width > WIDTHS}) for n in (8192, 16384, 32768)
    ]
    assert counts[1] - counts[0] == counts[2] - counts[1] == 8
