"""Extreme magnitudes: results stay within the bound of the float64 result, or overflow visibly, never silently."""

from collections.abc import Callable

import pytest
import torch
from tests.contract.calls import Request, request
from tests.contract.criterion import Draw, failed, largest, shares, unit
from tests.contract.orders import Order
from tests.contract.served import by_served
from tests.seed import generator
from torch import Tensor

from qkv.functional import attention, attention_with_state
from qkv.introspect.lazy_map import attention_map
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.base import Score
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def check(backend: str, call: Request, roundoffs: float = 16.0) -> None:
    """Compare with the float64 result, within `roundoffs` of the largest value."""
    exact = attention(*(x.double() for x in call.tensors), **call.options, backend="reference")
    output = attention(*call.tensors, **call.options, backend=backend)
    limit = roundoffs * unit(output.dtype) * max(1.0, call.tensors[2].double().abs().max().item())
    error = (output.double() - exact).abs()
    assert error.isfinite().all()
    assert error.max() <= limit, f"{error.max().item():g} is over {limit:g}"


def huge(normalizer: Normalizer, size: float) -> Request:
    query, key = torch.full((4, 1), 1.0), torch.linspace(-1, 1, 9)[:, None] * size
    return request(query, key, torch.randn(9, 3), score=Dot(), normalizer=normalizer)


@by_served(huge, normalizer=[Softmax(), Sparsemax(), Entmax(), Entmax(1.3), Hard()], size=[1e4, 1e15, 1e30])
def test_huge_logits(backend: str, normalizer: Normalizer, size: float) -> None:
    """±size: one key of each row gets all the weight, and nothing overflows."""
    check(backend, huge(normalizer, size))


def huge_of_one_sign() -> Request:
    return request(torch.ones(2, 1), torch.tensor([[-1e30], [-2e30]]), torch.ones(2, 1), score=Dot())


@by_served(huge_of_one_sign)
def test_huge_logits_of_one_sign_have_a_state(backend: str) -> None:
    call = huge_of_one_sign()
    output, state = attention_with_state(*call.tensors, **call.options, backend=backend)
    assert torch.equal(output, torch.ones(2, 1))
    assert torch.equal(state.lse, torch.full((2,), -1e30))


def large(sign: int, dtype: torch.dtype) -> Request:
    query = torch.full((3, 64), 1e4, dtype=dtype)
    key = torch.stack([torch.full((64,), 1e4), torch.full((64,), -1e4), torch.zeros(64)]).to(dtype) * sign
    return request(query, key, torch.randn(3, 5).to(dtype), score=ScaledDot(), normalizer=Softmax())


@by_served(large, sign=[1, -1], dtype=DTYPES)
def test_large_activations_of_any_sign(backend: str, sign: int, dtype: torch.dtype) -> None:
    """Activations of ±1e4: the product of two does not fit in float16."""
    check(backend, large(sign, dtype), 4)


def angles(size: float, dtype: torch.dtype) -> Request:
    query, key = torch.randn(6, 8), torch.randn(7, 8)
    tensors = ((query * size).to(dtype), (key / size).to(dtype), torch.randn(7, 3).to(dtype))
    return request(*tensors, score=Cosine(), normalizer=Softmax())


@by_served(angles, size=[1e4, 1e-4], dtype=DTYPES)
def test_cosine_at_any_magnitude(backend: str, size: float, dtype: torch.dtype) -> None:
    check(backend, angles(size, dtype), 16)


def opposite(dtype: torch.dtype) -> Request:
    a = torch.linspace(-1e4, 1e4, 9).to(dtype)[:, None] + torch.zeros(9, 4, dtype=dtype)
    b = -a + torch.tensor([0.5, -0.25, 0.125, 0.0], dtype=dtype)
    score = Additive(torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=dtype))
    return request(a, b, torch.randn(9, 3).to(dtype), score=score, normalizer=Softmax())


@by_served(opposite, dtype=DTYPES)
def test_additive_with_activations_of_opposite_sign(backend: str, dtype: torch.dtype) -> None:
    """±1e4: a careless e^{2a}·e^{2b} is ∞·0, though the sum a + b may be small."""
    check(backend, opposite(dtype), 32)


def rectified(normalizer: Normalizer) -> Request:
    a, b = torch.linspace(-1e4, 1e4, 9)[:, None], torch.linspace(1e4, -1e4, 11)[:, None]
    score = Concat(torch.ones(1), torch.ones(1), "relu" if isinstance(normalizer, Mean) else "leaky_relu")
    return request(a, b, torch.randn(11, 3), score=score, normalizer=normalizer)


