"""Backend `rowwise` against `reference` in float64, with tiles so small that every kind of edge occurs."""

from functools import partial
from itertools import product

import pytest
import torch
from tests.contract.criterion import distances_by_subtraction
from tests.here import here
from tests.pairs import every_pair
from torch import Tensor

import qkv
from qkv.algorithms.rowwise import distances, row_tiles
from qkv.engine import tiles
from qkv.engine.describe import Arguments, describe
from qkv.errors import UnsupportedError
from qkv.functional import attention_with_state
from qkv.linalg import matmul
from qkv.masks import causal, documents, lengths, window
from qkv.normalizers import Entmax, Identity, Mean, Softmax, Sparsemax
from qkv.scores import Boxcar, Cosine, Epanechnikov, Gaussian, ScaledDot, SquaredDistance

pytestmark = pytest.mark.kernels

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 4
MASKS = {
    "none": None,
    "causal": causal(),
    "offsets": causal(torch.tensor([-3, 6])),
    "lengths": lengths(torch.tensor([K, 4]), torch.tensor([0, Q])),
    "documents": documents(torch.arange(Q) // 4, torch.arange(K) // 3),
    "either": window(1, 0) | lengths(torch.tensor([2, 0])),
    "dense": torch.arange(Q * K).view(Q, K) % 3 == 0,
    "dense per item, causal": (torch.arange(B * Q).view(B, 1, Q, 1) % 3 > 0) & causal(),
}
KERNELS = [
    SquaredDistance(2.0),
    Gaussian(1.5),
    Boxcar(2.5),
    Epanechnikov(3.0),
    Epanechnikov(3.0, 1),
    Epanechnikov(3, 3),
]


TILES = ("one tile", "many tiles")
PRODUCTS = ("single", "double")


@pytest.fixture(params=TILES, autouse=True)
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many tiles":
        monkeypatch.setattr(row_tiles, "SIZE", tiles.TileSize(24, 2))
        monkeypatch.setattr(tiles, "MAX_SCORES", 64)


@pytest.fixture(params=PRODUCTS)
def _products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compute distances as products."""
    for name in ("NEAR", "NEAR_EDGES"):
        monkeypatch.setattr(distances, name, 0.0 if request.param == "double" else 1e9)


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = ((B, H, Q, D), (B, H, K, D), (B, H, K, V))
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def same(
    leaves: list[Tensor], *more: Tensor, tolerance: float = 1e-10, backend: str = "rowwise", **given: object
) -> None:
    """Output, row state and gradients equal those of `reference` in float64."""
    answers = []
    for judged in ("reference", backend):
        tensors = [x.double() if judged == "reference" else x for x in leaves]
        seed = torch.Generator().manual_seed(7)
        output, state = qkv.attention_with_state(*tensors, backend=judged, generator=seed, **given)
        value = torch.where(state.value.isfinite(), state.value, 0)
        pulled = output.square().sum() + (value.sum() if value.requires_grad else 0)
        found = torch.autograd.grad(pulled, (*leaves, *more), allow_unused=True, materialize_grads=True)
        answers.append([output, state.value, *found])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got.double(), expected.double(), atol=tolerance, rtol=tolerance)


NORMALIZERS = (Softmax(), Softmax(0.5), Mean(), Identity(), Sparsemax(), Entmax(), Entmax(1.7))


@pytest.mark.parametrize(
    ("_tiles", "normalizer", "mask"), every_pair(product(TILES, NORMALIZERS, MASKS)), indirect=["_tiles"]
)
def test_a_mask_hides_in_every_tile(mask: str, normalizer: qkv.normalizers.Normalizer) -> None:
    same(inputs(), mask=MASKS[mask], normalizer=normalizer, tolerance=1e-9)


@pytest.mark.parametrize(
    ("_tiles", "mask", "backend"), every_pair(product(TILES, MASKS, here("rowwise", "blocked"))), indirect=["_tiles"]
)
def test_products_by_onednn_differ_by_rounding(backend: str, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch._C._has_mkldnn:
        pytest.skip("PyTorch without oneDNN")
    monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr(matmul, "LONGEST", 4)
    torch.manual_seed(0)
    for score in (ScaledDot(), Gaussian(1.5)):
        same(inputs(torch.float32), backend=backend, mask=MASKS[mask], score=score, tolerance=1e-3)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize(
    ("_tiles", "_products", "mask", "score"),
    every_pair(product(TILES, PRODUCTS, ("none", "lengths", "dense"), KERNELS)),
    indirect=["_tiles", "_products"],
)
def test_kernels_of_distances(score: qkv.scores.Score, mask: str) -> None:
    torch.manual_seed(0)
    for normalizer in (None, Mean(), Identity(), Sparsemax()):
        same(inputs(torch.float32), score=score, normalizer=normalizer, mask=MASKS[mask], tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(Q, K), (H, Q, K), (B, 1, 1, K), (H, 1, 1), (Q, 1), ()])
def test_a_bias_learns_whatever_it_broadcasts_over(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    same(inputs(), bias, bias=bias, mask=causal(1))


@pytest.mark.parametrize("mask", ["none", "either", "offsets"])
@pytest.mark.parametrize("normalizer", [Softmax(), Mean()], ids=repr)
def test_dropout_drops_the_same_weights(mask: str, normalizer: qkv.normalizers.Normalizer) -> None:
    same(inputs(), mask=MASKS[mask], normalizer=normalizer, dropout=0.3)


@pytest.mark.parametrize("build", [Softmax, Entmax])
def test_parameters_of_normalizers_learn(build: type) -> None:
    parameter = torch.rand(H, dtype=torch.float64).mul(0.7).add(1.2).requires_grad_()
    same(inputs(), parameter, normalizer=build(parameter), mask=window(4, 3), tolerance=1e-8)


@pytest.mark.slow
@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("score", [SquaredDistance, Gaussian, Epanechnikov])
def test_a_bandwidth_learns_per_head(score: type) -> None:
    torch.manual_seed(0)
    h = torch.rand(H).add(2.0).requires_grad_()
    same(inputs(torch.float32), h, score=score(h), tolerance=1e-3)


def test_a_scale_learns_per_head() -> None:
    scale = torch.rand(H, dtype=torch.float64, requires_grad=True)
    same(inputs(), scale, score=Cosine(scale))


def test_grouped_heads_share_keys() -> None:
    query = torch.randn(B, 6, Q, D, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(B, 2, K, width, dtype=torch.float64, requires_grad=True) for width in (D, V))
    for mask in (None, causal(), lengths(torch.arange(12).view(B, 6))):
        same([query, key, value], enable_gqa=True, mask=mask)


def test_leading_dimensions_broadcast() -> None:
    query, key, value = inputs()
    leaves = [x.detach().requires_grad_() for x in (query[0], key[0, 0], value[:, :1])]
    same(leaves)


def test_a_gradient_may_come_through_the_row_state_alone() -> None:
    query, key, value = inputs()
    expected, got = (
        torch.autograd.grad(
            qkv.attention_with_state(query, key, value, backend=backend)[1].value.square().sum(), (query, key)
        )
        for backend in ("reference", "rowwise")
    )
    for theirs, ours in zip(expected, got, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    low = [x.detach().to(dtype).requires_grad_() for x in inputs()]
    output, state = qkv.attention_with_state(*low, backend="rowwise", score=SquaredDistance(2.0))
    exact = qkv.attention(*(x.double() for x in low), backend="reference", score=SquaredDistance(2.0))
    assert output.dtype == dtype
    assert state.value.dtype == torch.float64
    torch.testing.assert_close(output.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)
    output.sum().backward()
    assert all(x.grad.dtype == dtype for x in low)


def _precision(query: Tensor, key: Tensor, scale: float) -> str:
    """How distances of a softmax are computed."""
    arguments = Arguments(SquaredDistance(scale**-0.5), None, None, None, 0.0, None, False)
    problem, call, _ = describe(query, key, key, arguments)
    return distances.inspect(problem, call).precision


def test_the_guard_goes_by_the_largest_norms() -> None:
    x = torch.randn(40, 8)
    assert _precision(x, x, 1 / 64) == "single"
    assert _precision(1e3 + x, 1e3 + x, 1.0) == "double"
    one_far = torch.cat([x[1:], 1e6 * torch.ones(1, 8)])
    assert _precision(x, one_far, 1 / 64) == "single"  # its norm is like that of no query
    assert _precision(one_far, x, 1 / 64) == "double"  # in its row all distances are large, and they count
    assert _precision(one_far, one_far, 1 / 64) == "none"
    for none in (torch.nan, torch.inf, 1e19):
        assert _precision(x, torch.cat([x[1:], torch.full((1, 8), none)]), 1 / 64) != "single"
    side = torch.tensor([1e4, -1e4]).repeat(20)[:, None]
    assert _precision(side + x, side + x, 1.0) == "none"


@pytest.mark.parametrize(("h", "said"), [(8.0, "in single"), (0.5, "in double"), (1e-4, "subtracted")])
def test_explain_tells_what_the_guard_says(h: float, said: str) -> None:
    x = torch.randn(300, 8)  # up to 256 keys all distances are subtracted
    asked = partial(qkv.explain, x, x, x, score=Epanechnikov(h))
    if said == "subtracted":
        with pytest.raises(UnsupportedError, match="must be subtracted"):
            asked(backend="rowwise")
        assert asked().algorithm in ("matrix.reference", "tiled.blocked")
    else:
        assert said in asked(backend="rowwise.distance_rows").why


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("score", [SquaredDistance, Gaussian, Epanechnikov])
def test_gradients_of_a_cluster_aside_are_exact(score: type, far: bool) -> None:
    tensors = [5 + 0.1 * torch.randn(2, 300, 8) for _ in range(2)] + [torch.randn(2, 300, 6)]
    if far:
        tensors[1][..., 0, :] = 1e4
    answers = []
    for backend, dtype in (("reference", torch.float64), ("reference", torch.float32), ("rowwise", torch.float32)):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        with distances_by_subtraction():
            output = qkv.attention(*leaves, score=score(20.0), backend=backend)
        answers.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for right, plain, ours in zip(*answers, strict=True):
        error, usual = ours.double() - right, plain.double() - right
        slack = 2.0**-23 * float(right.detach().abs().max())
        # Twice the limit, as the contract states for gradients of PyTorch's own kernel.
        assert error.square().mean().sqrt() <= 2 * (1.5 * usual.square().mean().sqrt() + slack)
        assert error.abs().max() <= 2 * (3 * usual.abs().max() + slack)


@pytest.mark.parametrize("score", [SquaredDistance(), Gaussian(), Epanechnikov(3.0)], ids=str)
def test_near_vectors_keep_their_digits_beside_far_ones_of_both_sides(score: qkv.scores.Score) -> None:
    key = torch.randn(2, 100, 8)
    key[:, 0] = 1400  # moves the mean of the keys, and of the queries
    tensors = key.clone(), key, torch.randn(2, 100, 5)
    right = qkv.attention(*(x.double() for x in tensors), score=score, backend="reference")
    plain, ours = (qkv.attention(*tensors, score=score, backend=each) for each in ("reference", "rowwise"))
    error, usual = ours.double() - right, plain.double() - right
    slack = 2.0**-23 * float(tensors[2].abs().max())
    assert error.square().mean().sqrt() <= 1.5 * usual.square().mean().sqrt() + slack
    assert error.abs().max() <= 3 * usual.abs().max() + slack


def test_a_nan_moves_no_other_row() -> None:
    tensors = [5 + 0.1 * torch.randn(2, 300, 8) for _ in range(2)] + [torch.randn(2, 300, 6)]
    tensors[0][0, 3] = torch.nan
    tensors[1][1, 0] = torch.nan
    for score in (SquaredDistance(20.0), Gaussian(20.0), Epanechnikov(20.0)):
        with pytest.raises(UnsupportedError, match="not finite"):
            qkv.attention(*tensors, score=score, backend="rowwise")
        output = qkv.attention(*tensors, score=score)
        assert output[0].isfinite().all(-1).sum() == 299
        assert output[1].isnan().all()


def test_visible_nan_stays_in_its_rows() -> None:
    query, key, value = (x.detach().float() for x in inputs())
    query[0, 1, 4, 2] = torch.nan
    for score, normalizer in ((ScaledDot(), Softmax()), (ScaledDot(), Sparsemax()), (ScaledDot(), Entmax(1.3))):
        output = qkv.attention(query, key, value, score=score, normalizer=normalizer, backend="rowwise")
        assert output[0, 1, 4].isnan().all()
        assert output.isnan().sum() == V


@pytest.mark.parametrize("score", KERNELS, ids=str)
def test_what_is_kept_serves_a_second_walk_of_the_graph(score: object) -> None:
    leaves = [torch.randn(B, H, n, d, requires_grad=True) for n, d in ((Q, D), (K, D), (K, V))]
    output = qkv.attention(*leaves, score=score, backend="rowwise")
    first = torch.autograd.grad(output.sum(), leaves, retain_graph=True)
    second = torch.autograd.grad(output.sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("leading", [(3,), (2, 3)])
def test_the_row_state_alone_has_gradients(leading: tuple[int, ...]) -> None:
    """No gradient reaches the output, for any number of leading dimensions."""
    found = []
    query, key, value = (torch.randn(*leading, n, 4, dtype=torch.float64) for n in (9, 12, 12))
    for backend in ("rowwise.rows", "reference"):
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        state = attention_with_state(*leaves, mask=causal(2), backend=backend)[1]
        found.append(torch.autograd.grad(state.value.sum(), leaves[:2]))
    torch.testing.assert_close(*found)
