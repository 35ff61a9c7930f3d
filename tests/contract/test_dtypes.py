"""All dtypes agree; autocast casts like PyTorch, halves accumulate in float32, parameters are not downcast."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, Request, near, refused, request
from tests.contract.criterion import Draw, failed, largest, shares, unit
from tests.contract.mechanisms import ON_CPU
from tests.contract.orders import Order
from tests.contract.served import by_served
from tests.pairs import in_turn
from tests.seed import generator
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import DtypeError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Mean, Softmax
from qkv.normalizers.kinds import KNOWN
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.base import Score
from qkv.scores.kernels import Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, ScaledDot
from qkv.scores.sums import Additive, Concat

BACKENDS = [*ON_CPU, "auto"]
by_backend = pytest.mark.parametrize("backend", BACKENDS)
HALVES = (torch.bfloat16, torch.float16)
by_half = pytest.mark.parametrize("half", HALVES, ids=str)
in_one_half = pytest.mark.parametrize(("backend", "half"), in_turn(BACKENDS, HALVES))
"""In the fast suite each backend in one half type, in turn."""


def calls(backend: str, dtype: torch.dtype):
    found = [Call.draw(score, normalizer, dtype=dtype) for score, normalizer in MECHANISMS]
    found = [call for call in found if backend == "auto" or call.serves(backend)]
    assert found
    return found


@in_one_half
def test_autocast_gives_what_casting_gives(backend: str, half: torch.dtype) -> None:
    """All but float64 are cast, as PyTorch's own attention does."""
    names = ("query", "key", "value")
    both = [
        (call, call.with_leaves(**{name: call.leaves[name].to(half) for name in names}))
        for call in calls(backend, torch.float32)
    ]
    # Sinks go to PyTorch's kernel in float32 only.
    both = [(call, cast) for call, cast in both if backend == "auto" or cast.serves(backend)]
    assert both
    for call, cast in both:
        expected = cast.output(backend)
        with torch.autocast("cpu", half):
            output = call.output(backend)
            _, gradients = call.gradients(backend)
        assert output.dtype == half, call
        assert near(output, expected, 8), call
        assert all(x.dtype == torch.float32 and x.isfinite().all() for x in gradients.values()), call


@in_one_half
def test_autocast_changes_no_state(backend: str, half: torch.dtype) -> None:
    """Neither of a call of cast tensors, nor of one that casts them."""
    made = [
        Call.draw(score, normalizer, ((2, 2), 9, 70), half)
        for score, normalizer in MECHANISMS
        if normalizer.name in KNOWN and score.name != "learned"
    ]
    asked = [call for call in made if backend == "auto" or call.refusal(backend, state=True, gradient=False) is None]
    for call in asked:
        expected = call.state(backend)[1].value
        wider = {name: call.leaves[name].float() for name in ("query", "key", "value")}
        with torch.autocast("cpu", half):
            assert torch.equal(call.state(backend)[1].value, expected), call
            assert torch.equal(call.with_leaves(**wider).state(backend)[1].value, expected), call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_no_map(dtype: torch.dtype) -> None:
    """A map that was made before, and one that is made there of half precision."""
    for score, normalizer in MECHANISMS:
        if score.name == "learned":  # a user's function runs under autocast
            continue
        call = Call.draw(score, normalizer, ((2, 2), 9, 70), dtype)
        inputs, given = (call.leaves["query"], call.leaves["key"]), call.arguments(call.leaves)
        amap = attention_map(*inputs, **given)
        expected = _of_map(amap)
        with torch.autocast("cpu", torch.bfloat16):
            maps = [amap] if dtype == torch.float32 else [amap, attention_map(*inputs, **given)]
            for each in maps:
                for one, other in zip(_of_map(each), expected, strict=True):
                    assert torch.equal(one, other), call


