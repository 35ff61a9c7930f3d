"""Every sum over a window is as accurate as its own pairs allow, whatever the others are: an a-priori bound for each.

A weight f = 1 − |d|^p is rounded by a few u (a roundoff) of 1, however small it is. So a row of n weights that sum to T
is off by ROUNDOFFS·u·max|v|·n/T: a row near the edge of the support by much, all others by little. Numbers that lie
outside a row's support have no part in its bound: neither how many there are, nor how large.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.here import here
from tests.pairs import every_pair

import qkv
from qkv.errors import UnsupportedError
from qkv.normalizers import Identity, Mean, Sum
from qkv.scores import Boxcar, Epanechnikov, Score

Wide = NDArray[np.longdouble]
ROUNDOFFS = 16.0
VALUES = 3
NORMALIZERS = {"sum": Sum(), "mean": Mean(), "identity": Identity()}
KERNELS = {"a box": 0, "a parabola": 2, "a triangle": 1}
"""Power of the distance; 0 for the box."""
WAYS = here("sorted.two_pointer", "sorted.prefix_sums", "auto")


def score_of(name: str, bandwidth: Any) -> Score:
    return Boxcar(bandwidth) if name == "a box" else Epanechnikov(bandwidth, KERNELS[name])


@dataclass(frozen=True)
class Line:
    """Coordinates of queries and keys, values and cotangents, all in one dtype, and a bandwidth."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    cotangent: torch.Tensor
    bandwidth: float


@st.composite
def lines(draw: st.DrawFn, dtype: torch.dtype) -> Line:
    """Clusters of keys, some far apart or far from 0, and queries among them and at the very edge of their reach."""
    r = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    h = draw(st.sampled_from((0.01, 0.7, 1.0, 300.0)))
    keys, queries = draw(st.integers(1, 250)), draw(st.integers(1, 80))
    digits = 6 if dtype == torch.float32 else 13
    spread = h * 10.0 ** r.uniform(-digits, 1, draw(st.integers(1, 5)))
    # With a large offset, distances have fewer digits: the inputs are rounded first, and the answer is theirs.
    offset = draw(st.sampled_from((0.0, 0.0, 1.0, 1e3, 1e5))) * h
    centers = offset + h * r.choice((0.0, 1.0, 3.0, 50.0)) * r.standard_normal(spread.size)
    of = r.integers(spread.size, size=keys)
    key = centers[of] + spread[of] * r.standard_normal(keys)
    # From the edge of a key's support inward, by any part of the bandwidth.
    inward = 10.0 ** r.uniform(-digits, 0, queries) * (r.random(queries) < 0.9)
    query = r.choice(key, queries) + r.choice((-h, h), queries) * (1 - inward)
    value = r.choice((0.0, 1.0, 100.0)) + r.standard_normal((keys, VALUES))
    cotangent = r.standard_normal((queries, VALUES))
    tensors = [torch.from_numpy(x).to(dtype) for x in (query[:, None], key[:, None], value, cotangent)]
    return Line(*tensors, float(np.float32(h)))


class Truth:
    """Answer and gradients in extended precision, and the bound of each number."""

    def __init__(self, line: Line, name: str, normalizer: str) -> None:
        q, k, v, g = (
            x.double().numpy().astype(np.longdouble) for x in (line.query, line.key, line.value, line.cotangent)
        )
        u, h, power = np.finfo(line.query.numpy().dtype).eps / 2, np.longdouble(line.bandwidth), KERNELS[name]
        distance = (q - k.T) / h
        d = abs(distance)
        # A distance that is rounded may be on the other side of the edge.
        edge = 8 * u
        near = d < 1 + edge
        self.settled = (abs(d - 1) > edge).all(-1)
        g = np.where(self.settled[:, None], g, 0)
        inside = d <= 1
        f = np.where(inside, 1 - d**power if power else np.ones_like(d), 0)
        slope = np.where(inside, -power * d ** max(power - 1, 0) * np.sign(distance) / h, 0)
        grown = np.where(inside, power * d**power / h, 0)
        count, total = near.sum(-1, keepdims=True), f.sum(-1, keepdims=True)
        if normalizer == "sum":
            factor = np.divide(1, total, out=np.zeros_like(total), where=total > 0)
        else:
            factor = np.full_like(total, 1 if normalizer == "identity" else 1 / np.longdouble(k.size))
        w = f * factor
        self.output = w @ v
        mean = self.output if normalizer == "sum" else np.zeros_like(self.output)
        d_f = (g @ v.T - (g * mean).sum(-1, keepdims=True)) * factor
        self.cotangent = torch.from_numpy(g.astype(np.float64)).to(line.cotangent.dtype)
        self.gradients = {
            "query": (d_f * slope).sum(-1),
            "key": -(d_f * slope).sum(0),
            "value": w.T @ g,
            "bandwidth": (d_f * grown).sum(),
        }
        # Of each pair: how far its weight is off, and what a weight's error is worth.
        worse = 1 + count * factor if normalizer == "sum" else np.ones_like(factor)
        largest, size = abs(v).max(), abs(g).sum(-1, keepdims=True)
        pair = np.where(near, ROUNDOFFS * u * size * largest * factor * worse, 0)
        by = np.where(near, ROUNDOFFS * u * abs(g).max(-1, keepdims=True) * factor * worse, 0)
        self.bounds = {
            "output": ROUNDOFFS * u * largest * (factor * count + 1),
            "query": 2 * pair.sum(-1) / h,
            "key": 2 * pair.sum(0) / h,
            "value": by.sum(0)[:, None] + ROUNDOFFS * u * abs(w).T @ abs(g),
            "bandwidth": 2 * pair.sum() / h,
        }


