"""A repeated call computes what a first one does, with the choices that the first one made, whatever the mechanism."""

from itertools import product
from typing import Any

import pytest
import torch
from tests.pairs import every_pair
from torch import Tensor

import qkv
from qkv import forks
from qkv.engine.problem import Call
from qkv.errors import ForkError
from qkv.planner import plan_cache

_n, _s = qkv.normalizers, qkv.scores
KEYS, WIDTH, HEADS = 14, 8, 4
SCORES: dict[str, Any] = {
    "dot": lambda x: _s.Dot(),
    "scaled dot": lambda x: _s.ScaledDot(scale=0.3),
    "scale per head": lambda x: _s.ScaledDot(scale=x(HEADS).abs()),
    "softcap": lambda x: _s.ScaledDot(softcap=2.0),
    "cosine": lambda x: _s.Cosine(4.0),
    "bilinear": lambda x: _s.Bilinear(x(WIDTH, WIDTH)),
    "concat": lambda x: _s.Concat(x(WIDTH), x(WIDTH)),
    "squared distance": lambda x: _s.SquaredDistance(2.0),
}
NORMALIZERS = {
    "softmax": _n.Softmax(),
    "mean": _n.Mean(),
    "identity": _n.Identity(),
    "sigmoid": _n.Sigmoid(),
    "hard": _n.Hard(),
    "sparsemax": _n.Sparsemax(),
}
MASKS: dict[str, Any] = {
    "none": lambda keys: None,
    "causal": lambda keys: qkv.masks.causal(),
    "lengths": lambda keys: qkv.masks.lengths(torch.tensor(keys)),
    "both": lambda keys: qkv.masks.lengths(torch.tensor(keys)) & qkv.masks.window(3, 2),
    "dense": lambda keys: torch.arange(KEYS).expand(HEADS, KEYS, KEYS) < max(keys),
}
OTHERS = ("nothing", "bias", "dropout", "groups")
BACKENDS = ("auto", "reference", "its own")
ITS_OWN = {"softmax": "sdpa.flash", "hard": "tiled.lookup"}


def _given(names: tuple[str, ...], seed: int, keys: list[int]) -> tuple[list[Tensor], dict[str, Any]]:
    score, normalizer, mask, other, backend = names
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    heads = HEADS // 2 if other == "groups" else HEADS
    tensors = [draw(2, HEADS, KEYS, WIDTH), draw(2, heads, KEYS, WIDTH), draw(2, heads, KEYS, WIDTH)]
    options: dict[str, Any] = {
        "score": SCORES[score](draw),
        "normalizer": NORMALIZERS[normalizer],
        "mask": MASKS[mask](keys),
        "enable_gqa": other == "groups",
        "backend": ITS_OWN.get(normalizer, "auto") if backend == "its own" else backend,
    }
    if other == "bias":
        options["bias"] = draw(HEADS, KEYS, KEYS)
    if other == "dropout":
        options |= {"dropout": 0.3, "generator": torch.Generator().manual_seed(5)}
    return tensors, options


def _answers(tensors: list[Tensor], options: dict[str, Any], learns: bool) -> list[Tensor]:
    leaves = [x.clone().requires_grad_(learns) for x in tensors]
    if "generator" in options:
        options["generator"].manual_seed(5)
    output = qkv.attention(*leaves, **options)
    return [output.detach(), *(torch.autograd.grad(output.sum(), leaves) if learns else ())]


@pytest.mark.parametrize(
    ("score", "normalizer", "mask", "other", "backend"),
    every_pair(product(SCORES, NORMALIZERS, MASKS, OTHERS, BACKENDS)),
)
def test_a_repeated_call_has_the_bits_of_a_first_one(
    score: str, normalizer: str, mask: str, other: str, backend: str
) -> None:
    names = score, normalizer, mask, other, backend
    # Keys that nobody sees or that all see, equal keys, and numbers that are not finite, each in a call of its own.
    for learns, spoilt, lengths in (
        (False, None, [11, 0]),
        (True, None, [11, 0]),
        (False, torch.nan, [11, 0]),
        (False, torch.inf, [11, 0]),
        (False, 3e38, [11, 0]),
        (False, torch.nan, [KEYS, KEYS]),
    ):
        tensors, options = _given(names, 1, lengths)
        tensors[1][:, :, 3] = tensors[1][:, :, 2]
        if spoilt is not None:
            tensors[1][0, 0, 4, 1] = tensors[1][1, 0, 12, 1] = tensors[2][0, -1, 13, 2] = spoilt
            tensors[0][0, 1, 4, 2] = spoilt
        other_tensors, other_options = _given(names, 2, [13, 5])
        try:
            plan_cache.PLANS.clear()
            first = _answers(tensors, options, learns)
        except qkv.QkvError:
            pytest.skip("no such combination")
        plan_cache.PLANS.clear()
        _answers(other_tensors, other_options, learns)
        assert plan_cache.PLANS
        for mine, its in zip(_answers(tensors, options, learns), first, strict=True):
            torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("normalizer", "backend"), [("sigmoid", "auto"), ("hard", "its own"), ("softmax", "auto")])
def test_repeated_calls_ask_no_more_what_the_first_one_decided(
    normalizer: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, options = _given(("scaled dot", normalizer, "lengths", "nothing", backend), 1, [11, 9])
    plan_cache.PLANS.clear()
    expected = qkv.attention(*tensors, **options)
    (cached,) = plan_cache.PLANS.values()
    assert cached.bound is not None
    monkeypatch.setattr(plan_cache, "describe", None)
    monkeypatch.setattr(type(cached.plan), "run_outside_autocast", None)
    assert torch.equal(qkv.attention(*tensors, **options), expected)


def test_lost_threads_are_found_in_a_repeated_call(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [torch.randn(1, 8, 128, 64) for _ in range(3)]
    for _ in range(2):
        qkv.attention(*wide, normalizer=_n.Sigmoid(), backend="reference")
    monkeypatch.setattr(forks, "lost", True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    with pytest.raises(ForkError):
        qkv.attention(*wide, normalizer=_n.Sigmoid(), backend="reference")


def test_what_is_bound_holds_no_tensor_of_the_first_call() -> None:
    for normalizer in NORMALIZERS.values():
        plan_cache.PLANS.clear()
        tensors, options = _given(("scaled dot", "softmax", "lengths", "bias", "auto"), 1, [11, 9])
        qkv.attention(*tensors, **{**options, "normalizer": normalizer})
        (cached,) = plan_cache.PLANS.values()
        cells = [cell.cell_contents for cell in getattr(cached.bound, "__closure__", None) or ()]
        assert not any(isinstance(x, (Tensor, Call)) for x in cells)


@pytest.mark.parametrize("keys", [1, 5, 15, 16])
def test_lengths_of_all_keys_hide_no_nan(keys: int) -> None:
    query, key, value = torch.randn(3, 2, HEADS, keys, WIDTH, generator=torch.Generator().manual_seed(1)).unbind()
    query[0, 1, keys // 2, 2] = torch.nan
    for _ in range(2):
        output = qkv.attention(query, key, value, mask=qkv.masks.lengths(torch.tensor([keys, keys])))
        assert output[0, 1, keys // 2].isnan().all()
        assert output.isnan().sum() == WIDTH