def _of_map(amap: AttentionMap) -> list[Tensor]:
    statistics = amap.statistics("received", "total", "peak", topk=3)
    parts = [statistics.received, statistics.total, statistics.peak, statistics.weights]
    return [*(x for x in parts if x is not None), amap.dense(), amap[..., 2:5, 3:9], amap.pooled(3, 4), amap.received()]


@by_backend
def test_autocast_leaves_float64_alone(backend: str) -> None:
    for call in calls(backend, torch.float64):
        with torch.autocast("cpu", torch.bfloat16):
            output = call.output(backend)
        assert output.dtype == torch.float64, call
        assert near(output, call.output("reference")), call


def test_autocast_takes_mixed_inputs_as_pytorch_does() -> None:
    query, key, value = torch.randn(3, 2, 5, 8).unbind()
    with torch.autocast("cpu", torch.bfloat16):
        ours = attention(query, key.bfloat16(), value)
        theirs = F.scaled_dot_product_attention(query[None], key.bfloat16()[None], value[None])[0]
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert near(ours, theirs, 4)


def test_autocast_refuses_float64_among_others() -> None:
    query, key, value = torch.randn(3, 2, 5, 8).unbind()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(DtypeError, match="key: expected dtype"):
        attention(query.double(), key, value)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(DtypeError, match="value: expected"):
        attention(query, key, value.double())


AVERAGES: dict[str, tuple[Score, Normalizer | None]] = {
    "softmax": (ScaledDot(), Softmax()),
    "sparsemax": (ScaledDot(), Sparsemax()),
    "entmax": (ScaledDot(), Entmax()),
    "entmax_1.3": (ScaledDot(), Entmax(1.3)),
    "gaussian": (Gaussian(), None),
    "additive": (Additive(torch.ones(1)), Softmax()),
}


def of_many(half: torch.dtype, mechanism: str) -> Request:
    query, key = torch.zeros(4, 1, dtype=half), torch.zeros(3000, 1, dtype=half)
    score, normalizer = AVERAGES[mechanism]
    return request(query, key, (torch.rand(3000, 8) + 1).to(half), score=score, normalizer=normalizer)


@by_served(of_many, BACKENDS, half=HALVES, mechanism=AVERAGES)
def test_halves_accumulate_in_float32(backend: str, half: torch.dtype, mechanism: str) -> None:
    """Averages of 3,000 values: summed in half precision, their second digit would be wrong."""
    call = of_many(half, mechanism)
    output = attention(*call.tensors, **call.options, backend=backend)
    assert near(output, call.tensors[2].double().mean(0).expand(4, 8).to(half), 2)


LEARNED: dict[str, Callable[[float], tuple[Score, Normalizer | None]]] = {
    "bandwidth": lambda x: (SquaredDistance(torch.tensor(2.0 * x)), Softmax()),
    "bandwidth of a kernel": lambda x: (Gaussian(torch.tensor(2.0 * x)), None),
    "alpha": lambda x: (ScaledDot(), Entmax(torch.tensor(1.25 * x))),
    "fixed alpha": lambda x: (ScaledDot(), Entmax(1.25 * x)),
}


def times(half: torch.dtype, parameter: str, factor: float) -> Request:
    tensors = (torch.randn(64, 8, generator=torch.Generator().manual_seed(i)).to(half) for i in range(3))
    score, normalizer = LEARNED[parameter](factor)
    return request(*tensors, score=score, normalizer=normalizer)


