"""The downsampled map: levels, statistics, samples that become exact, work that can be canceled."""

import threading

import pytest
import torch
from torch.nn import functional as F

import qkv
from qkv.view.answers.background import Background
from qkv.view.answers.byte_lru import ByteLRU
from qkv.view.answers.head import head_of
from qkv.view.answers.pyramid import Pyramid, TileIndex
from qkv.view.answers.weights import HeadWeights
from qkv.view.scene import Layer

ROWS, COLUMNS = 1100, 1300


def layer(state=False):
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, ROWS, 8, generator=generator), torch.randn(2, COLUMNS, 8, generator=generator)
    mask = qkv.masks.causal(200)
    given = qkv.attention_with_state(query, key, key, mask=mask)[1] if state else None
    return Layer("one", "cross", "a", "b", query, key, key, {"mask": mask}, given)


@pytest.fixture(scope="module")
def whole():
    return layer().map().dense()


def pooled(weights, level, how):
    block = 1 << level
    padded = F.pad(weights, (0, -COLUMNS % block, 0, -ROWS % block), value=torch.nan)
    blocks = padded.view(padded.shape[0] // block, block, -1, block).transpose(1, 2).flatten(2)
    return blocks.nan_to_num(-1).amax(-1) if how == "max" else blocks.nanmean(-1)


@pytest.mark.parametrize("state", [False, True])
def test_every_level_is_the_pooled_matrix(state, whole):
    pyramid = Pyramid(HeadWeights(head_of(layer(state), 1)))
    pyramid.finish()
    assert pyramid.levels == 4
    for level in range(4):
        for how in ("mean", "max"):
            expected = pooled(whole[1], level, how)
            row, column = ((size - 1) // 256 for size in expected.shape)
            for place in {TileIndex(level, 0, 0), TileIndex(level, row, column)}:
                found, exact = pyramid.tile(place, how)
                assert exact
                part = expected[256 * place.row : 256 * place.row + 256, 256 * place.column : 256 * place.column + 256]
                torch.testing.assert_close(found, part, rtol=1e-5, atol=1e-7)


def test_tracks_are_the_statistics_of_the_matrix(whole):
    pyramid = Pyramid(HeadWeights(head_of(layer(), 0)))
    pyramid.finish()
    weights = whole[0].double()
    torch.testing.assert_close(pyramid.track("received")[0], weights.sum(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pyramid.track("peak")[0].double(), weights.amax(1), rtol=1e-5, atol=1e-6)
    entropy = -torch.special.xlogy(weights, weights).sum(1)
    torch.testing.assert_close(pyramid.track("entropy")[0].double(), entropy, rtol=1e-4, atol=1e-5)


def test_samples_are_labeled_and_give_way_to_exact_rows(whole):
    pyramid = Pyramid(HeadWeights(head_of(layer(), 0)))
    top = pyramid.levels - 1
    expected = pooled(whole[0], top, "mean")
    sample, exact = pyramid.tile(TileIndex(top, 0, 0), "mean")
    assert not exact
    assert sample.sum().item() == pytest.approx(expected.sum().item(), rel=0.2)
    assert not pyramid.track("entropy")[1]
    assert pyramid.advance(lambda: True)
    ready = pyramid.done >> top
    mixed, exact = pyramid.tile(TileIndex(top, 0, 0), "mean")
    assert not exact
    torch.testing.assert_close(mixed[:ready], expected[:ready], rtol=1e-5, atol=1e-7)


def test_stopping_loses_no_finished_row():
    pyramid = Pyramid(HeadWeights(head_of(layer(), 0)))
    assert pyramid.advance(lambda: True)
    done = pyramid.done
    assert not pyramid.advance(lambda: False)
    assert pyramid.done == done
    assert not pyramid.exact


def test_the_background_finishes_cancels_and_resumes():
    background = Background(on_error=pytest.fail)
    first, second = (Pyramid(HeadWeights(head_of(layer(True), head))) for head in range(2))
    with background.paused():
        background.ask(first)
        background.ask(second)
        assert background.state(second) == "running"
        background.cancel(first)
        assert background.state(first) == "cancelled"
    for _ in range(600):
        if background.state(second) == "exact":
            break
        threading.Event().wait(0.05)
    assert background.state(second) == "exact"
    assert background.state(first) == "cancelled"
    background.resume(first)
    for _ in range(600):
        if first.exact:
            break
        threading.Event().wait(0.05)
    assert first.exact
    background.close()


def test_what_cannot_be_computed_is_told():
    told = []
    background = Background(told.append)
    pyramid = Pyramid(HeadWeights(head_of(layer(True), 0)))
    pyramid.advance = lambda keep_going: 1 / 0
    background.ask(pyramid)
    for _ in range(600):
        if told:
            break
        threading.Event().wait(0.05)
    background.close()
    assert isinstance(told[0], ZeroDivisionError)
    assert background.state(pyramid) == "failed"


def test_what_is_kept_never_takes_more_than_the_limit():
    gone = []
    kept = ByteLRU[bytes](10, len, gone.append)
    for number in range(9):
        kept.get(number, lambda: b"1234")
        assert kept.bytes <= 10
    assert len(gone) == 7
    assert kept.get("large", lambda: b"12345678901") == b"12345678901"
    assert kept.bytes == 11


@pytest.mark.parametrize("known", [False, True])
def test_the_work_of_a_sampled_tile_is_bounded_at_every_level(known, monkeypatch):
    """Rows whose states are known take no pass over their keys, so that more weights of them can be drawn."""
    length, drawn = 16384, []
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 1, length, 2, generator=generator).unbind()
    state = qkv.attention_with_state(query, key, key, mask=qkv.masks.causal())[1] if known else None
    pyramid = Pyramid(
        HeadWeights(head_of(Layer("one", "self", "a", "a", query, key, key, {"mask": qkv.masks.causal()}, state), 0))
    )
    monkeypatch.setattr(
        pyramid.weights,
        "rows",
        lambda places: drawn.append(len(places)) or (lambda some: torch.ones(len(places), some.stop - some.start)),
    )
    for level in range(pyramid.base, pyramid.levels):
        high, wide = pyramid.size(level)
        _, exact = pyramid.tile(TileIndex(level, 0, 0), "mean")
        assert not exact
        rows, columns = drawn.pop(), min(256, wide) << level
        assert rows % min(256, high) == 0
        assert rows * (columns if known else columns + length) <= (1 << 23 if known else 3 << 23)
        assert rows >= 2 * min(256, high), "one row tells little of a cell"
