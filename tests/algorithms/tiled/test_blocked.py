"""Backend `blocked` against `reference`, with tiles so small that every kind of edge occurs."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from tests.pairs import every_pair
from torch import Tensor

import qkv
from qkv.algorithms.tiled import cores, user_scores
from qkv.engine import tiles
from qkv.masks import causal, documents, lengths, window
from qkv.normalizers import Entmax, Hard, Identity, Mean, Sigmoid, Softmax, Sparsemax, Sum
from qkv.scores import Additive, Boxcar, Concat, Epanechnikov, Gaussian, Learned, ScaledDot, SquaredDistance

B, H, Q, K, D, V = 2, 3, 11, 13, 5, 4
LEAD = (B, H)


TILES = ("one tile", "many tiles")


@pytest.fixture(params=TILES, autouse=True)
def _tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "many tiles":
        monkeypatch.setattr(tiles, "CACHED", tiles.TileSize(24, 2))
        monkeypatch.setattr(tiles, "MAX_SCORES", 64)
        monkeypatch.setattr(cores, "INNER", 32)
        monkeypatch.setattr(user_scores, "MAX_ELEMENTS", 300)


def inputs(*lead: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((*lead, Q, D), (*lead, K, D), (*lead, K, V))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def same(call: Callable[[str], tuple[Tensor, ...] | Tensor], *leaves: Tensor, tolerance: float = 1e-12) -> None:
    """Results and gradients of `blocked` equal those of `reference`."""
    answers = []
    for backend in ("reference", "blocked"):
        torch.manual_seed(1)
        results = call(backend)
        results = results if isinstance(results, tuple) else (results,)
        torch.manual_seed(2)
        pulled = sum((result * torch.randn_like(result)).sum() for result in results if result.requires_grad)
        gradients = torch.autograd.grad(pulled, leaves, materialize_grads=True, allow_unused=True)
        answers.append([*results, *gradients])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def with_state(backend: str, *tensors: Tensor, **given: object) -> tuple[Tensor, Tensor]:
    output, state = qkv.attention_with_state(*tensors, backend=backend, **given)
    return output, state.value


MASKS = {
    "none": None,
    "causal": causal(),
    "offsets": causal(torch.tensor([-3, 6])),
    "lengths": lengths(torch.tensor([K, 4]), torch.tensor([0, Q])),
    "window": window(2, 1),
    "documents": documents(torch.arange(Q) // 4, torch.arange(K) // 3),
    "either": window(1, 0) | lengths(torch.tensor([2, 0])),
    "dense": torch.arange(Q * K).view(Q, K) % 3 == 0,
    "dense per item, causal": (torch.arange(B * Q).view(B, 1, Q, 1) % 3 > 0) & causal(),
}


NORMALIZERS = (Softmax(), Softmax(0.5), Mean(), Sigmoid(), Sparsemax(), Entmax(1.7), Hard())


@pytest.mark.parametrize(
    ("_tiles", "normalizer", "mask"), every_pair(product(TILES, NORMALIZERS, MASKS)), indirect=["_tiles"]
)
def test_a_mask_hides_in_every_tile(mask: str, normalizer: qkv.normalizers.Normalizer) -> None:
    q, k, v = inputs(*LEAD)
    same(lambda b: with_state(b, q, k, v, mask=MASKS[mask], normalizer=normalizer), q, k, v)


@pytest.mark.parametrize("shape", [(Q, K), (H, Q, K), (B, 1, 1, K), (H, 1, 1), (Q, 1), ()])
def test_a_bias_learns_whatever_it_broadcasts_over(shape: tuple[int, ...]) -> None:
    q, k, v = inputs(*LEAD)
    bias = torch.randn(shape, dtype=q.dtype, requires_grad=True)
    same(lambda b: qkv.attention(q, k, v, bias=bias, mask=causal(1), backend=b), q, k, v, bias)


@pytest.mark.parametrize("mask", ["none", "either", "offsets"])
def test_dropout_drops_the_same_weights(mask: str) -> None:
    q, k, v = inputs(*LEAD)

    def call(backend: str) -> Tensor:
        seeded = torch.Generator().manual_seed(7)
        return qkv.attention(q, k, v, mask=MASKS[mask], dropout=0.3, generator=seeded, backend=backend)

    same(call, q, k, v)


@pytest.mark.parametrize("normalizer", ["sink", "sigmoid", "alpha"])
def test_parameters_of_normalizers_learn(normalizer: str) -> None:
    q, k, v = inputs(*LEAD)
    parameter = torch.rand(H, dtype=q.dtype).add(1.2).requires_grad_()
    build = {"sink": Softmax, "sigmoid": Sigmoid, "alpha": Entmax}[normalizer]
    same(lambda b: with_state(b, q, k, v, normalizer=build(parameter), mask=window(4, 3)), q, k, v, parameter)


def test_scale_and_bandwidth_learn_per_head() -> None:
    q, k, v = inputs(*LEAD)
    h = torch.rand(H, dtype=q.dtype).add(1.0).requires_grad_()
    for score in (ScaledDot(h), ScaledDot(h, softcap=0.7), SquaredDistance(h), Gaussian(h), Epanechnikov(h, power=3)):
        same(lambda b, score=score: qkv.attention(q, k, v, score=score, backend=b), q, k, v, h)


def test_a_scale_of_zero_learns() -> None:
    q, k, v = inputs(*LEAD)
    scale = torch.zeros(H, dtype=q.dtype, requires_grad=True)
    same(lambda b: qkv.attention(q, k, v, score=ScaledDot(scale), backend=b), q, k, v, scale)


def test_additive_parameters_learn_per_head() -> None:
    q, k, v = inputs(*LEAD)
    score = Additive(torch.randn(H, 6), torch.randn(H, 6, D), torch.randn(6, D))
    leaves = [x.double().requires_grad_() for x in (score.vector, score.query_weight, score.key_weight)]
    same(lambda b: qkv.attention(q, k, v, score=Additive(*leaves), mask=causal(), backend=b), q, k, v, *leaves)


def test_graph_attention_bends_at_zero() -> None:
    q, k, v = inputs(*LEAD)
    w = torch.randn(2, H, D, dtype=q.dtype, requires_grad=True)
    same(lambda b: qkv.attention(q, k, v, score=Concat(w[0], w[1], "leaky_relu"), backend=b), q, k, v, w)


@pytest.mark.parametrize("score", [Gaussian(1.5), Boxcar(2.5), Epanechnikov(3.0), Epanechnikov(3.0, power=1)])
def test_kernels_average_what_is_near(score: qkv.scores.Score) -> None:
    q, k, v = inputs(*LEAD)
    for normalizer in (Sum(), Mean(), Identity()):
        given = {"score": score, "normalizer": normalizer, "mask": window(6, 6)}
        same(lambda b, given=given: with_state(b, q, k, v, **given), q, k, v)


def test_grouped_heads_share_keys() -> None:
    q = torch.randn(B, 6, Q, D, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(B, 2, K, width, dtype=torch.float64, requires_grad=True) for width in (D, V))
    vector = torch.randn(6, D, dtype=q.dtype, requires_grad=True)
    masks = (None, causal(), window(2, 0) | lengths(torch.tensor([3, 1])), lengths(torch.arange(12).view(B, 6)))
    for mask in masks:
        given = {"score": Additive(vector), "mask": mask, "enable_gqa": True}
        same(lambda b, given=given: qkv.attention(q, k, v, backend=b, **given), q, k, v, vector)


def test_leading_dimensions_broadcast() -> None:
    q = torch.randn(H, Q, D, dtype=torch.float64, requires_grad=True)
    k = torch.randn(K, D, dtype=torch.float64, requires_grad=True)
    v = torch.randn(B, 1, K, V, dtype=torch.float64, requires_grad=True)
    same(lambda b: with_state(b, q, k, v), q, k, v)


@pytest.mark.parametrize("gone", ["Q", "K", "B", "V"])
def test_an_empty_axis_gives_what_the_reference_gives(gone: str) -> None:
    n = {"Q": Q, "K": K, "B": B, "V": V} | {gone: 0}
    q, k, v = (torch.randn(n["B"], *own, requires_grad=True) for own in ((n["Q"], D), (n["K"], D), (n["K"], n["V"])))
    for normalizer in (Softmax(), Mean(), Hard(), Sparsemax(), Entmax(1.3), Sigmoid()):
        for score in (ScaledDot(), SquaredDistance(), Learned(lambda query, key: query @ key.mT)):
            given = {"normalizer": normalizer, "score": score}
            same(lambda b, given=given: with_state(b, q, k, v, **given), q, k, v, tolerance=1e-5)


def test_what_a_callable_closes_over_learns() -> None:
    q, k, v = inputs(*LEAD)
    network = torch.nn.Sequential(torch.nn.Linear(D, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()

    def score(query: Tensor, key: Tensor) -> Tensor:
        return network(query[..., :, None, :] - key[..., None, :, :]).squeeze(-1)

    for normalizer in (Softmax(), Entmax(torch.tensor([1.2, 1.5, 2.0]).double())):
        for mask in (None, causal(1), MASKS["either"]):
            given = {"score": score, "normalizer": normalizer, "mask": mask}
            same(lambda b, given=given: with_state(b, q, k, v, **given), q, k, v, *network.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    q, k, v = inputs(*LEAD, dtype=torch.float32)
    low = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    output, state = qkv.attention_with_state(*low, backend="blocked", score=SquaredDistance(2.0))
    exact = qkv.attention(*(x.double() for x in low), backend="reference", score=SquaredDistance(2.0))
    assert output.dtype == dtype
    assert state.value.dtype == torch.float64
    torch.testing.assert_close(output.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)
    output.sum().backward()
    assert all(x.grad.dtype == dtype for x in low)


def test_autocast_casts_as_the_reference_does() -> None:
    q, k, v = inputs(*LEAD, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [qkv.attention(q, k, v, score=Additive(torch.ones(D)), backend=b) for b in ("reference", "blocked")]
    assert outputs[0].dtype == outputs[1].dtype == torch.bfloat16
    torch.testing.assert_close(*outputs, rtol=0.02, atol=0.02)
    torch.autograd.grad(outputs[1].sum(), (q, k, v))


@pytest.mark.parametrize("far", ["clusters", "outlier", "pair of outliers", "offset"])
@pytest.mark.parametrize("score", [SquaredDistance(), Gaussian(2.0), Epanechnikov(4.0, power=1)])
def test_distances_survive_far_points(far: str, score: qkv.scores.Score) -> None:
    q, k, v = inputs(dtype=torch.float32)
    with torch.no_grad():
        if far == "clusters":
            q[::2] += 1000
            k[::2] += 1000
            q[1::2] -= 1000
            k[1::2] -= 1000
        elif far == "offset":
            q += 1e5
            k += 1e5
        else:
            k[3] += 1e6
            if far == "pair of outliers":
                q[2] = k[3] + 1
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    results = []
    for tensors, backend in (((q, k, v), "blocked"), (exact, "reference")):
        output = qkv.attention(*tensors, score=score, backend=backend)
        results.append([output, *torch.autograd.grad(output.square().sum(), tensors)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_padding_of_any_content_changes_no_bit() -> None:
    q, k, v = inputs(*LEAD, dtype=torch.float32)
    mask = lengths(torch.tensor([K - 2, 5]))
    results = []
    for junk in (0.0, torch.nan, torch.inf, 3e38):
        bad_k, bad_v = (x.detach().clone() for x in (k, v))
        for item, length in enumerate((K - 2, 5)):
            bad_k[item, :, length:] = bad_v[item, :, length:] = junk
        leaves = [q, bad_k.requires_grad_(), bad_v.requires_grad_()]
        output = qkv.attention(*leaves, mask=mask, score=SquaredDistance(), backend="blocked")
        results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_a_function_with_parameters_for_each_head_sees_all_heads_at_once() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 8, 300, 16).unbind()
    temperature = torch.rand(8, 1, 1, requires_grad=True)

    def score(q: Tensor, k: Tensor) -> Tensor:
        assert q.shape[:2] == k.shape[:2] == (2, 8)
        return (q @ k.mT) * temperature

    gradients = []
    for backend in ("blocked", "reference"):
        output = qkv.attention(query, key, value, score=score, backend=backend)
        gradients.append(torch.autograd.grad(output.square().sum(), temperature)[0])
    torch.testing.assert_close(*gradients)
