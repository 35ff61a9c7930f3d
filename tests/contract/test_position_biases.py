"""Biases from positions with every score, normalizer, mask, dtype and layout: the matrix they stand for, added by hand.

The judge is written here, in float64: scores, bias and weights by their equations, gradients by PyTorch's autograd.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.calls import refused
from tests.here import here
from torch import Tensor

import qkv
from qkv.algorithms.rowwise import row_tiles
from qkv.algorithms.tiled import position_tiles, user_scores
from qkv.biases import Bias
from qkv.engine import tiles
from qkv.linalg import toeplitz
from qkv.planner.registry import BACKENDS
from qkv.values.parameters import Parameter

S, N, M = qkv.scores, qkv.normalizers, qkv.masks
H, D, A, REACH = 4, 3, 5, 4
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.1}

Tensors = dict[str, Tensor]


class Squares(Bias):
    """−m·|⌊i/3⌋ − ⌊j/2⌋|, no function of j − i."""

    parameters = (Parameter("slopes", 0),)

    def __init__(self, slopes: Tensor) -> None:
        self.slopes = slopes

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return -self.slopes[..., None, None] * (rows_Q1 // 3 - columns_K // 2).abs()


def closing_over(slopes: Tensor) -> Bias:
    """The same bias, whose slopes no field names."""

    class Closure(Bias):
        def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
            return -slopes[..., None, None] * (rows_Q1 // 3 - columns_K // 2).abs()

    return Closure()


def steps(queries: int, keys: int) -> Tensor:
    return torch.arange(keys) - torch.arange(queries)[:, None]


def blocks(queries: int, keys: int) -> Tensor:
    return (torch.arange(queries)[:, None] // 3 - torch.arange(keys) // 2).abs()


def of_slopes(x: Tensor, queries: int, keys: int) -> Tensor:
    return -x[..., None, None] * blocks(queries, keys)


BIASES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Bias], Callable[[Tensor, int, int], Tensor]]] = {
    "alibi": ((H,), qkv.biases.alibi, lambda x, q, k: -x[..., None, None] * steps(q, k).abs()),
    "alibi of one slope": (
        (),
        lambda x: qkv.biases.alibi(x, offset=2),
        lambda x, q, k: -x * (steps(q, k) - 2).abs(),
    ),
    "relative": (
        (H, 2 * REACH + 1),
        qkv.biases.relative,
        lambda x, q, k: x[..., steps(q, k).clamp(-REACH, REACH) + REACH],
    ),
    "relative of one table": (
        (2 * REACH + 1,),
        lambda x: qkv.biases.relative(x, offset=-1),
        lambda x, q, k: x[(steps(q, k) + 1).clamp(-REACH, REACH) + REACH],
    ),
    "yours": ((H,), Squares, of_slopes),
    "yours, a closure": ((H,), closing_over, of_slopes),
}
"""The shape of what a bias is made of, whose H is missing where there are no heads; the bias, and its matrix."""

SCORES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "scaled dot": (lambda p: S.ScaledDot(), lambda q, k, p: q @ k.mT / D**0.5),
    "softcap": (lambda p: S.ScaledDot(softcap=1.5), lambda q, k, p: 1.5 * torch.tanh(q @ k.mT / D**0.5 / 1.5)),
    "bilinear": (lambda p: S.Bilinear(p[:D]), lambda q, k, p: q @ p[:D] @ k.mT),
    "additive": (
        lambda p: S.Additive(p[0], p[:D].T, p[:D].T),
        lambda q, k, p: torch.tanh((q @ p[:D])[..., :, None, :] + (k @ p[:D])[..., None, :, :]) @ p[0],
    ),
    "concat": (
        lambda p: S.Concat(p[0], p[1]),
        lambda q, k, p: ((q @ p[0])[..., None] + (k @ p[1])[..., None, :]).relu(),
    ),
    "distance": (
        lambda p: S.SquaredDistance(1.5),
        lambda q, k, p: -(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 4.5,
    ),
    "uniform": (lambda p: S.Uniform(), lambda q, k, p: torch.ones_like(q @ k.mT)),
    "yours": (lambda p: lambda q, k: torch.tanh(q @ p[:D] @ k.mT), lambda q, k, p: torch.tanh(q @ p[:D] @ k.mT)),
}
"""The score and its equation, of parameters (D + 2, D)."""


def masked(weigh: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Weights of the visible scores; 0 in a row that sees nothing."""

    def weights(s: Tensor, seen: Tensor) -> Tensor:
        alive = seen.any(-1, keepdim=True)
        # A row that sees nothing gets a score, and loses its weight again.
        return weigh(torch.where(seen, s, torch.where(alive, -torch.inf, 0.0))).masked_fill(~seen, 0)

    return weights


