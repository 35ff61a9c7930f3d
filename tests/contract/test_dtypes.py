"""Types: all agree, autocast casts as PyTorch does, halves accumulate in float32, parameters are not lowered."""

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, near
from tests.contract.mechanisms import ON_CPU
from torch.nn import functional as F

from qkv.backends.registry import BACKENDS
from qkv.errors import DtypeError
from qkv.functional import attention, attention_with_state, attention_with_weights, explain
from qkv.normalizers.dense import Mean, Softmax
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.kernels import Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, ScaledDot
from qkv.scores.sums import Additive

by_backend = pytest.mark.parametrize("backend", [*ON_CPU, "auto"])
HALVES = (torch.bfloat16, torch.float16)
by_half = pytest.mark.parametrize("half", HALVES, ids=str)


def calls(backend: str, dtype: torch.dtype):
    found = [Call.draw(score, normalizer, dtype=dtype) for score, normalizer in MECHANISMS]
    found = [call for call in found if backend == "auto" or call.serves(backend)]
    assert found
    return found


@by_half
@by_backend
def test_autocast_gives_what_casting_gives(backend: str, half: torch.dtype) -> None:
    """All but float64 are cast, as PyTorch's own attention does."""
    names = ("query", "key", "value")
    both = [
        (call, call.with_leaves(**{name: call.leaves[name].to(half) for name in names}))
        for call in calls(backend, torch.float32)
    ]
    # Sinks go to PyTorch's kernel in float32 alone.
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


@by_half
@by_backend
def test_halves_accumulate_in_float32(backend: str, half: torch.dtype) -> None:
    """Averages of 3,000 values: summed in half precision they would be wrong in the second digit."""
    query, key = torch.zeros(4, 1, dtype=half), torch.zeros(3000, 1, dtype=half)
    value = (torch.rand(3000, 8) + 1).to(half)
    expected = value.double().mean(0).expand(4, 8)
    served = 0
    for score, normalizer in (
        (ScaledDot(), Softmax()),
        (ScaledDot(), Sparsemax()),
        (ScaledDot(), Entmax()),
        (ScaledDot(), Entmax(1.3)),
        (Gaussian(), None),
        (Additive(torch.ones(1)), Softmax()),
    ):
        if backend != "auto":
            options = {"score": score, "normalizer": normalizer}
            if BACKENDS[backend].refuses(explain(query, key, value, **options).problem) is not None:
                continue
        served += 1
        output = attention(query, key, value, score=score, normalizer=normalizer, backend=backend)
        assert near(output, expected.to(half), 2), (score, normalizer)
    if not served:
        pytest.skip(f"{backend} averages nothing")


@by_half
@by_backend
def test_parameters_are_not_lowered(backend: str, half: torch.dtype) -> None:
    """A bandwidth, softcap or alpha that half precision cannot hold makes the difference it should."""
    query, key, value = (torch.randn(64, 8, generator=torch.Generator().manual_seed(i)).to(half) for i in range(3))
    u = torch.finfo(half).eps / 2
    served = 0
    for make in (
        lambda x: (SquaredDistance(torch.tensor(2.0 * x)), Softmax()),
        lambda x: (Gaussian(torch.tensor(2.0 * x)), None),
        lambda x: (ScaledDot(), Entmax(torch.tensor(1.25 * x))),
        lambda x: (ScaledDot(), Entmax(1.25 * x)),
    ):
        (score, normalizer), (more, other) = make(1.0), make(1 + u / 2)
        if backend != "auto":
            options = {"score": score, "normalizer": normalizer}
            if BACKENDS[backend].refuses(explain(query, key, value, **options).problem) is not None:
                continue
        served += 1
        state = {"backend": backend}
        one = attention_with_state(query, key, value, score=score, normalizer=normalizer, **state)[1].value
        two = attention_with_state(query, key, value, score=more, normalizer=other, **state)[1].value
        assert not torch.equal(one, two), (score, normalizer)
    if not served:
        pytest.skip(f"{backend} has no such parameter")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@by_backend
def test_results_have_the_type_of_the_query(backend: str, dtype: torch.dtype) -> None:
    """Also where the parameters are float32, as under mixed precision."""
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
    """70,000 is past the largest float16."""
    query, key = torch.ones(1, 1, dtype=torch.float16), torch.ones(70_000, 1, dtype=torch.float16)
    for backend in ("reference", "blocked", "linear"):
        output = attention(query, key, key, normalizer=Mean(), score=ScaledDot(), backend=backend)
        assert near(output, torch.ones(1, 1, dtype=torch.float16), 2), backend
    for backend in ("reference", "blocked"):
        assert near(attention(query, key, key, score=Gaussian(), backend=backend), torch.ones(1, 1).half(), 2), backend