@by_served(rectified, normalizer=[Mean(), Softmax()])
def test_rectified_sums_of_opposite_sign(backend: str, normalizer: Normalizer) -> None:
    check(backend, rectified(normalizer), 32 * (1e4 if isinstance(normalizer, Mean) else 1.0))


def two_clusters(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """At ±1000, with differences of about one: ‖q‖² + ‖k‖² − 2q·k cancels twenty bits."""
    side = torch.tensor([1000.0, -1000.0]).repeat(8)[:, None]
    return side + torch.randn(16, width), side + torch.randn(16, width), torch.randn(16, 3)


def one_outlier(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """An outlier at 1e6 dominates any mean or norm taken over all keys."""
    query, key = torch.randn(16, width), torch.randn(16, width)
    key[5] = 1e6
    query[3] = 1e6
    return query, key, torch.randn(16, 3)


def far_away(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """All numbers near 1e5: only differences matter."""
    return 1e5 + torch.randn(16, width), 1e5 + torch.randn(16, width), torch.randn(16, 3)


KERNELS = {
    "distance": (SquaredDistance(), Softmax()),
    "gaussian": (Gaussian(2.0), Sum()),
    "epanechnikov": (Epanechnikov(4.0), Sum()),
    "triangle": (Epanechnikov(4.0, 1), Sum()),
    "boxcar": (Boxcar(3.0), Sum()),
    "sparse distance": (SquaredDistance(), Sparsemax()),
}
Scene = Callable[[int], tuple[Tensor, Tensor, Tensor]]
SCENES = [two_clusters, one_outlier, far_away]


def at_distances(scene: Scene, width: int, kernel: str) -> Request:
    torch.manual_seed(4)
    score, normalizer = KERNELS[kernel]
    return request(*scene(width), score=score, normalizer=normalizer)


@by_served(at_distances, width=[1, 8], kernel=KERNELS, scene=SCENES)
def test_distances_do_not_cancel(backend: str, width: int, kernel: str, scene: Scene) -> None:
    # Differences of the rounded inputs are exact; a relative error of a score up to 50 shows in the weights.
    check(backend, at_distances(scene, width, kernel), 200)


@by_served(lambda scene: at_distances(scene, 8, "distance"), scene=SCENES)
def test_gradients_of_distances_do_not_cancel(backend: str, scene: Scene) -> None:
    found = []
    for dtype, name in ((torch.float64, "reference"), (torch.float32, backend)):
        leaves = [x.to(dtype).requires_grad_() for x in at_distances(scene, 8, "distance").tensors]
        output = attention(*leaves, score=SquaredDistance(), backend=name)
        found.append(torch.autograd.grad(output.square().sum(), leaves))
    for exact, ours in zip(*found, strict=True):
        scale = max(1.0, exact.abs().max().item())
        assert (ours.double() - exact).abs().max() <= 500 * unit(torch.float32) * scale


def subnormal(dtype: torch.dtype) -> Request:
    query = (torch.randn(4, 8).double() * 4).to(dtype)
    key = (torch.randn(5, 8).double() * torch.finfo(dtype).tiny / 2).to(dtype)
    return request(query, key, torch.randn(5, 3).to(dtype), score=ScaledDot(), normalizer=Softmax())


@by_served(subnormal, dtype=DTYPES)
def test_denormals(backend: str, dtype: torch.dtype) -> None:
    """Subnormal numbers are numbers."""
    check(backend, subnormal(dtype), 4)


def largest_values() -> Request:
    return request(torch.zeros(2, 4), torch.zeros(50, 4), torch.full((50, 2), 3e38))


@by_served(largest_values)
def test_values_at_the_end_of_the_range(backend: str) -> None:
    """Weights sum to one: values of 1e38 average to 1e38 without being summed first.

    PyTorch's kernel divides last: values over the largest number / K overflow there, visibly.
    """
    output = attention(*largest_values().tensors, backend=backend)
    expected = torch.full((2, 2), torch.inf if backend == "sdpa" else 3e38)
    assert torch.allclose(output, expected, rtol=1e-5)


def saturated(normalizer: Normalizer) -> Request:
    key = torch.tensor([[-1e30], [0.0], [1e30]])
    return request(torch.ones(2, 1), key, torch.randn(3, 2), score=Dot(), normalizer=normalizer)


@by_served(saturated, normalizer=[Sigmoid(), Sigmoid(0.0)])
def test_sigmoid_saturates(backend: str, normalizer: Normalizer) -> None:
    check(backend, saturated(normalizer))


def pulled(
    backend: str, tensors: tuple[Tensor, ...], score: Score, cotangent: Tensor, normalizer: Normalizer | None = None
) -> list[Tensor]:
    """The output, and the gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    output = attention(*leaves, score=score, normalizer=normalizer, backend=backend)  # type: ignore[call-overload]
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent.to(output.dtype))]


def nearly_underflowing(dtype: torch.dtype, reach: float) -> Request:
    """Pairs at `reach` of the distance at which the exponential becomes 0."""
    far = reach * (2 * _largest_exponent(dtype)) ** 0.5
    query = torch.tensor([[far / 2] * 4, [0.0] * 4, [0.25, 0.0, -0.25, 0.0]]).repeat(12, 1).to(dtype)
    key = torch.tensor([[0.0] * 4, [-0.0625, 0.0, 0.0, 0.0], [-0.5, -1.0, -0.5, 0.0]]).to(dtype)
    return request(query, key, torch.tensor([[1.0, -2.0], [3.0, 0.5], [-1.0, 1.0]]).to(dtype), score=Gaussian())


def _largest_exponent(dtype: torch.dtype) -> float:
    return (1075 if dtype == torch.float64 else 150) * 0.6931


@by_served(nearly_underflowing, dtype=DTYPES, reach=[0.905, 0.95, 0.985])
def test_a_gaussian_that_nearly_underflows_is_a_softmax(backend: str, dtype: torch.dtype, reach: float) -> None:
    """Subnormal weights are divided by their sum like others, and contribute to gradients like others.

    The squared distance to a key is a sum of four rounded squares: its relative error is at most 3u, that of a
    difference of two exponents 6u times the largest, and a weight's likewise. A gradient has a distance as a factor.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    largest = _largest_exponent(dtype)
    far = reach * (2 * largest) ** 0.5
    tensors = nearly_underflowing(dtype, reach).tensors
    cotangent = torch.linspace(1, 2, 72).view(36, 2)
    exact = pulled("reference", tuple(x.double() for x in tensors), SquaredDistance(), cotangent)
    limit = 8 * largest * unit(wide) + 4 * unit(dtype)
    for expected, got in zip(exact, pulled(backend, tensors, Gaussian(), cotangent), strict=True):
        scale = far * max(1.0, expected.abs().max().item())
        assert got.isfinite().all()
        assert (got.double() - expected).abs().max() <= limit * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_maps_of_a_gaussian_that_nearly_underflows_are_the_weights(dtype: torch.dtype) -> None:
    """The row state has lost digits: such rows are renormalized."""
    far = 14.2 if dtype == torch.float32 else 38.4
    query, key = torch.tensor([[far], [0.5]], dtype=dtype), torch.tensor([[0.0], [-0.03], [0.01]], dtype=dtype)
    value = torch.eye(3, dtype=dtype)
    weights = attention(query, key, value, score=Gaussian())
    found = attention_map(query, key, score=Gaussian())
    assert torch.allclose(found.dense(), weights, rtol=1e-3)
    assert torch.allclose(found[0:1, 1:3], weights[:1, 1:3], rtol=1e-3)
    assert torch.allclose(found.received().to(dtype), weights.sum(0), rtol=1e-3)


def around_zero(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.clone()


def twins(x: Tensor) -> tuple[Tensor, Tensor]:
    """Half of the keys are queries, the others are close to one."""
    return x, torch.where(torch.arange(x.shape[0])[:, None] % 2 == 0, x, x + 1e-5 * x.flip(0))


def clusters(x: Tensor) -> tuple[Tensor, Tensor]:
    side = torch.tensor([100.0, -100.0]).repeat(x.shape[0] // 2)[:, None]
    return x + side, x + side


def one_far(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone()
    x[3] = 1e4
    return x, x.clone()


def root(scene: Callable[[Tensor], tuple[Tensor, Tensor]], width: int, power: float) -> Request:
    return request(*scene(torch.randn(48, width)), torch.randn(48, 8), score=Epanechnikov(4.0, power))


@by_served(root, every=2, width=[1, 16], power=[0.25, 0.5, 1, 1.5, 3, 8], scene=[around_zero, twins, clusters, one_far])
def test_roots_of_distances_are_as_exact_as_the_equation(backend: str, width: int, power: float, scene) -> None:
    """Self-attention: the distance of a point to itself is 0, and a root magnifies any rounding error in it."""
    score = Epanechnikov(4.0, power)
    names = ("output", "query", "key", "value")

    def draw(turn: int) -> Draw:
        g = generator("roots", turn)
        query, key = scene(torch.randn(48, width, generator=g))
        value, cotangent = torch.randn(2, 48, 8, generator=g)
        tensors = (query, key, value)

        def answers(name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
            return dict(zip(names, pulled(name, tuple(x.to(dtype) for x in tensors), score, cotangent), strict=True))

        def literal(order: Order) -> dict[str, torch.Tensor]:
            with order.summing():
                return answers("reference", torch.float32)

        exact = answers("reference", torch.float64)
        scales = {name: max(1.0, largest(x)) for name, x in exact.items()}
        return Draw(answers(backend, torch.float32), exact, literal, scales)

    assert not failed(shares(draw, torch.float32))


def outside() -> Request:
    tensors = torch.tensor([[0.0], [0.5]]), torch.tensor([[0.25], [1e9]]), torch.ones(2, 1)
    return request(*tensors, score=Epanechnikov(power=12))


@by_served(outside)
def test_a_power_far_outside_its_support_has_no_slope(backend: str) -> None:
    """The derivative overflows where the kernel is 0."""
    call = outside()
    found = pulled(backend, call.tensors, call.options["score"], torch.ones(2, 1))
    assert all(x.isfinite().all() for x in found)


Sizes = tuple[float, float]


def of_bandwidth(dtype: torch.dtype, sizes: Sizes, learned: bool, kernel: type[Score], width: int) -> Request:
    bandwidth, size = sizes
    torch.manual_seed(6)
    query, key = ((torch.randn(2, 40, width) * size).to(dtype) for _ in range(2))
    key[:, :20] = query[:, :20]
    kind = dtype if dtype == torch.float64 else torch.float32
    h = torch.tensor([bandwidth, 2 * bandwidth], dtype=kind, requires_grad=True) if learned else bandwidth
    leaves = [x.requires_grad_() for x in (query, key, torch.randn(2, 40, 3).to(dtype))]
    return request(*leaves, score=kernel(h))


@by_served(
    of_bandwidth,
    every=5,
    dtype=[torch.float32, torch.float64, torch.bfloat16],
    sizes=[(1e-20, 1.0), (1e-20, 1e-20), (1e30, 1.0), (1e30, 1e30)],
    learned=[False, True],
    kernel=[Gaussian, SquaredDistance, Epanechnikov, Boxcar],
    width=[1, 5],
)
def test_bandwidths_of_any_size(
    backend: str, dtype: torch.dtype, sizes: Sizes, learned: bool, kernel: type[Score], width: int
) -> None:
    """‖q−k‖²/h² equals that of the quotients, even if h² or h⁻² overflows float32."""
    call = of_bandwidth(dtype, sizes, learned, kernel, width)
    cotangent, answers = torch.randn(2, 40, 3), []
    for name, kind in (("reference", torch.float64), (backend, dtype)):
        leaves = [x.detach().to(kind).requires_grad_() for x in call.tensors]
        score = of_bandwidth(kind, sizes, learned, kernel, width).options["score"]
        output = attention(*leaves, score=score, backend=name)
        wanted = [*leaves, score.bandwidth] if learned else leaves
        pulls = torch.autograd.grad(output, wanted, cotangent.to(kind), allow_unused=True, materialize_grads=True)
        answers.append([output, *(x.flatten() for x in pulls[:3]), *(pulls[3:])])
    for expected, got in zip(*answers, strict=True):
        scale = max(1e-30, expected.abs().max().item())
        # Weights differ by a few roundoffs of exponents of at most 30; a gradient sums hundreds of terms.
        assert (got.double() - expected).abs().max() <= 500 * unit(dtype) * scale


def tiny_supports() -> Request:
    x = torch.tensor([1.1, 1.3, 1.1, 1.7, 1.3, 1.3], dtype=torch.float64)[:, None] * 1e6
    value = torch.arange(6.0, dtype=torch.float64)[:, None]
    return request(x, x, value, score=Epanechnikov(1e-12), normalizer=Sum())


@by_served(tiny_supports)
def test_keys_so_far_that_cells_cannot_be_told_apart_are_subtracted(backend: str) -> None:
    """On a line 1e18 bandwidths from 0, centers of support-wide cells round to thousands of supports."""
    check(backend, tiny_supports())