def sparsemax(s: Tensor) -> Tensor:
    """The projection on the simplex, by sorting."""
    ordered = s.sort(-1, descending=True).values.clamp(min=-1e9)
    sums, count = ordered.cumsum(-1), torch.arange(1, s.shape[-1] + 1)
    kept = (1 + count * ordered > sums).sum(-1, keepdim=True)
    return (s - (sums.gather(-1, kept - 1) - 1) / kept).relu()


def with_sink(s: Tensor) -> Tensor:
    return torch.softmax(torch.cat([s, torch.full_like(s[..., :1], 0.3)], -1), -1)[..., :-1]


NORMALIZERS: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "softmax": (N.Softmax(), masked(lambda s: torch.softmax(s, -1))),
    "sink": (N.Softmax(0.3), masked(with_sink)),
    "sparsemax": (N.Sparsemax(), masked(sparsemax)),
    "sigmoid": (N.Sigmoid(-0.5), lambda s, seen: torch.sigmoid(s - 0.5) * seen),
    "mean": (N.Mean(), lambda s, seen: s * seen / seen.expand_as(s).sum(-1, keepdim=True).clamp(min=1)),
    "identity": (N.Identity(), lambda s, seen: s * seen),
}


def mask_of(name: str, queries: int, keys: int) -> tuple[Any, Tensor]:
    """The mask and its matrix."""
    step = steps(queries, keys)
    scattered = torch.rand(queries, keys, generator=torch.Generator().manual_seed(queries + keys)) < 0.5
    return {
        "none": (None, torch.ones_like(step, dtype=torch.bool)),
        "causal": (M.causal(), step <= 0),
        "causal with a cache": (M.causal(2), step <= 2),
        "window": (M.window(3, 1), (step <= 1) & (step >= -3)),
        "lengths": (M.lengths(keys - 1), (step * 0 + torch.arange(keys)) < keys - 1),
        "dense": (M.dense(scattered), scattered),
        "of tiles": (M.window(1, 1) | M.dense(scattered), ((step <= 1) & (step >= -1)) | scattered),
    }[name]


LAYOUTS = {"one": (), "heads": (H,), "batch": (2, H), "nested": (2, 1, H), "grouped": (2, H)}
MASKS = ("none", "causal", "causal with a cache", "window", "lengths", "dense", "of tiles")


