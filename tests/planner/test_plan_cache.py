"""A cached plan gives a call the same result as a new one, and errors do not change."""

import gc
import weakref
from typing import Any

import pytest
import torch
from tests.here import here
from torch import Tensor

import qkv
from qkv.engine.describe import Arguments
from qkv.errors import ConfigError, ShapeError
from qkv.planner import plan_cache
from qkv.scores import ScaledDot

Q, D = 12, 8
GIVEN: dict[str, dict[str, Any]] = {
    "scaled dot": {},
    "causal": {"mask": qkv.masks.causal()},
    "cap": {"score": qkv.scores.ScaledDot(softcap=3.0)},
    "boxcar": {"score": qkv.scores.Boxcar(4.0)},
    "sink": {"normalizer": qkv.normalizers.Softmax(torch.zeros(2))},
    "sigmoid": {"normalizer": qkv.normalizers.Sigmoid()},
    "bias": {"bias": torch.linspace(-1, 1, Q * Q).view(Q, Q)},
    "bilinear": {"score": qkv.scores.Bilinear(torch.eye(D))},
    "alibi": {"bias": qkv.biases.alibi(0.5)},
    "relative": {"bias": qkv.biases.relative(torch.linspace(-1, 1, 7))},
    "lengths": {"mask": qkv.masks.lengths(torch.tensor([7]))},
    "window": {"mask": qkv.masks.window(2, 3)},
}


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    plan_cache.PLANS.clear()


def inputs(**options: Any) -> tuple[Tensor, ...]:
    return torch.randn(3, 1, 2, Q, D, **options).unbind()


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_second_call_that_looks_the_same_computes_its_own_numbers(given: dict[str, Any]) -> None:
    qkv.attention(*inputs(), **given)
    assert plan_cache.PLANS
    second = inputs()
    found = qkv.attention(*second, **given)
    plan_cache.PLANS.clear()
    assert torch.equal(found, qkv.attention(*second, **given))


def test_numbers_of_a_mechanism_tell_calls_apart_and_those_in_its_tensors_do_not() -> None:
    x = inputs()
    for bandwidth in (0.5, 50.0):
        expected = qkv.attention(*x, score=qkv.scores.Boxcar(bandwidth), backend="reference")
        assert torch.allclose(qkv.attention(*x, score=qkv.scores.Boxcar(bandwidth)), expected)
    for sink in (torch.zeros(2), torch.full((2,), 3.0)):
        normalizer = qkv.normalizers.Softmax(sink)
        expected = qkv.attention(*x, normalizer=normalizer, backend="reference")
        assert torch.allclose(qkv.attention(*x, normalizer=normalizer), expected, atol=1e-6)


def test_whether_a_gradient_is_wanted_tells_calls_apart() -> None:
    assert not qkv.attention(*inputs()).requires_grad
    leaves = [x.requires_grad_() for x in inputs()]
    assert qkv.attention(*leaves).requires_grad
    with torch.no_grad():
        assert not qkv.attention(*leaves).requires_grad


def test_what_inference_mode_made_serves_later_training() -> None:
    with torch.inference_mode():
        qkv.attention(*inputs(), mask=qkv.masks.causal(), normalizer=qkv.normalizers.Sigmoid())
    leaves = [x.requires_grad_() for x in inputs()]
    qkv.attention(*leaves, mask=qkv.masks.causal(), normalizer=qkv.normalizers.Sigmoid()).sum().backward()
    assert leaves[0].grad is not None


LENGTHS = ([12, 12], [12, 5], [0, 12], [0, 0])


@pytest.mark.parametrize("backend", here("auto", "sdpa", "rowwise", "blocked", "reference"))
def test_a_mask_that_is_used_again_and_changed_in_place_gives_what_a_new_one_gives(backend: str) -> None:
    query, key, value = (x.expand(2, *x.shape[1:]).contiguous() for x in inputs())
    keys = torch.tensor(LENGTHS[0])
    mask = qkv.masks.lengths(keys)
    with torch.inference_mode():
        qkv.attention(query, key, value, mask=mask, backend=backend)
    for lengths in LENGTHS:
        keys.copy_(torch.tensor(lengths))
        hidden = torch.arange(Q) >= keys[:, None, None, None]
        dirty = torch.where(hidden.mT, torch.nan, key).requires_grad_()
        expected = qkv.attention(query, key, value, mask=~hidden, backend="reference")
        for _ in range(2):
            found = qkv.attention(query, dirty, value, mask=mask, backend=backend)
            assert torch.allclose(found, expected, atol=1e-5)
            found.sum().backward()
            assert dirty.grad is not None
            assert dirty.grad.isfinite().all()


def test_nothing_of_a_call_is_held() -> None:
    tensors = {
        "mask": torch.tensor([7]),
        "sink": torch.zeros(2, requires_grad=True),
        "scale": torch.ones(2),
        "bias": torch.zeros(2, Q, Q),
        "query": torch.randn(1, 2, Q, D),
    }
    query, key, value = inputs()
    for _ in range(2):
        options = {"score": ScaledDot(tensors["scale"]), "normalizer": qkv.normalizers.Softmax(tensors["sink"])}
        qkv.attention(tensors["query"], key, value, mask=qkv.masks.lengths(tensors["mask"]), **options)
        qkv.attention(query, key, value, bias=tensors["bias"])
    assert plan_cache.PLANS
    held = {name: weakref.ref(x) for name, x in tensors.items()}
    tensors.clear()
    options.clear()
    gc.collect()
    assert not [name for name, reference in held.items() if reference() is not None]


def test_errors_come_every_time() -> None:
    query, key, value = inputs()
    qkv.attention(query, key, value)
    for _ in range(2):
        with pytest.raises(ShapeError):
            qkv.attention(query, key[..., :3], value)
        with pytest.raises(ConfigError):
            qkv.attention(query, key, value, dropout=None)  # type: ignore[arg-type]


def test_autocast_and_vmap_are_looked_at_by_themselves() -> None:
    x = inputs()
    qkv.attention(*x)
    with torch.autocast("cpu", torch.bfloat16):
        assert qkv.attention(*x).dtype == torch.bfloat16
    mapped = torch.func.vmap(qkv.attention)(*(y.unsqueeze(0) for y in x))
    assert torch.allclose(mapped[0], qkv.attention(*x), atol=1e-6)


def test_only_so_many_kinds_of_calls_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST", 2)
    for length in range(1, 6):
        qkv.attention(*(x[..., :length, :] for x in inputs()))
    assert 0 < len(plan_cache.PLANS) <= 2


def test_the_number_of_threads_tells_calls_apart() -> None:
    """By it some passes decide whether each thread has enough to do."""
    before, given = torch.get_num_threads(), (Arguments(ScaledDot(), None, None, None, 0.0, None, False), None, "auto")
    try:
        torch.set_num_threads(1)
        one = plan_cache.cache_key(*inputs(), *given)
        torch.set_num_threads(2)
        assert one is not None
        assert plan_cache.cache_key(*inputs(), *given) != one
    finally:
        torch.set_num_threads(before)