@by_served(lambda half, parameter: times(half, parameter, 1.0), BACKENDS, half=HALVES, parameter=LEARNED)
def test_parameters_are_not_lowered(backend: str, half: torch.dtype, parameter: str) -> None:
    """A bandwidth, softcap or alpha that half precision cannot represent must make a difference."""
    calls = [times(half, parameter, factor) for factor in (1.0, 1 + torch.finfo(half).eps / 4)]
    one, two = (attention_with_state(*call.tensors, **call.options, backend=backend)[1].value for call in calls)
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("backend", "dtype"), in_turn(BACKENDS, [torch.bfloat16, torch.float16, torch.float32, torch.float64]), ids=str
)
def test_results_have_the_type_of_the_query(backend: str, dtype: torch.dtype) -> None:
    """Also if the parameters are float32, as in mixed precision."""
    given = calls(backend, torch.float32)
    lowered = [x.with_leaves(**{name: x.leaves[name].to(dtype) for name in ("query", "key", "value")}) for x in given]
    served = [call for call in lowered if backend == "auto" or call.serves(backend)]
    assert served, f"{backend} serves nothing in {dtype}"
    for call in served:
        output, weights = call.weights(backend)
        assert output.dtype == weights.dtype == dtype, call


@by_half
def test_a_bilinear_weight_in_float32_meets_half_queries(half: torch.dtype) -> None:
    query, key, value = (torch.randn(2, 5, 4).to(half) for _ in range(3))
    weight = torch.randn(4, 4, requires_grad=True)
    output = attention(query, key, value, score=Bilinear(weight))
    output.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_gradients_have_the_types_of_their_inputs() -> None:
    query = torch.randn(2, 5, 4, dtype=torch.bfloat16, requires_grad=True)
    bandwidth = torch.ones((), requires_grad=True)
    for backend in ("reference", "blocked"):
        output, _ = attention_with_weights(query, query, query, score=Gaussian(bandwidth), backend=backend)
        gradients = torch.autograd.grad(output.sum(), [query, bandwidth])
        assert [x.dtype for x in gradients] == [torch.bfloat16, torch.float32]


def test_mean_of_more_keys_than_float16_counts() -> None:
    """70,000 exceeds the largest float16."""
    query, key = torch.ones(1, 1, dtype=torch.float16), torch.ones(70_000, 1, dtype=torch.float16)
    for backend in ("reference", "blocked", "linear"):
        output = attention(query, key, key, normalizer=Mean(), score=ScaledDot(), backend=backend)
        assert near(output, torch.ones(1, 1, dtype=torch.float16), 2), backend
    for backend in ("reference", "blocked"):
        assert near(attention(query, key, key, score=Gaussian(), backend=backend), torch.ones(1, 1).half(), 2), backend


