"""Gradients of every learned number reach it through every part of a map, finite and exact, also beside empty rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.functional import attention_with_weights
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, dense, lengths
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.base import Score
from qkv.scores.kernels import Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import ScaledDot

BATCH, QUERIES, KEYS = 2, 9, 7

SCORES: dict[str, Callable[[Tensor], Score]] = {
    "scale": ScaledDot,
    "squared distance": SquaredDistance,
    "gaussian": Gaussian,
    "epanechnikov": lambda p: Epanechnikov(3 * p),
    "fixed": lambda p: ScaledDot(),
}
NORMALIZERS: dict[str, Callable[[Tensor], Normalizer]] = {
    "softmax": lambda p: Softmax(),
    "sink": Softmax,
    "sum": lambda p: Sum(),
    "mean": lambda p: Mean(),
    "identity": lambda p: Identity(),
    "sigmoid": lambda p: Sigmoid(),
    "sigmoid bias": Sigmoid,
    "sparsemax": lambda p: Sparsemax(),
    "entmax": lambda p: Entmax(1.5),
    "entmax learned": lambda p: Entmax(1 + p),
    "entmax steep": lambda p: Entmax(1 + p / 50),
}
MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal end": causal(align="end"),
    "lengths": lengths(torch.tensor([KEYS, 0])),
    "no row": lengths(0),
    "dense": dense(
        torch.arange(BATCH * QUERIES * KEYS).view(BATCH, QUERIES, KEYS) % 5 < torch.arange(QUERIES)[:, None]
    ),
}
PARTS: dict[str, Callable[[AttentionMap], Tensor]] = {
    "dense": lambda m: m.dense(),
    "row": lambda m: m.row(0),
    "tile": lambda m: m[..., 0:3, 2:6],
    "column": lambda m: m.column(3),
    "received": lambda m: m.received(),
    "entropy": lambda m: m.entropy(),
}


def slopes(part: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    weighed = (part * torch.arange(part.numel()).view(part.shape)).sum()
    return list(torch.autograd.grad(weighed, leaves, materialize_grads=True))


@settings(max_examples=60)
@given(
    score=st.sampled_from(sorted(SCORES)),
    normalizer=st.sampled_from(sorted(NORMALIZERS)),
    mask=st.sampled_from(sorted(MASKS)),
    part=st.sampled_from(sorted(PARTS)),
    biased=st.booleans(),
    dtype=st.sampled_from((torch.float64, torch.float32, torch.bfloat16)),
    per_item=st.booleans(),
)
def test_a_learned_number_has_the_gradient_of_the_weights(
    score: str, normalizer: str, mask: str, part: str, biased: bool, dtype: torch.dtype, per_item: bool
) -> None:
    """The same gradient as through the weights that `attention_with_weights` returns, in float64."""
    kernel = score in ("gaussian", "epanechnikov")
    if (normalizer == "sum" and not kernel) or (kernel and biased and normalizer == "sum"):
        return
    signed = normalizer in ("mean", "identity") and (not kernel or biased)
    if part == "entropy" and signed:
        return
    g = torch.Generator().manual_seed(0)
    tensors = (torch.randn(BATCH, QUERIES, 8, generator=g), torch.randn(BATCH, KEYS, 8, generator=g))
    table = torch.randn(BATCH, QUERIES, KEYS, generator=g)
    table[:, 2] = -torch.inf  # hides a row that the mask does not

    def gradients(dtype: torch.dtype, from_weights: bool) -> list[Tensor]:
        query, key = (x.to(dtype).requires_grad_() for x in tensors)
        size = (BATCH,) if per_item else ()
        one, two = (torch.full(size, x, dtype=torch.float32, requires_grad=True) for x in (1.25, 0.75))
        bias = table.to(dtype).requires_grad_() if biased else None
        leaves = [query, key, one, two, *([bias] if bias is not None else [])]
        options: dict[str, Any] = {
            "score": SCORES[score](one), "normalizer": NORMALIZERS[normalizer](two), "mask": MASKS[mask], "bias": bias
        }  # fmt: skip
        if not from_weights:
            return slopes(PARTS[part](attention_map(query, key, **options)), leaves)
        _, w = attention_with_weights(query, key, query[:, :KEYS], **options, backend="reference")
        whole = {
            "dense": lambda: w, "row": lambda: w[:, 0], "tile": lambda: w[:, 0:3, 2:6], "column": lambda: w[..., 3],
            "received": lambda: w.sum(-2), "entropy": lambda: torch.special.entr(w.clamp(min=1e-300)).sum(-1),
        }  # fmt: skip
        return slopes(whole[part](), leaves)

    found, expected = gradients(dtype, False), gradients(torch.float64, True)
    most = max(1.0, *(x.abs().max().item() for x in expected if x.numel()))
    u = torch.finfo(dtype).eps
    for x, r in zip(found, expected, strict=True):
        assert x.isfinite().all()
        if dtype != torch.bfloat16:  # whose inputs are others
            assert (x.double() - r).abs().max() <= 4000 * u * most


@pytest.mark.parametrize("alpha", [1.01, 1.5, 1.7, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_alpha_learns_through_the_state_of_empty_rows(alpha: float, dtype: torch.dtype) -> None:
    from qkv.functional import attention_with_state

    query, key = torch.randn(2, 5, 4, dtype=dtype), torch.randn(2, 7, 4, dtype=dtype)
    for backend in ("reference", "blocked"):
        a = torch.tensor(alpha, dtype=dtype, requires_grad=True)
        mask = lengths(torch.tensor([7, 0]))
        _, state = attention_with_state(query, key, key, normalizer=Entmax(a), mask=mask, backend=backend)
        assert (state.value[1] == torch.inf).all()
        (slope,) = torch.autograd.grad(torch.where(state.value.isinf(), 0, state.value).sum(), a)
        assert slope.isfinite()
