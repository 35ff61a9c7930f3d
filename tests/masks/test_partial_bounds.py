"""An interval of keys beside any condition leaves out columns, and changes nothing else."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from tests.contract.calls import near
from tests.here import here

from qkv.engine.tiles import CACHED, Tiling
from qkv.functional import attention
from qkv.masks.base import Grid, Mask
from qkv.masks.lower import lower
from qkv.masks.patterns import causal, dense, documents, lengths, window

N, LEADING = 40, (2, 3)
PARTS: tuple[Callable[[Random], Mask], ...] = (
    lambda r: causal(r.randrange(-3, 4)),
    lambda r: window(r.randrange(6), r.randrange(6)),
    lambda r: lengths(torch.tensor([r.randrange(N + 1), r.randrange(N + 1)])),
    lambda r: documents(torch.tensor([r.randrange(3) for _ in range(N)])),
    lambda r: dense(torch.tensor([r.random() < 0.7 for _ in range(2 * N * N)]).view(2, 1, N, N)),
    lambda r: ~window(1, 1),
    lambda r: window(0, 2) | causal(-9),
)


def drawn(seed: int) -> Mask:
    r = Random(seed)
    mask = r.choice(PARTS)(r)
    for _ in range(r.randrange(3)):
        mask = mask & r.choice(PARTS)(r)
    return mask


@pytest.mark.parametrize("readable", [True, False])
@pytest.mark.parametrize("start", range(0, 120, 30))
def test_what_follows_from_a_mask_is_that_of_its_matrix(start: int, readable: bool) -> None:
    for seed in range(start, start + 30):
        seen = lower(drawn(seed), Grid(LEADING, N, N, torch.device("cpu")), readable)
        matrix = seen.tile(slice(None), slice(None))
        whole = torch.ones(*LEADING, N, N, dtype=torch.bool) if matrix is None else matrix.expand(*LEADING, N, N)
        for found, expected in (
            (seen.rows_with_keys(), whole.any(-1)),
            (seen.keys_with_queries(), whole.any(-2)),
            (seen.count(), whole.sum(-1)),
        ):
            assert torch.equal(torch.ones_like(expected) if found is None else found.expand(expected.shape), expected)
        for slices, visible in Tiling(LEADING, N, N, seen, CACHED._replace(scores=200, min_rows=3)):
            part = whole[(*slices.items, slices.rows)]
            inside = part[..., slices.columns]
            assert torch.equal(inside if visible is None else visible.expand(inside.shape), inside)
            assert part.sum() == inside.sum()


def test_a_neighborhood_has_narrow_tiles() -> None:
    """Without the bounds each would have all columns."""
    mask = window(3, 3) & ~window(1, 1)
    seen = lower(mask, Grid((), 4096, 4096, torch.device("cpu")), readable=True)
    widths = [slices.columns.stop - slices.columns.start for slices, _ in Tiling((), 4096, 4096, seen)]
    assert max(widths) < 2048


@pytest.mark.parametrize("backend", here("blocked", "rowwise", "auto"))
def test_attention_is_that_of_the_equation(backend: str) -> None:
    for seed in range(20):
        tensors = [x.requires_grad_() for x in torch.randn(3, *LEADING, N, 4, dtype=torch.float64).unbind()]
        outputs = [attention(*tensors, mask=drawn(seed), backend=name) for name in (backend, "reference")]
        found = [[x, *torch.autograd.grad(x.sin().sum(), tensors)] for x in outputs]
        assert all(near(x, y) for x, y in zip(*found, strict=True)), seed