def _parameters(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Parameters stay in float32 next to half-precision inputs; large, so that rounding a score would cost over 1."""
    g = torch.Generator().manual_seed(1)
    shapes = {"matrix": (16, 16), "vector": (16,), "per_head": (2,), "bias": (2, 32, 50)}
    found = {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}
    return {name: (3 * x).to(dtype) for name, x in found.items()}


COMPUTED = {
    "cosine": lambda p: Cosine(100.0),
    "cosine_per_head": lambda p: Cosine(20 * p["per_head"]),
    "scaled_per_head": lambda p: ScaledDot(p["per_head"]),
    "bilinear": lambda p: Bilinear(p["matrix"], 0.3),
    "additive": lambda p: Additive(4 * p["vector"], p["matrix"], p["matrix"].mT),
    "additive_keys_projected": lambda p: Additive(4 * p["vector"], p["matrix"]),
    "additive_projected": lambda p: Additive(4 * p["vector"]),
    "concat": lambda p: Concat(p["vector"], p["vector"].flip(0), "leaky_relu"),
}
"""Scores that compute with parameters before their core."""

Mechanism = tuple[str, Normalizer, bool]
"""A score by its name, a normalizer, and whether there is a bias."""


def computed(half: torch.dtype) -> Iterator[Request]:
    tensors = (torch.randn(size).to(half).requires_grad_() for size in ((2, 32, 16), (2, 50, 16), (2, 50, 64)))
    query, key, value = tensors
    own = _parameters(torch.float32)
    for score, (normalizer, biased) in product(COMPUTED, RULES):
        bias = own["bias"] if biased else None
        yield request(query, key, value, score=COMPUTED[score](own), normalizer=normalizer, bias=bias)


RULES = ((Softmax(), False), (Softmax(), True), (Entmax(1.3), True), (Mean(), False))


@by_served(computed, BACKENDS, every=2, half=HALVES)
def test_only_inputs_and_outputs_are_rounded_to_half(backend: str, half: torch.dtype) -> None:
    """The contract's criterion, with m the reference, which computes in float32: not the equation all in half."""
    sizes = ((2, 32, 16), (2, 50, 16), (2, 50, 64), (2, 32, 64))

    def answers(
        dtype: torch.dtype, name: str, case: tuple[str, Normalizer, bool], turn: int
    ) -> dict[str, torch.Tensor]:
        g = generator("half", turn)
        *inputs, cotangent = (torch.randn(size, generator=g).to(half) for size in sizes)
        score, normalizer, biased = case
        own = _parameters(torch.float64 if dtype == torch.float64 else torch.float32)
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        options = {"score": COMPUTED[score](own), "normalizer": normalizer, "bias": own["bias"] if biased else None}
        if name != "auto" and refused(name, *leaves, **options):
            return {}
        output = attention(*leaves, **options, backend=name)
        gradients = torch.autograd.grad(output, leaves, cotangent.to(dtype))
        return {"output": output, **dict(zip(("query", "key", "value"), gradients, strict=True))}

    def draw(turn: int, case: Mechanism) -> Draw:
        exact = answers(torch.float64, "reference", case, turn)
        scales = {name: largest(x) for name, x in exact.items()}
        most = max(scale for name, scale in scales.items() if name != "output")
        # A gradient that is 0 by symmetry is what float32 leaves of terms that cancel.
        cancelled = torch.finfo(torch.float32).eps * most / (2 * unit(half))
        scales |= {name: cancelled for name, scale in scales.items() if scale <= most * 2.0**-40}

        def literal(order: Order) -> dict[str, torch.Tensor]:
            with order.summing():
                return answers(half, "reference", case, turn)

        return Draw(answers(half, backend, case, turn), exact, literal, scales)

    for score, (normalizer, biased) in product(COMPUTED, RULES):
        case = (score, normalizer, biased)
        if answers(half, backend, case, 0):
            assert not failed(shares(partial(draw, case=case), half)), case


@by_half
def test_autocast_rounds_no_projection(half: torch.dtype) -> None:
    """Autocast casts query, key and value to half; what is computed from them stays in float32."""
    query, key, value = torch.randn(3, 2, 20, 16, generator=torch.Generator().manual_seed(0)).unbind()
    for name, make in COMPUTED.items():
        for backend in ON_CPU:
            for normalizer in (Softmax(), Mean()):
                options = {"score": make(_parameters(torch.float32)), "normalizer": normalizer}
                lowered = [x.to(half) for x in (query, key, value)]
                if refused(backend, *lowered, **options):
                    continue
                expected = attention(*lowered, **options, backend=backend)
                with torch.autocast("cpu", half):
                    assert torch.equal(attention(query, key, value, **options, backend=backend), expected), name


@pytest.mark.kernels
@by_half
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_bias_is_not_rounded_to_half(half: torch.dtype, repeats: int) -> None:
    """1000.4 and 1000 are one number in half precision, and two in float32: the weights differ by a factor e^0.4."""
    query = torch.zeros(1, 2, 4, 8, dtype=half)
    value = torch.tensor([0.0, 1.0]).to(half)[:, None].expand(1, 2, 2, 8)
    bias = torch.tensor([1000.0, 1000.4])
    expected = torch.sigmoid(bias[1].double() - 1000).expand(1, 2, 4, 8)
    for backend in ("auto", "reference", "blocked", "rowwise", "sdpa"):
        for _ in range(repeats):
            output = attention(query, query[..., :2, :], value, bias=bias, backend=backend)
            # The weights are rounded once, and the output once.
            assert near(output, expected.to(half), 2), backend
