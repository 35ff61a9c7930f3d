"""Forward-mode derivatives: every mechanism that `auto` supports gives the tangents of the full matrix."""

from typing import Any

import pytest
import torch
from tests.pairs import in_turn
from torch import Tensor
from torch.autograd import forward_ad

import qkv
from qkv.errors import UnsupportedError
from qkv.masks import causal
from qkv.normalizers import Entmax, Hard, Mean, Softmax, Sparsemax, Sum
from qkv.scores import Additive, Boxcar, Cosine, Epanechnikov, Gaussian, ScaledDot

SHORT, LONG = (4, 8, 64, 64), (1, 2, 300, 64)
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "scaled dot, short": (SHORT, {"score": ScaledDot()}),
    "scaled dot": (LONG, {"score": ScaledDot()}),
    "causal, short": (SHORT, {"score": ScaledDot(), "mask": causal()}),
    "sink, short": (SHORT, {"score": ScaledDot(), "normalizer": Softmax(sink=0.3)}),
    "cosine, short": (SHORT, {"score": Cosine()}),
    "additive": ((2, 40, 16), {"score": Additive(vector=torch.ones(16))}),
    "additive, one query": ((64, 1, 16), {"score": Additive(vector=torch.ones(16))}),
    "gaussian": (LONG, {"score": Gaussian(5.0), "normalizer": Sum()}),
    "boxcar": (LONG, {"score": Boxcar(11.0), "normalizer": Sum()}),
    "on a line": ((2, 300, 1), {"score": Epanechnikov(1.0), "normalizer": Sum()}),
    "entmax": (LONG, {"score": ScaledDot(), "normalizer": Entmax(1.5)}),
    "sparsemax": (LONG, {"score": ScaledDot(), "normalizer": Sparsemax()}),
    "mean": (LONG, {"score": ScaledDot(), "normalizer": Mean()}),
    "hard": (LONG, {"score": ScaledDot(), "normalizer": Hard()}),
}


def tangent_of(inputs: list[Tensor], tangents: list[Tensor], backend: str, given: dict[str, Any]) -> Tensor:
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        tangent: Tensor | None = forward_ad.unpack_dual(qkv.attention(*dual, backend=backend, **given)).tangent
    assert tangent is not None
    return tangent


@pytest.mark.parametrize("name", in_turn(CASES))
def test_tangents_are_those_of_the_full_matrix(name: str) -> None:
    shape, given = CASES[name]
    inputs, tangents = ([torch.randn(shape) for _ in range(3)] for _ in range(2))
    # Similar calls share a plan: this one has no tangents.
    qkv.attention(*inputs, **given)
    found = tangent_of(inputs, tangents, "auto", given)
    expected = tangent_of([x.double() for x in inputs], [x.double() for x in tangents], "reference", _wide(given))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def _wide(given: dict[str, Any]) -> dict[str, Any]:
    vector = getattr(given["score"], "vector", None)
    return given if vector is None else {**given, "score": Additive(vector=vector.double())}


def test_a_backend_without_tangents_says_so() -> None:
    query = torch.randn(2, 5, 8)
    with forward_ad.dual_level(), pytest.raises(UnsupportedError, match="forward-mode"):
        qkv.attention(query, query, query, backend="blocked")
