"""Any leading dimensions, broadcasting, axes of zero or one, unequal widths, any strides: one meaning."""

from math import prod

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.contract.calls import MECHANISMS, Call, near, refused
from tests.contract.mechanisms import ON_CPU
from tests.here import here
from tests.pairs import in_turn
from torch import Tensor

from qkv.biases import alibi
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.patterns import causal, lengths
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Mean, Softmax, Sum
from qkv.scores.base import Score
from qkv.scores.kernels import Epanechnikov, Gaussian
from qkv.scores.products import Bilinear, ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.shapes import broadcast

by_backend = pytest.mark.parametrize("backend", ON_CPU)

Mechanism = tuple[Score, Normalizer, int, int]


def _mechanisms() -> list[Mechanism]:
    """One score per core, with D ≠ E wherever the score projects."""
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return [
        (ScaledDot(), Softmax(), 3, 3),
        (ScaledDot(), Mean(), 3, 3),
        (Bilinear(draw(3, 2)), Softmax(), 3, 2),
        (Additive(draw(4), draw(4, 3), draw(4, 2)), Softmax(), 3, 2),
        (Concat(draw(3), draw(2)), Mean(), 3, 2),
        (Gaussian(2.0), Sum(), 3, 3),
        (Epanechnikov(2.0), Sum(), 1, 1),
    ]


def by_hand(query: Tensor, key: Tensor, value: Tensor, score: Score, normalizer: Normalizer, seen: Tensor) -> Tensor:
    """One item at a time, as two-dimensional tensors."""
    leading = broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    assert leading is not None
    q, k, v = (x.expand(*leading, *x.shape[-2:]).reshape(prod(leading), *x.shape[-2:]) for x in (query, key, value))
    parts = [normalizer(score(a, b), seen) @ c for a, b, c in zip(q, k, v, strict=True)]
    whole = (*leading, query.shape[-2], value.shape[-1])
    return torch.stack(parts).reshape(whole) if parts else query.new_zeros(whole)


leading_shapes = st.lists(st.integers(0, 3), min_size=0, max_size=3).map(tuple)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Mechanism, Tensor, Tensor, Tensor, bool]:
    mechanism = draw(st.sampled_from(_mechanisms()))
    leading = draw(leading_shapes)

    def fewer() -> tuple[int, ...]:
        """The same, with leading dimensions missing or of size 1."""
        start = draw(st.integers(0, len(leading)))
        return tuple(1 if draw(st.booleans()) else size for size in leading[start:])

    queries, keys, values = draw(st.integers(0, 5)), draw(st.integers(0, 5)), draw(st.integers(1, 4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    shapes = ((queries, mechanism[2]), (keys, mechanism[3]), (keys, values))
    query, key, value = (torch.randn(*fewer(), *shape, generator=g, dtype=torch.float64) for shape in shapes)
    return mechanism, query, key, value, draw(st.booleans())


@by_backend
@given(problem=problems())
def test_leading_dimensions_broadcast(backend: str, problem: tuple[Mechanism, Tensor, Tensor, Tensor, bool]) -> None:
    (score, normalizer, _, _), query, key, value, ahead = problem
    mask = None if ahead else causal()
    if refused(backend, query, key, value, score=score, normalizer=normalizer, mask=mask):
        return
    seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    expected = by_hand(query, key, value, score, normalizer, seen if ahead else seen.tril())
    options = {"score": score, "normalizer": normalizer, "mask": mask, "backend": backend}
    output, weights = attention_with_weights(query, key, value, **options)
    assert near(output, expected)
    assert weights.shape == (*expected.shape[:-1], key.shape[-2])


@by_backend
def test_broadcast_inputs_get_summed_gradients(backend: str) -> None:
    """A key shared by all items and heads gets the sum of their gradients."""
    ran = 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, ((2, 2), 5, 7))
        if not call.serves(backend):
            continue
        ran += 1
        shared = call.with_leaves(key=call.leaves["key"][0, :1], value=call.leaves["value"][:1])
        whole = shared.with_leaves(
            key=shared.leaves["key"].expand(2, 2, -1, -1).clone(),
            value=shared.leaves["value"].expand(2, 2, -1, -1).clone(),
        )
        output, gradients = shared.gradients(backend)
        expected, full = whole.gradients(backend)
        assert near(output, expected), call
        assert near(gradients["key"], full["key"].sum((0, 1), keepdim=True)[0], 2000), call
        assert near(gradients["value"], full["value"].sum(0, keepdim=True), 2000), call
    assert ran


def _strided(x: Tensor, how: str) -> Tensor:
    """The same numbers in other memory layouts."""
    match how:
        case "transposed":
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "heads last":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        case "every other":
            wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)
            wide[..., ::2] = x
            return wide[..., ::2]
        case _:
            return x.flip(-2).contiguous().flip(-2)


