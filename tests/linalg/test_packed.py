"""Products by panels: the float64 product up to rounding, for all sizes and any thread per panel."""

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.compiled import openmp, thread_pool
from qkv.linalg import packed_kernel
from qkv.linalg.packed import Affine, Norm, PackedWeight, pack

pytestmark = pytest.mark.kernels

SIZES = [(1, 1, 1), (7, 3, 5), (8, 256, 32), (9, 257, 33), (64, 300, 31), (13, 1030, 70), (6, 4, 64), (64, 256, 256)]


def drawn(rows: int, terms: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, terms), torch.randn(columns, terms), torch.randn(columns)


@pytest.mark.parametrize(("rows", "terms", "columns"), SIZES)
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_that_of_float64_up_to_rounding(rows: int, terms: int, columns: int, biased: bool) -> None:
    x, weight, bias = drawn(rows, terms, columns)
    found = PackedWeight(weight).times(x, bias if biased else None)
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0)
    # Each product is rounded at most once per term in a part, plus once per part.
    bound = (x.abs().double() @ weight.abs().double().T + bias.abs().double()) * 2**-24 * (min(terms, 256) + 6)
    assert (found.double() - exact).abs().le(bound).all()


def test_parts_of_a_long_sum_round_less_than_one_chain() -> None:
    x, weight, _ = drawn(64, 1024, 64)
    exact = x.double() @ weight.double().T
    chain = np.zeros((64, 64), np.float32)
    for k in range(1024):
        chain += x[:, k : k + 1].numpy() * weight[:, k].numpy()
    found = PackedWeight(weight).times(x, None)
    assert (found - exact).square().mean().sqrt() < 0.7 * (torch.from_numpy(chain) - exact).square().mean().sqrt()


def test_leading_dimensions_stay() -> None:
    x, weight, bias = drawn(24, 40, 50)
    paneled = PackedWeight(weight)
    assert torch.equal(paneled.times(x.view(2, 3, 4, 40), bias), paneled.times(x, bias).view(2, 3, 4, 50))
    assert torch.equal(paneled.times(x.T.contiguous().T, bias), paneled.times(x, bias))


@pytest.mark.parametrize("rows", [1, 8, 11])
def test_a_row_does_not_depend_on_those_beside_it(rows: int) -> None:
    x, weight, bias = drawn(20, 300, 70)
    paneled = PackedWeight(weight)
    assert torch.equal(paneled.times(x, bias)[:rows], paneled.times(x[:rows], bias))
    spoilt = x.clone()
    spoilt[rows:] = torch.nan
    assert torch.equal(paneled.times(spoilt, bias)[:rows], paneled.times(x[:rows], bias))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("had", [True, False])
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, had: bool) -> None:
    x, weight, bias = drawn(64, 256, 1000)
    together = PackedWeight(weight).times(x, bias)
    if not had:
        monkeypatch.setattr(openmp, "available", lambda: False)
    monkeypatch.setattr(thread_pool, "thread_count", lambda: 1)
    assert torch.equal(together, PackedWeight(weight).times(x, bias))


def test_what_is_no_number_stays_in_its_row_and_column() -> None:
    x, weight, bias = drawn(9, 20, 40)
    expected = PackedWeight(weight).times(x, bias)
    x[2, 3], weight[7, 5] = torch.nan, torch.inf
    found = PackedWeight(weight).times(x, bias)
    assert found[2].isnan().all()
    others = torch.ones(9, 40, dtype=torch.bool)
    others[2], others[:, 7] = False, False
    assert torch.equal(found[others], expected[others])
    assert found[:, 7].isfinite().logical_not().all()


def follow(relu: bool, added: Tensor | None) -> Tensor:
    x, weight, bias = drawn(10, 6, 40)
    x[3, 1] = torch.nan
    numbers, places = pack([Norm(torch.ones(5), torch.zeros(5), 1e-5), Affine(weight, bias)])
    size = -(-40 // packed_kernel.WIDE) * packed_kernel.WIDE * 6
    out, sums = np.empty(400, np.float32), np.empty(packed_kernel.ROWS * packed_kernel.WIDE, np.float32)
    beside = np.empty(0, np.float32) if added is None else added.view(-1).numpy()
    place = int(places[1])
    given = (10, 6, 40, x.view(-1).numpy(), numbers, place, numbers, place + size, relu, beside, out, sums)
    packed_kernel.product_alone.at(np.float32)(0, -(-40 // packed_kernel.WIDE), *given)
    return torch.from_numpy(out).view(10, 40)


def test_what_follows_a_product() -> None:
    plain, added = follow(False, None), torch.randn(10, 40)
    assert torch.equal(torch.nan_to_num(follow(True, None), -1), torch.nan_to_num(plain.relu(), -1))
    assert torch.equal(torch.nan_to_num(follow(False, added)), torch.nan_to_num(plain + added))
    assert plain.isnan().any(1).nonzero().tolist() == [[3]]
