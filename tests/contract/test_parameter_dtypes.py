"""A parameter in a narrower type gives what the same numbers give in the call's type: nothing is computed in less.

The numbers of a narrow type are numbers of every wider one, so both calls have the same answer, to the last bit.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.calls import MECHANISMS, Call, Request, by_part, near, request, same_bits
from tests.contract.mechanisms import DTYPES, NORMALIZER, ON_CPU
from tests.contract.served import by_served
from tests.pairs import in_turn
from torch import Tensor

from qkv.biases import alibi, relative
from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.introspect.lazy_map import attention_map
from qkv.masks.patterns import causal, lengths
from qkv.normalizers.dense import Softmax
from qkv.scores.kernels import Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import ScaledDot

BACKENDS = (*ON_CPU, "auto")
NARROW = (torch.float32, torch.bfloat16, torch.float16)
INPUTS = ("query", "key", "value")
# A user-defined function computes with what it closes over; that is not a parameter of a score.
LEARNED = tuple(
    (score, normalizer)
    for score, normalizer in MECHANISMS
    if score.name != "learned" and (score.shapes(score.width, score.key_width) or normalizer.shapes)
)


def compute_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def answers(call: Call, backend: str, bias: Any) -> list[Tensor]:
    """Output, weights, row state, map and gradients; those of the inputs alone, as the others differ in type."""
    call = call.with_options(bias=bias) if bias is not None else call
    leaves = {name: x.detach().clone().requires_grad_() for name, x in call.leaves.items()}
    found: list[Tensor] = []
    output = call._call(attention, leaves, backend)
    found += [output, *torch.autograd.grad(output.sum(), [leaves[name] for name in INPUTS], allow_unused=True)]
    for function in (attention_with_weights, attention_with_state):
        try:
            output, more = call._call(function, call.leaves, backend)
        except UnsupportedError:
            continue
        found += [output, more if isinstance(more, Tensor) else more.value]
    if backend == "auto":
        tensors = (call.leaves["query"], call.leaves["key"])
        found.append(attention_map(*tensors, **call.arguments(call.leaves)).dense())
    return [x.detach() for x in found if x is not None]


def biases(kind: str, dtype: torch.dtype, like: torch.dtype) -> Any:
    """A bias whose numbers have one type, stored in another."""
    g = torch.Generator().manual_seed(3)
    held = torch.rand(2, 5, generator=g).to(dtype).to(like)
    if kind == "tensor":
        return held[:, :1, None].expand(2, 5, 7)
    return {"none": None, "alibi": alibi(held[:, 0]), "relative": relative(held)}[kind]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=12)
@given(
    which=st.integers(0, len(LEARNED) - 1),
    dtype=st.sampled_from(DTYPES),
    narrow=st.sampled_from(NARROW),
    kind=st.sampled_from(("none", "none", "tensor", "alibi", "relative")),
    mask=st.sampled_from((None, causal(), lengths(torch.tensor([7, 3])))),
)
def test_a_narrow_parameter_is_promoted_before_any_arithmetic(
    backend: str, which: int, dtype: torch.dtype, narrow: torch.dtype, kind: str, mask: Any
) -> None:
    score, normalizer = LEARNED[which]
    if normalizer.needs_non_negative:
        kind = "none"
    drawn = Call.draw(score, normalizer, dtype=torch.float64, mask=mask)
    inputs = {name: drawn.leaves[name].to(dtype) for name in INPUTS}
    parameters = {name: x.to(narrow) for name, x in drawn.leaves.items() if name not in INPUTS}
    wide = torch.promote_types(narrow, compute_type(dtype))
    one = drawn.with_leaves(**inputs, **parameters)
    other = drawn.with_leaves(**inputs, **{name: x.to(wide) for name, x in parameters.items()})
    try:
        found = answers(one, backend, biases(kind, narrow, narrow))
    except UnsupportedError:
        return
    expected = answers(other, backend, biases(kind, narrow, wide))
    assert len(found) == len(expected)
    assert all(same_bits(x, y) for x, y in zip(found, expected, strict=True)), (one, kind)


@by_part
@pytest.mark.parametrize(("backend", "negated"), in_turn(BACKENDS, [False, True]))
def test_a_parameter_in_float64_or_lazily_negated_is_the_same_number(backend: str, negated: bool, whole: bool) -> None:
    """In the fast suite of every other parameter, of the others if they are negated."""
    averaged = ((score, NORMALIZER["mean"]) for score, normalizer in LEARNED if normalizer.name in ("softmax", "sum"))
    for turn, (score, normalizer) in enumerate((*LEARNED, *averaged)):
        if not whole and turn % 2 != int(negated):
            continue
        dtype, mask = DTYPES[turn % len(DTYPES)], (None, causal(), lengths(torch.tensor([7, 3])))[turn // 2 % 3]
        drawn = Call.draw(score, normalizer, dtype=torch.float64, mask=mask)
        inputs = {name: drawn.leaves[name].to(dtype) for name in INPUTS}
        narrow = {name: x.bfloat16() for name, x in drawn.leaves.items() if name not in INPUTS}
        double = {name: x.double() for name, x in narrow.items()}
        wide = {name: torch._neg_view(-x) if negated else x for name, x in double.items()}
        try:
            found = answers(drawn.with_leaves(**inputs, **wide), backend, None)
        except UnsupportedError:
            continue
        expected = answers(drawn.with_leaves(**inputs, **narrow), backend, None)
        # A state is float64 whatever it was computed in.
        assert all(near(x, y.to(dtype)) for x, y in zip(found, expected, strict=True)), (drawn, dtype)


def in_float64(narrow: torch.dtype) -> Iterator[tuple[Request, Tensor]]:
    """Requests, and the weights that the equation gives them."""
    g = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 30, 4, generator=g, dtype=torch.float64) for _ in range(3))
    h, c = torch.tensor([1.7, 2.9]).to(narrow), torch.tensor([0.3, 0.7]).to(narrow)
    x = (query[:, :, None] - key[:, None]).square().sum(-1) / h.double()[:, None, None] ** 2
    cut = (1 - x / 4).clamp(min=0)  # 2h is exact in every binary type
    dots = query @ key.mT * c.double()[:, None, None]
    penalty = (torch.arange(30)[:, None] - torch.arange(30)).abs() * c.double()[:, None, None]
    cases: list[tuple[dict[str, Any], Tensor]] = [
        ({"score": SquaredDistance(h)}, torch.softmax(-x / 2, -1)),
        ({"score": Gaussian(h)}, torch.softmax(-x / 2, -1)),
        ({"score": Epanechnikov(h * 2)}, cut / cut.sum(-1, keepdim=True)),
        ({"score": ScaledDot(c)}, torch.softmax(dots, -1)),
        ({"score": ScaledDot(1.0), "bias": alibi(c)}, torch.softmax(query @ key.mT - penalty, -1)),
        (
            {"score": ScaledDot(c), "normalizer": Softmax(c)},
            torch.softmax(torch.cat([dots, c.double()[:, None, None].expand(2, 30, 1)], -1), -1)[..., :-1],
        ),
    ]
    for options, weights in cases:
        yield request(query, key, value, **options), weights


@by_served(lambda narrow: (call for call, _ in in_float64(narrow)), BACKENDS, narrow=NARROW)
def test_a_call_in_float64_is_exact_whatever_the_type_of_its_parameter(backend: str, narrow: torch.dtype) -> None:
    """Against the equation written here: h⁻² in the bandwidth's type would be off by 2e-8 or more."""
    for call, weights in in_float64(narrow):
        if backend == "auto" or call.is_served(backend):
            output = attention(*call.tensors, **call.options, backend=backend)
            assert (output - weights @ call.tensors[2]).abs().max() < 1e-13, call.options


def test_gradients_keep_the_type_of_their_parameter() -> None:
    query, key, value = (torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3))
    for narrow in NARROW:
        bandwidth = torch.full((2,), 1.5, dtype=narrow, requires_grad=True)
        attention(query, key, value, score=Gaussian(bandwidth)).sum().backward()
        assert bandwidth.grad is not None
        assert bandwidth.grad.dtype == narrow
