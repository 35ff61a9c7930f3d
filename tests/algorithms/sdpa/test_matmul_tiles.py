"""Tiles of a plain softmax: as exact as the equation, for any layout, and no better known than once differentiated."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import qkv
from qkv.algorithms.sdpa import matmul_tiles
from qkv.errors import UnsupportedError
from qkv.planner import choice
from qkv.scores import Bilinear, Cosine, Gaussian, ScaledDot, Score

TOLD = "PyTorch's own softmax between products of tiles"


@pytest.fixture(autouse=True)
def on_a_processor_that_favors_them(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(matmul_tiles, "_quick", lambda: True)
    choice._remembered.cache_clear()
    yield
    choice._remembered.cache_clear()


def drawn(leading: tuple[int, ...], queries: int, keys: int, width: int = 16, value_width: int = 24) -> list[Tensor]:
    shapes = ((queries, width), (keys, width), (keys, value_width))
    return [torch.randn(*leading, *shape, requires_grad=True) for shape in shapes]


def passes(score: Score, tensors: list[Tensor], backend: str) -> tuple[Tensor, ...]:
    output = qkv.attention(*tensors, score=score, backend=backend)
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    return (output.detach(), *torch.autograd.grad(output, tensors, cotangent.to(output.dtype)))


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


@pytest.mark.parametrize("score", [ScaledDot(), ScaledDot(scale=torch.tensor(0.3)), Cosine(8.0)])
@pytest.mark.parametrize(
    ("leading", "queries", "keys"), [((), 400, 400), ((2, 3), 130, 1100), ((3,), 1100, 130), ((1,), 150, 2500)]
)
def test_as_exact_as_the_equation(score: Score, leading: tuple[int, ...], queries: int, keys: int) -> None:
    tensors = drawn(leading, queries, keys)
    assert TOLD in " ".join(str(qkv.explain(*tensors, score=score, backend="rowwise")).split())
    exact = passes(score, [x.detach().double().requires_grad_() for x in tensors], "reference")
    own, literal = passes(score, tensors, "rowwise"), passes(score, tensors, "reference")
    for o, m, r in zip(own, literal, exact, strict=True):
        allowed = 2 * 2**-24 * float(r.abs().max())
        assert rms(o - r) <= 1.5 * rms(m - r) + allowed
        assert float((o - r).abs().max()) <= 3 * float((m - r).abs().max()) + allowed


def test_memory_may_lie_as_it_likes() -> None:
    """Heads beside each other, keys of all items one and the same, a bilinear query that is wider than its key."""
    flat = torch.randn(2, 400, 3 * 16)
    query, key, value = flat.view(2, 400, 3, 16).transpose(1, 2), torch.randn(400, 8), torch.randn(2, 1, 8, 400).mT
    tensors = [x.detach().requires_grad_() for x in (query, key, value)]
    score = Bilinear(torch.randn(16, 8) / 8)
    for o, m in zip(passes(score, tensors, "rowwise"), passes(score, tensors, "reference"), strict=True):
        torch.testing.assert_close(o, m, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_each_gradient_alone_has_the_same_bits(wanted: tuple[bool, ...]) -> None:
    tensors = drawn((2,), 400, 400)
    whole = passes(ScaledDot(), tensors, "rowwise")[1:]
    alone = [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]
    output = qkv.attention(*alone, backend="rowwise")
    cotangent = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    place = wanted.index(True)
    assert torch.equal(torch.autograd.grad(output, alone[place], cotangent)[0], whole[place])


def test_no_visible_nan_is_lost() -> None:
    query, key, value = (x.detach() for x in drawn((), 400, 400))
    key[7, 3] = torch.nan
    assert qkv.attention(query, key, value, backend="rowwise").isnan().all()


def test_distances_go_by_them_where_their_guard_holds() -> None:
    tensors = drawn((2,), 400, 400)
    score = Gaussian(8.0)
    assert TOLD in " ".join(str(qkv.explain(*tensors, score=score, backend="rowwise")).split())
    for o, m in zip(passes(score, tensors, "rowwise"), passes(score, tensors, "reference"), strict=True):
        torch.testing.assert_close(o, m, rtol=1e-4, atol=1e-5)


def test_chosen_where_they_are_the_faster_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = drawn((1, 8), 1024, 1024, 64, 64)
    assert qkv.explain(*tensors).backend == "rowwise"
    assert qkv.explain(*tensors, mask=qkv.masks.causal()).backend == "sdpa"
    assert qkv.explain(*drawn((1, 8), 256, 256, 64, 64)).backend != "rowwise"
    choice._remembered.cache_clear()
    monkeypatch.setattr(matmul_tiles, "_quick", lambda: False)
    assert qkv.explain(*tensors).backend == "sdpa"


def test_a_second_derivative_names_the_backend() -> None:
    query, key, value = drawn((), 400, 400)
    (gradient,) = torch.autograd.grad(
        qkv.attention(query, key, value, backend="rowwise").sum(), value, create_graph=True
    )
    with pytest.raises(UnsupportedError, match="rowwise"):
        gradient.sum().backward()