@dataclass(frozen=True)
class Case:
    """A call, and the leaves of its gradients."""

    score: str
    normalizer: str
    mask: str
    bias: str
    learned: bool
    layout: str
    dtype: torch.dtype
    queries: int
    keys: int

    def leaves(self) -> Tensors:
        lead = LAYOUTS[self.layout]
        of_keys = (*lead[:-1], H // 2) if self.layout == "grouped" else lead
        shape = tuple(size for size in BIASES[self.bias][0] if size != H or lead)
        drawn = {
            "query": torch.randn(*lead, self.queries, D),
            "key": torch.randn(*of_keys, self.keys, D),
            "value": torch.randn(*of_keys, self.keys, D + 1),
            "parameters": torch.randn(D + 2, D) / 2,
            "bias": torch.rand(shape),
        }
        return {name: x.to(self.dtype).requires_grad_(name != "bias" or self.learned) for name, x in drawn.items()}

    def given(self, leaves: Tensors) -> dict[str, Any]:
        return {
            "score": SCORES[self.score][0](leaves["parameters"]),
            "normalizer": NORMALIZERS[self.normalizer][0],
            "mask": mask_of(self.mask, self.queries, self.keys)[0],
            "bias": BIASES[self.bias][1](leaves["bias"]),
            "enable_gqa": self.layout == "grouped",
        }

    def by_hand(self, leaves: Tensors) -> Tensor:
        query, key, value, parameters, bias = leaves.values()
        if self.layout == "grouped":
            key, value = (x.repeat_interleave(2, -3) for x in (key, value))
        s = SCORES[self.score][1](query, key, parameters) + BIASES[self.bias][2](bias, self.queries, self.keys)
        return NORMALIZERS[self.normalizer][1](s, mask_of(self.mask, self.queries, self.keys)[1]) @ value


@contextmanager
def small_tiles(small: bool) -> Iterator[None]:
    """Tiles so small that each problem has many."""
    if not small:
        yield
        return
    sizes = {(tiles, "CACHED"): tiles.TileSize(48, 2), (position_tiles, "SIZE"): tiles.TileSize(48, 2)}
    sizes |= {(row_tiles, "SIZE"): tiles.TileSize(96, 3)}
    numbers = {(tiles, "MAX_SCORES"): 64, (user_scores, "MAX_ELEMENTS"): 400, (toeplitz, "ROWS"): 2}
    patches = [mock.patch.object(*where, what) for where, what in {**sizes, **numbers}.items()]
    for patch in patches:
        patch.start()
    yield
    for patch in patches:
        patch.stop()


def pulled(output: Tensor, leaves: Tensors) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(output.shape, dtype=torch.float64, generator=generator).to(output.dtype)
    learned = {name: x for name, x in leaves.items() if x.requires_grad}
    found = torch.autograd.grad(output, list(learned.values()), cotangent, materialize_grads=True, allow_unused=True)
    return {"output": output.detach(), **dict(zip(learned, found, strict=True))}


def close(case: Case, ours: dict[str, Tensor], expected: dict[str, Tensor], backend: str) -> None:
    for name, x in expected.items():
        size = max(1.0, float(x.abs().max())) if x.numel() else 1.0
        error = float((ours[name].double() - x).abs().max()) if x.numel() else 0.0
        assert error <= TOLERANCE[case.dtype] * size, f"{backend}, {name}: off by {error:g} of {size:g}"


CASES = st.builds(
    Case,
    score=st.sampled_from(list(SCORES)),
    normalizer=st.sampled_from(list(NORMALIZERS)),
    mask=st.sampled_from(MASKS),
    bias=st.sampled_from(list(BIASES)),
    learned=st.booleans(),
    layout=st.sampled_from(list(LAYOUTS)),
    dtype=st.sampled_from(list(TOLERANCE)),
    queries=st.sampled_from([1, 2, 7, 20]),
    keys=st.sampled_from([1, 3, 9, 20, 70]),
)


def judge(case: Case, small: bool) -> None:
    torch.manual_seed(0)
    leaves = case.leaves()
    wide = {name: x.detach().double().requires_grad_(x.requires_grad) for name, x in leaves.items()}
    expected = pulled(case.by_hand(wide), wide)
    with small_tiles(small):
        for backend in (*(name for name in BACKENDS if name != "flex"), "auto"):
            tensors = [leaves[name] for name in ("query", "key", "value")]
            given = case.given(leaves)
            if backend != "auto" and refused(backend, *tensors, **given):
                continue
            close(case, pulled(qkv.attention(*tensors, **given, backend=backend), leaves), expected, backend)
            with torch.no_grad():
                plain = qkv.attention(*tensors, **given, backend=backend)
            close(case, {"output": plain}, {"output": expected["output"]}, backend)


@given(CASES, st.booleans())
def test_it_is_the_matrix_added_by_hand(case: Case, small: bool) -> None:
    judge(case, small)


@pytest.mark.slow
@given(CASES, st.booleans())
@settings(max_examples=2000, deadline=None)
def test_it_is_the_matrix_added_by_hand_in_many_cases(case: Case, small: bool) -> None:
    judge(case, small)


BACKENDS_WITH_DROPOUT = here("reference", "blocked", "rowwise", "fused")


@pytest.mark.parametrize(
    ("score", "bias"),
    [
        pytest.param(score, bias, marks=[] if turn == index % 3 else pytest.mark.slow)
        for turn, score in enumerate(("scaled dot", "additive", "yours"))
        for index, bias in enumerate(BIASES)
    ],
)
def test_dropout_drops_what_it_drops_beside_the_matrix(score: str, bias: str) -> None:
    case = Case(score, "softmax", "causal", bias, True, "batch", torch.float64, 20, 20)
    leaves = case.leaves()
    tensors, given = [leaves[name] for name in ("query", "key", "value")], case.given(leaves)
    served = 0
    for backend in BACKENDS_WITH_DROPOUT:
        if not refused(backend, *tensors, **given, dropout=0.5):
            served += 1
            answers = []
            for added in (given["bias"], BIASES[bias][2](leaves["bias"], 20, 20)):
                generator = torch.Generator().manual_seed(3)
                options = {**given, "bias": added, "dropout": 0.5, "generator": generator}
                with small_tiles(backend == "blocked"):
                    answers.append(pulled(qkv.attention(*tensors, **options, backend=backend), leaves))
            close(case, *answers, backend)
    assert served >= 2


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_weights_state_and_maps_are_those_of_the_matrix(normalizer: str, bias: str) -> None:
    case = Case("scaled dot", normalizer, "window", bias, True, "grouped", torch.float64, 9, 11)
    leaves = case.leaves()
    query, key, value = (leaves[name] for name in ("query", "key", "value"))
    given = case.given(leaves)
    written = {**given, "bias": BIASES[bias][2](leaves["bias"], 9, 11)}
    found = [qkv.attention_with_weights(query, key, value, **options)[1] for options in (given, written)]
    torch.testing.assert_close(*found)
    states = [qkv.attention_with_state(query, key, value, **options)[1].value for options in (given, written)]
    torch.testing.assert_close(*states)
    amap = qkv.attention_map(query, key, **given)
    torch.testing.assert_close(amap[..., 2:7, 3:], found[1][..., 2:7, 3:])
    torch.testing.assert_close(amap.row(-1), found[1][..., -1, :])
    received, total = amap.received(), found[1].sum(-2)
    torch.testing.assert_close(received, total)
    ours, theirs = (torch.autograd.grad(x.square().sum(), leaves["bias"]) for x in (received, total))
    torch.testing.assert_close(ours, theirs)