@pytest.mark.parametrize(("backend", "how"), in_turn(ON_CPU, ["transposed", "heads last", "every other"]))
def test_strides_do_not_matter(backend: str, how: str) -> None:
    ran = 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, mask=lengths(torch.tensor([4, 7])))
        if not call.serves(backend):
            continue
        ran += 1
        laid_out = call.with_leaves(**{name: _strided(call.leaves[name], how) for name in ("query", "key", "value")})
        output, gradients = laid_out.gradients(backend)
        expected, theirs = call.gradients(backend)
        assert near(output, expected), call
        assert all(near(x, theirs[name], 2000) for name, x in gradients.items()), call
    assert ran


@by_backend
@settings(max_examples=2)
@example(strides=[(0, 0, 1, 1)] * 3, queries=2)
@given(
    strides=st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.sampled_from((1, 1, 1, 2))), min_size=3, max_size=3),
    queries=st.sampled_from((1, 2, 3, 9)),
)
def test_numbers_that_share_memory(backend: str, strides: list[tuple[int, ...]], queries: int) -> None:
    """Sliding windows, and any other views in which one number stands in several positions."""
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, ((2, 2), queries, 3))
        if not call.serves(backend):
            continue
        views = {
            name: torch.randn(99, dtype=torch.float64).as_strided(call.leaves[name].shape, steps)
            for name, steps in zip(("query", "key", "value"), strides, strict=True)
        }
        # A clone would take the order of dimensions of these strides.
        apart = {name: torch.empty(x.shape, dtype=x.dtype).copy_(x) for name, x in views.items()}
        output, gradients = call.with_leaves(**views).gradients(backend)
        expected, theirs = call.with_leaves(**apart).gradients(backend)
        assert near(output, expected), (call, strides)
        assert all(near(x, theirs[name], 2000) for name, x in gradients.items()), (call, strides)


@pytest.mark.parametrize("backend", here("reference", "sdpa", "linear", "rowwise", "blocked"))
def test_expanded_inputs(backend: str) -> None:
    query, key, value = torch.randn(3, 1, 1, 5, 4, dtype=torch.float64).unbind()
    wide = [x.expand(3, 2, 5, 4) for x in (query, key, value)]
    score, normalizer = (ScaledDot(), Mean()) if backend == "linear" else (ScaledDot(), Softmax())
    output = attention(*wide, score=score, normalizer=normalizer, backend=backend)
    assert near(output, attention(query, key, value, score=score, normalizer=normalizer).expand(3, 2, 5, 4))


@by_backend
def test_no_item_depends_on_its_batch(backend: str) -> None:
    """Alone or in a batch, within the bound."""
    ran = 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, ((2, 2), 5, 7))
        if not call.serves(backend, gradient=False):
            continue
        ran += 1
        alone = call.with_leaves(**{name: call.leaves[name][1:] for name in ("query", "key", "value")})
        assert near(alone.output(backend), call.output(backend)[1:]), call
    assert ran


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_a_state_of_no_rows_is_float64(backend: str, dtype: torch.dtype) -> None:
    query, key, value = (torch.randn(2, n, 8, dtype=dtype) for n in (0, 4, 4))
    for bias in (None, alibi(0.3)):
        _, state = attention_with_state(query, key, value, bias=bias, backend=backend)
        assert state.value.dtype == torch.float64