def shares(line: Line, name: str, normalizer: str, way: str) -> dict[str, float]:
    """The largest error of output and of each gradient, as a share of its bound."""
    truth = Truth(line, name, normalizer)
    h = torch.tensor(line.bandwidth, dtype=line.query.dtype)
    leaves = {"query": line.query, "key": line.key, "value": line.value, "bandwidth": h}
    leaves = {leaf: x.clone().requires_grad_() for leaf, x in leaves.items()}
    output = qkv.attention(
        leaves["query"],
        leaves["key"],
        leaves["value"],
        score=score_of(name, leaves["bandwidth"]),
        normalizer=NORMALIZERS[normalizer],
        backend=way,
    )
    found = torch.autograd.grad(output, list(leaves.values()), truth.cotangent, materialize_grads=True)
    rows = truth.settled
    error = abs(output.detach().double().numpy() - truth.output)[rows] / truth.bounds["output"][rows]
    result = {"output": float(error.max(initial=0.0))}
    for leaf, x in zip(leaves, found, strict=True):
        expected, bound = truth.gradients[leaf], truth.bounds[leaf] + np.longdouble(1e-300)
        errors = abs(x.double().numpy().reshape(expected.shape) - expected)
        # Autograd of prefix sums adds all rows: a gradient is off by what the worst bound allows.
        bound = bound.max() if way == "sorted.prefix_sums" else bound
        result[leaf] = float((errors / bound).max())
    return result


@pytest.mark.parametrize(
    ("name", "normalizer", "way", "dtype"),
    every_pair(product(KERNELS, NORMALIZERS, WAYS, (torch.float32, torch.float64))),
)
@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_row_is_within_its_own_bound(
    name: str, normalizer: str, way: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    line = data.draw(lines(dtype))
    try:
        found = shares(line, name, normalizer, way)
    except UnsupportedError:
        assert (way, dtype) == ("sorted.prefix_sums", torch.float64)
        return
    assert max(found.values()) <= 1, found


def crowd(keys: int, h: float, seed: int = 0) -> Line:
    """Many keys, of which each query reaches some."""
    g = torch.Generator().manual_seed(seed)
    query, key = (torch.rand(n, 1, generator=g, dtype=torch.float64) * 2 for n in (40, keys))
    value = 1 + torch.randn(keys, VALUES, generator=g, dtype=torch.float64)
    return Line(query, key, value, torch.randn(40, VALUES, generator=g, dtype=torch.float64), h)


@pytest.mark.kernels
@pytest.mark.parametrize(("name", "normalizer", "h"), every_pair(product(KERNELS, NORMALIZERS, (0.001, 0.015625))))
def test_errors_do_not_grow_with_the_keys_out_of_reach(name: str, normalizer: str, h: float) -> None:
    found = shares(crowd(20_000, h), name, normalizer, "sorted")
    assert max(found.values()) <= 1, found


@pytest.mark.kernels
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_of_gradients_have_exact_gradients_below_them(name: str) -> None:
    """A gradient has the same numbers whether or not it can be differentiated."""
    line, found = crowd(2_000, 0.002), []
    for again in (False, True):
        leaves = [x.clone().requires_grad_() for x in (line.query, line.key, line.value)]
        output = qkv.attention(*leaves, score=score_of(name, line.bandwidth), backend="sorted")
        found.append(torch.autograd.grad(output.square().sum(), leaves, create_graph=again, materialize_grads=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-14, atol=0)


def test_kernels_in_float64_refuse_prefix_sums() -> None:
    line = crowd(50, 0.5)
    with pytest.raises(UnsupportedError, match="float64"):
        qkv.attention(line.query, line.key, line.value, score=Epanechnikov(0.5), backend="sorted.prefix_sums")


@pytest.mark.kernels
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_coordinates_that_are_no_numbers_go_to_another_backend(number: float) -> None:
    """Asked for by name, the sorted algorithms refuse them in float64; auto gives NaN where the equation does."""
    query, key = torch.zeros(3, 1, dtype=torch.float64), torch.zeros(64, 1, dtype=torch.float64)
    value, kernel = torch.ones(64, 2, dtype=torch.float64), qkv.scores.Epanechnikov()
    query[1] = number
    with pytest.raises(UnsupportedError, match="NaN and infinities cannot be sorted"):
        qkv.attention(query, key, value, score=kernel, backend="sorted")
    output = qkv.attention(query, key, value, score=kernel)
    expected = qkv.attention(query, key, value, score=kernel, backend="reference")
    assert torch.equal(output.isnan(), expected.isnan())
    assert torch.equal(output[::2], expected[::2])
