"""The kernel for short sequences: exact with its gradients, independent of masked contents, used where supported."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import pytest
import torch
from tests.contract.criterion import Draw, failed, largest, shares
from tests.contract.orders import Order
from tests.seed import stored
from torch import Tensor, nn

import qkv
from qkv.algorithms.rowwise import short
from qkv.compiled.strided import memory_of
from qkv.engine.describe import Arguments, describe
from qkv.errors import QkvError, UnsupportedError
from qkv.masks import Mask, causal, lengths, window
from qkv.masks.base import Bounds, Grid
from qkv.normalizers import Softmax
from qkv.scores import ScaledDot

pytestmark = pytest.mark.kernels

ITEMS, HEADS, QUERIES, KEYS, WIDTH, VALUE = 9, 4, 21, 19, 20, 12
BY_ITEM = lengths((torch.arange(ITEMS) * 3).clamp(max=KEYS))
MASKS: dict[str, Any] = {
    "all": None,
    "causal": causal(),
    "padding": BY_ITEM,
    "both": causal() & BY_ITEM,
    "window": window(3, 2),
    "none at first": causal(offset=-9),
}


def drawn(
    dtype: torch.dtype = torch.float32, queries: int = QUERIES, keys: int = KEYS, *, seed: int = 0
) -> list[Tensor]:
    torch.manual_seed(seed)
    sizes = (queries, WIDTH), (keys, WIDTH), (keys, VALUE), (queries, VALUE)
    return [torch.randn(ITEMS, HEADS, *size).to(dtype) for size in sizes]


def served(*tensors: Tensor, **given: Any) -> bool:
    try:
        qkv.explain(*tensors, **given, backend="sdpa.short")
    except UnsupportedError:
        return False
    return True


def answers(backend: str, tensors: list[Tensor], mask: Any) -> list[Tensor]:
    """The output and the gradients of query, key and value."""
    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    output = qkv.attention(*leaves, mask=mask, backend=backend)
    return [output.detach(), *torch.autograd.grad(output, leaves, tensors[3].to(output.dtype))]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_output_and_gradients_are_as_exact_as_the_equation(name: str, dtype: torch.dtype, scale: float) -> None:
    mask = MASKS[name]

    def draw(turn: int) -> Draw:
        tensors = drawn(dtype, seed=stored("short", turn))
        tensors[0] *= scale
        assert served(*(x.requires_grad_() for x in tensors[:3]), mask=mask)
        return beside_the_equation(
            lambda backend, kind: answers(backend, [x.to(kind) for x in tensors], mask), dtype, "sdpa.short"
        )

    assert not failed(shares(draw, dtype))


def beside_the_equation(answers: Callable[[str, torch.dtype], list[Tensor]], dtype: torch.dtype, backend: str) -> Draw:
    """What a backend answers in a type, and the reference: in float64, and in that type with its sums in any order."""

    def named(backend: str, kind: torch.dtype) -> dict[str, Tensor]:
        return {str(place): x for place, x in enumerate(answers(backend, kind))}

    def literal(order: Order) -> dict[str, Tensor]:
        with order.summing():
            return named("reference", dtype)

    exact = named("reference", torch.float64)
    return Draw(named(backend, dtype), exact, literal, {name: largest(x) for name, x in exact.items()})


@pytest.mark.parametrize("sizes", [(1, 1), (8, 16), (16, 15), (17, 33), (64, 64), (256, 40)])
def test_any_sizes_and_any_strides(sizes: tuple[int, int]) -> None:
    tensors = drawn(queries=sizes[0], keys=sizes[1])
    # One query is served where a mask spares keys.
    mask = lengths(torch.arange(ITEMS).clamp(max=sizes[1])) if sizes[0] == 1 else None
    assert served(*(x.requires_grad_() for x in tensors[:3]), mask=mask)
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    apart = [torch.stack((x.detach(), x.detach()), -1)[..., 0] for x in tensors]
    found = answers("sdpa.short", tensors, mask)
    for other in (turned, apart):
        assert all(torch.equal(one, two) for one, two in zip(found, answers("sdpa.short", other, mask), strict=True))
    for one, right in zip(found, answers("reference", [x.double() for x in tensors], mask), strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("own_threads")
@pytest.mark.parametrize("threads", [1, 2])
def test_one_query_that_sees_every_key_is_left_to_pytorch_on_one_thread(threads: int) -> None:
    torch.set_num_threads(threads)
    tensors = drawn(queries=1)[:3]
    assert served(*tensors) == (threads == 2)
    assert served(*tensors, mask=BY_ITEM)


def test_signs_to_be_turned_and_broadcast_numbers() -> None:
    """Views of conjugates have a sign bit that NumPy does not know; the gradient of a sum is one expanded number."""
    tensors = drawn()
    leaves = [torch._neg_view(-x).requires_grad_() for x in tensors[:3]]
    assert served(*leaves)
    for cotangent in (torch._neg_view(-tensors[3]), torch.ones(()).expand(tensors[3].shape), tensors[3].mT.clone().mT):
        ours = torch.autograd.grad(qkv.attention(*leaves, backend="sdpa.short"), leaves, cotangent)
        plain = cotangent.clone(memory_format=torch.contiguous_format).resolve_neg()
        for one, other in zip(ours, answers("sdpa.short", [*tensors[:3], plain], None)[1:], strict=True):
            assert torch.equal(one, other)


class _Own(Mask):
    """User-defined bounds, in the caller's memory layout."""

    def __init__(self, first: Tensor, last: Tensor) -> None:
        self.ends = Bounds(first, last)

    def bounds(self, grid: Grid) -> Bounds:
        return self.ends

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        raise NotImplementedError


def test_bounds_of_any_strides() -> None:
    """The kernel reads the first and last keys of rows in one layout, whatever the caller's layout is."""
    tensors = drawn()
    first = torch.randint(0, 9, (ITEMS, 1, QUERIES), dtype=torch.int32)
    last = torch.randint(9, KEYS, (ITEMS, 1, QUERIES), dtype=torch.int32)
    turned = first.transpose(0, 2).contiguous().transpose(0, 2)
    assert served(*(x.requires_grad_() for x in tensors[:3]), mask=_Own(turned, last))
    found = (answers("sdpa.short", tensors, _Own(x, last)) for x in (turned, first))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["causal", "window"])
def test_a_key_that_is_no_number_reaches_only_those_who_see_it(name: str, bad: float) -> None:
    mask = {"causal": causal(), "window": window(9, 3)}[name]
    clean = drawn(queries=24, keys=24)[:3]
    dirty = [x.clone() for x in clean]
    dirty[1][1, 1, 20, 3] = bad
    blind = ~qkv.masks.matrix(mask, 24, 24)[:, 20]
    assert served(*(x.requires_grad_() for x in dirty), mask=mask)
    expected, found = (qkv.attention(*x, mask=mask, backend="sdpa.short") for x in (clean, dirty))
    assert torch.equal(found[:, :, blind], expected[:, :, blind])


@pytest.mark.parametrize("keys", [1, 5, 15, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_of_a_query_shows_with_any_number_of_keys(keys: int, dtype: torch.dtype) -> None:
    tensors = drawn(dtype, queries=10, keys=keys)[:3]
    tensors[0][1, 1, 3] = math.nan
    assert served(*(x.requires_grad_() for x in tensors))
    output = qkv.attention(*tensors, backend="sdpa.short")
    assert output[1, 1, 3].isnan().all()
    assert int(output.isnan().sum()) == VALUE


def test_a_scale_may_be_negative() -> None:
    score, tensors = ScaledDot(-30.0), drawn()[:3]
    right = qkv.attention(*(x.double() for x in tensors), score=score, backend="reference")
    ours = qkv.attention(*tensors, score=score, backend="sdpa.short")
    torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [None, causal()])
@pytest.mark.parametrize("sink", ["number", "of each head", "of each item", "large", "none"])
def test_a_sink_is_one_more_term_of_each_sum(sink: str, mask: Any) -> None:
    def draw(turn: int) -> Draw:
        *tensors, cotangent = drawn(seed=stored("sink", turn))
        of = {
            "number": torch.tensor(0.5),
            "of each head": torch.randn(HEADS),
            "of each item": torch.randn(ITEMS, HEADS),
            "large": torch.tensor([200.0, -200.0, 20.0, 0.0]),
            "none": torch.full((HEADS,), -torch.inf),
        }[sink]

        def answers(backend: str, dtype: torch.dtype) -> list[Tensor]:
            leaves = [x.detach().to(dtype).requires_grad_() for x in (*tensors, of)]
            normalizer = Softmax(leaves[3])
            assert backend == "reference" or served(*leaves[:3], normalizer=normalizer, mask=mask)
            output = qkv.attention(*leaves[:3], normalizer=normalizer, mask=mask, backend=backend)
            return [output, *torch.autograd.grad(output, leaves, cotangent.to(dtype))]

        return beside_the_equation(answers, torch.float32, "sdpa.short")

    assert not failed(shares(draw, torch.float32))


def test_a_number_as_sink_and_its_state() -> None:
    tensors, normalizer = drawn()[:3], Softmax(1.5)
    with torch.no_grad():
        ours = qkv.attention_with_state(*tensors, normalizer=normalizer, backend="sdpa.short")
        right = qkv.attention_with_state(*(x.double() for x in tensors), normalizer=normalizer, backend="reference")
    torch.testing.assert_close(ours[0].double(), right[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[1].value.double(), right[1].value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("filled", [math.nan, math.inf, 3e38])
def test_what_is_hidden_is_not_read(filled: float) -> None:
    tensors = drawn()
    hidden = (torch.arange(KEYS) >= 3 * torch.arange(ITEMS)[:, None])[:, None, :, None]
    clean = answers("sdpa.short", tensors, BY_ITEM)
    tensors[0][0] = tensors[3][0] = filled
    for index in (1, 2):
        tensors[index] = tensors[index].masked_fill(hidden, filled)
    assert all(torch.equal(one, two) for one, two in zip(clean, answers("sdpa.short", tensors, BY_ITEM), strict=True))


def test_a_row_that_sees_nothing_gives_zero() -> None:
    found = answers("sdpa.short", drawn(), causal(offset=-9))
    assert not found[0][:, :, :9].any()
    assert not found[1][:, :, :9].any()
    with torch.no_grad():
        output, state = qkv.attention_with_state(*drawn()[:3], mask=causal(offset=-9), backend="sdpa.short")
    assert torch.equal(output, found[0])
    assert (state.value[:, :, :9] == -math.inf).all()


def test_the_state_is_that_of_the_equation() -> None:
    with torch.no_grad():
        state = qkv.attention_with_state(*drawn()[:3], mask=BY_ITEM, backend="sdpa.short")[1]
        right = qkv.attention_with_state(*(x.double() for x in drawn()[:3]), mask=BY_ITEM, backend="reference")[1]
    torch.testing.assert_close(state.value.double(), right.value, rtol=1e-5, atol=1e-5)


def test_what_is_seen_and_no_number_stays_visible() -> None:
    query, key, value, _ = drawn()
    value[1, 2, 4, 5] = math.inf
    key[3, 1, 0, 0] = math.nan
    output = qkv.attention(query, key, value, backend="sdpa.short")
    assert (output[1, 2, :, 5] == math.inf).all()
    assert output[3, 1].isnan().all()
    assert int((~output.isfinite()).sum()) == QUERIES + QUERIES * VALUE


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = answers("sdpa.short", drawn(), BY_ITEM)
    monkeypatch.setattr(short, "_MICROSECONDS", {"dot": 1.0})
    monkeypatch.setattr("qkv.compiled.thread_pool.thread_count", lambda: 3)
    assert all(torch.equal(one, two) for one, two in zip(alone, answers("sdpa.short", drawn(), BY_ITEM), strict=True))


def test_grouped_heads_broadcast_keys_and_other_leading_shapes() -> None:
    query, key, value, _ = drawn()
    for given in (
        (query, key[:, ::2], value[:, ::2]),
        (query, key[:1], value[:1]),
        (query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)),
        (query[:, None], key[:, None], value[:, None]),
    ):
        grouped = given[1].shape[-3] == HEADS // 2
        leaves = [x.detach().requires_grad_() for x in given]
        assert served(*leaves, enable_gqa=grouped)
        ours = qkv.attention(*leaves, enable_gqa=grouped, backend="sdpa.short")
        right = qkv.attention(*leaves, enable_gqa=grouped, backend="reference")
        torch.testing.assert_close(ours, right)
        for one, two in zip(
            torch.autograd.grad(ours.sum(), leaves), torch.autograd.grad(right.sum(), leaves), strict=True
        ):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", ["many keys", "wide", "double", "a bias of positions"])
def test_taken_only_where_it_serves(given: str) -> None:
    tensors = drawn()[:3]
    extra: dict[str, Any] = {}
    match given:
        case "many keys":
            tensors = [torch.randn(ITEMS, HEADS, 257, 8) for _ in range(3)]
        case "wide":
            tensors = [torch.randn(ITEMS, HEADS, 9, 129) for _ in range(3)]
        case "double":
            tensors = [x.double() for x in tensors]
        case "a bias of positions":
            extra["bias"] = qkv.biases.alibi(0.3)
    leaves = [x.requires_grad_() for x in tensors]
    assert not served(*leaves, **extra)


@pytest.mark.compiler
def test_traced_calls_leave_it_alone() -> None:
    class Module(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return qkv.attention(query, key, value, backend="sdpa")

    tensors = tuple(drawn()[:3])
    exported = torch.export.export(Module(), tensors)
    torch.testing.assert_close(exported.module()(*tensors), qkv.attention(*tensors))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_that_is_seen_spoils_no_gradient_of_what_is_hidden(bad: float) -> None:
    tensors = [torch.randn(ITEMS, HEADS, 24, WIDTH) for _ in range(4)]
    tensors[2][:, :, 2] = bad
    leaves = [x.requires_grad_() for x in tensors[:3]]
    mask = lengths(torch.full((ITEMS, 1), 5))
    assert served(*leaves, mask=mask)
    slopes = torch.autograd.grad(qkv.attention(*leaves, mask=mask, backend="sdpa.short"), leaves, tensors[3])
    assert (slopes[1][:, :, 5:] == 0).all()
    assert (slopes[2][:, :, 5:] == 0).all()


def test_a_sink_that_is_no_number_shows() -> None:
    query, key, value = torch.randn(3, 32, 2, 20, 16).requires_grad_().unbind()
    sink = torch.tensor([torch.nan, 0.0], requires_grad=True)
    output = qkv.attention(query, key, value, normalizer=Softmax(sink), backend="sdpa.short")
    (gradient,) = torch.autograd.grad(output.sum(), sink)
    assert output[:, 0].isnan().all()
    assert not output[:, 1].isnan().any()
    assert gradient.isnan().tolist() == [True, False]


_BIAS = torch.rand(HEADS, 1, KEYS, generator=torch.Generator().manual_seed(1))
_PARAMETERS = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)) / 2
SCORES: dict[str, Any] = {
    "scaled dot": ScaledDot(),
    "softcap": ScaledDot(scale=0.5, softcap=2.0),
    "cosine": qkv.scores.Cosine(3.0),
    "bilinear": qkv.scores.Bilinear(torch.outer(*_PARAMETERS[:2])),
    "concat": qkv.scores.Concat(*_PARAMETERS[:2]),
    "leaky concat": qkv.scores.Concat(*_PARAMETERS[:2], activation="leaky_relu"),
    "additive": qkv.scores.Additive(_PARAMETERS[0]),
    "additive, projected": qkv.scores.Additive(_PARAMETERS[0, :7], *_PARAMETERS[1:3, None] * _PARAMETERS[3, :7, None]),
    "uniform": qkv.scores.Uniform(),
    "squared distance": qkv.scores.SquaredDistance(3.0),
    "gaussian": qkv.scores.Gaussian(3.0),
    "boxcar": qkv.scores.Boxcar(4.0),
    "triangle": qkv.scores.Epanechnikov(5.0, power=1),
    "epanechnikov": qkv.scores.Epanechnikov(5.0),
    "cubic": qkv.scores.Epanechnikov(5.0, power=3),
}
RULES: dict[str, Any] = {
    "softmax": Softmax(),
    "sink": Softmax(0.5),
    "sum": qkv.normalizers.Sum(),
    "mean": qkv.normalizers.Mean(),
    "identity": qkv.normalizers.Identity(),
    "sigmoid": qkv.normalizers.Sigmoid(),
    "sigmoid with a bias": qkv.normalizers.Sigmoid(-1.0),
    "hard": qkv.normalizers.Hard(),
    "sparsemax": qkv.normalizers.Sparsemax(),
    "entmax": qkv.normalizers.Entmax(),
    "entmax of 1.3": qkv.normalizers.Entmax(1.3),
}
PARTS = (*MASKS, "dense")
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as made": lambda x: x,
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "columns first": lambda x: x.mT.contiguous().mT,
    "every second": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
    "turned sign": lambda x: torch._neg_view(-x),
    "offset": lambda x: torch.cat((x.flatten()[:3], x.flatten()))[3:].view(x.shape),
}
EXTRAS = ("nothing", "bias", "dropout", "learned bias")
PREPARED = ("uniform", "cosine", "bilinear", "concat", "leaky concat", "additive, projected")
"""Scores with operands of their own."""


PAIRS = [(score, rule) for score, rule in product(SCORES, RULES) if not (rule == "sum" and not SCORES[score].summable)]


@pytest.mark.parametrize("score", PREPARED)
@pytest.mark.parametrize("layout", ["as made", "columns first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_of_equal_keys_is_looked_up_whatever_their_projections_round_to(
    score: str, layout: str, dtype: torch.dtype
) -> None:
    query, key, _, _ = (x.to(dtype) for x in drawn())
    first = KEYS // 2
    key[..., first:, :] = key[..., : KEYS - first, :].flip(-2)
    positions = torch.arange(KEYS, dtype=dtype)[:, None].expand(ITEMS, HEADS, KEYS, VALUE)
    leaves = [x.requires_grad_() for x in (query, LAYOUTS[layout](key), positions)]
    output = qkv.attention(*leaves, score=SCORES[score], normalizer=qkv.normalizers.Hard(), backend="rowwise.short")
    # The keys from `first` on are the first ten again, backwards.
    assert output.max() <= first
    d_query, d_key, d_value = torch.autograd.grad(output.sum(), leaves)
    assert not d_query.any()
    assert not d_key.any()
    assert d_value.float().sum() == output.numel()


def _of_any(
    names: tuple[str, str, str, str],
    turned: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    backend: str,
    heads: Literal["all", "grouped", "repeated"] = "all",
) -> list[Tensor]:
    """The output and the gradients of query, key and value, and of a bias that learns.

    Of keys and values, two heads may serve four of queries, in groups or repeated.
    """
    score, rule, mask, extra = names
    visible = torch.arange(KEYS) % 5 != torch.arange(QUERIES)[:, None] % 3 if mask == "dense" else MASKS[mask]
    options: dict[str, Any] = {"bias": torch.linspace(0, 1, KEYS).to(dtype)} if extra == "bias" else {}
    if extra == "dropout":
        options = {"dropout": 0.3, "generator": torch.Generator().manual_seed(3)}
    query, key, value, upstream = (x.to(dtype) for x in drawn())
    if heads != "all":
        key, value = key[:, ::2], value[:, ::2]
    leaves = [turned(x).requires_grad_() for x in (query, key, value)]
    if extra == "learned bias":
        options = {"bias": _BIAS.to(dtype, copy=True).requires_grad_()}
        leaves.append(options["bias"])
    given = {"score": SCORES[score], "normalizer": RULES[rule], "mask": visible, **options}
    query, key, value = leaves[:3]
    if heads == "repeated":
        key, value = (x.repeat_interleave(2, 1) for x in (key, value))
    output = qkv.attention(query, key, value, **given, enable_gqa=heads == "grouped", backend=backend)
    slopes = torch.autograd.grad(output, leaves, turned(upstream), allow_unused=True)
    return [output.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(slopes, leaves, strict=True))]


@pytest.mark.parametrize(("score", "rule"), PAIRS)
def test_every_mechanism_has_the_bits_of_its_numbers_whatever_their_strides(score: str, rule: str) -> None:
    backend = _short_of(score, rule)
    start = PAIRS.index((score, rule))
    for turn, mask in enumerate(PARTS, start):
        layout, extra = (tuple(names)[turn % len(names)] for names in (LAYOUTS, EXTRAS))
        names = score, rule, mask, extra
        found = _of_any(names, LAYOUTS[layout], torch.float32, backend)
        for one, other in zip(found, _of_any(names, LAYOUTS["as made"], torch.float32, backend), strict=True):
            # PyTorch's projections round by strides.
            assert torch.equal(one, other) or score in PREPARED[1:], (names, layout)
        for one, right in zip(found, _of_any(names, LAYOUTS["as made"], torch.float64, "reference"), strict=True):
            torch.testing.assert_close(
                one.double(), right, rtol=1e-4, atol=2e-5 * max(1.0, float(right.detach().abs().max()))
            )


def _short_of(score: str, rule: str) -> str:
    products = score in ("scaled dot", "uniform", "cosine", "bilinear")
    return "sdpa.short" if products and rule in ("softmax", "sink") else "rowwise.short"


@pytest.mark.parametrize(("score", "rule"), PAIRS)
def test_heads_in_groups_have_the_bits_of_repeated_ones(score: str, rule: str) -> None:
    """The kernel finds a group's keys by strides, in a first call as in later ones."""
    start = PAIRS.index((score, rule))
    for turn, mask in enumerate(PARTS, start):
        layout, extra = (tuple(names)[turn % len(names)] for names in (LAYOUTS, EXTRAS))
        names = score, rule, mask, extra
        once, again, repeated = (
            _of_any(names, LAYOUTS[layout], torch.float32, _short_of(score, rule), heads)
            for heads in ("grouped", "grouped", "repeated")
        )
        assert all(map(torch.equal, once, again)), (names, layout)
        for place, (one, other) in enumerate(zip(once, repeated, strict=True)):
            if place in (2, 3) or score == PREPARED[-1]:
                # Each group's keys get a sum, in any order; and PyTorch's projections round by strides.
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            else:
                assert torch.equal(one, other), (names, layout, place)


def test_parameters_of_each_head_stay_with_their_groups() -> None:
    query, key, value, upstream = drawn()
    torch.manual_seed(2)
    vectors = torch.randn(HEADS, WIDTH), torch.randn(HEADS // 2, WIDTH)
    matrix = torch.randn(HEADS, WIDTH, WIDTH)
    leaves = [x.requires_grad_() for x in (query, key[:, ::2], value[:, ::2], *vectors, matrix)]

    def slopes(backend: str, kind: torch.dtype) -> list[Tensor]:
        *tensors, of_query, of_key, between = (x.to(kind) for x in leaves)
        scores = qkv.scores.Concat(of_query, of_key), qkv.scores.Bilinear(between, 0.1)
        outputs = [
            qkv.attention(*tensors, score=score, normalizer=qkv.normalizers.Sigmoid(), enable_gqa=True, backend=backend)
            for score in scores
        ]
        return [*outputs, *torch.autograd.grad(sum(outputs), leaves, upstream.to(kind))]

    right = slopes("reference", torch.float64)
    for _ in range(2):
        for one, other in zip(slopes("rowwise.short", torch.float32), right, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["sdpa.short", "reference"])
def test_angles_are_exact_whatever_the_norms(backend: str) -> None:
    """Squares of float32 overflow from 2e19 on, and vanish below 1e-23."""
    query, key, value, upstream = drawn()
    query[..., ::3, :] *= 1e30
    key[..., ::4, :] *= 1e-30
    key[..., 5, :] = 0
    score = qkv.scores.Cosine(4.0)

    def answers(backend: str, kind: torch.dtype) -> list[Tensor]:
        leaves = [x.to(kind).requires_grad_() for x in (query, key, value)]
        output = qkv.attention(*leaves, score=score, backend=backend)
        return [output.detach(), *torch.autograd.grad(output, leaves, upstream.to(kind))]

    for one, right in zip(answers(backend, torch.float32), answers("reference", torch.float64), strict=True):
        rows = right.abs().amax(-1, keepdim=True).clamp(min=1e-37)
        assert ((one.double() - right).abs() <= 2e-5 * rows).all()


@pytest.mark.parametrize("score", ["gaussian", "boxcar", "scaled dot"])
def test_broadcast_operands_and_groups_of_heads_are_read_where_they_lie(score: str) -> None:
    query, key, value, _ = drawn()
    rule = qkv.normalizers.Sparsemax()
    for given in ((query, key[:, ::2], value[:, ::2]), (query[:1], key, value[:, :1]), (query[0, 0], key, value)):
        grouped = given[1].shape[-3] == HEADS // 2
        leaves = [x.detach().requires_grad_() for x in given]
        pair = [
            qkv.attention(*leaves, score=SCORES[score], normalizer=rule, enable_gqa=grouped, backend=backend)
            for backend in ("rowwise.short", "reference")
        ]
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)
        for one, two in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in pair), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wrong", ["dtype", "shape", "device"])
def test_a_tensor_that_was_not_planned_for_is_refused_before_its_address_is_read(wrong: str) -> None:
    x = torch.ones(2, 3)
    changed = {"dtype": x.double(), "shape": x[:, :2], "device": x.to("meta")}[wrong]
    with pytest.raises(QkvError, match="query: expected"):
        memory_of(changed, "query", x.dtype, x.shape)
    problem, call, _ = describe(*drawn()[:3], Arguments(SCORES["boxcar"], None, None, None, 0.0, None, False))
    attend = short.bind(problem, call)
    assert attend is not None
    for name in ("query", "key", "value"):
        one = getattr(call, name)
        other = {"dtype": one.double(), "shape": one[..., :5, :], "device": one.to("meta")}[wrong]
        with pytest.raises(QkvError, match=f"{name}: expected"):
            attend(call._replace(**{name: other}))


def test_distances_far_from_zero_lose_no_digits() -> None:
    """Points near 1,000 whose differences are about 1: products in float32 would be wrong by 1."""
    tensors = [x + 1000 if place < 2 else x for place, x in enumerate(drawn())]
    for name in ("gaussian", "boxcar", "epanechnikov"):
        options: dict[str, Any] = {"score": SCORES[name]}
        leaves = [x.clone().requires_grad_() for x in tensors[:3]]
        output = qkv.attention(*leaves, **options, backend="rowwise.short")
        exact = [x.double().detach().requires_grad_() for x in tensors[:3]]
        right = qkv.attention(*exact, **options, backend="reference")
        torch.testing.assert_close(output.double(), right, rtol=1e-4, atol=1e-5)
        pairs = (torch.autograd.grad(x.sum(), y, allow_unused=True) for x, y in ((output, leaves), (right, exact)))
        for one, two in zip(*pairs, strict=True):
            torch.testing.assert_close(one.double(), two, rtol=1e-3, atol=1e-4)


def test_a_query_that_a_table_masks_entirely_may_hold_any_number() -> None:
    tensors = drawn()
    table = torch.rand(ITEMS, 1, QUERIES, KEYS) > 0.3
    table[1, :, 0] = False
    found = []
    for number in (1.0, math.nan):
        tensors[0][1, :, 0] = number
        found.append(answers("sdpa.short", tensors, table))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    # A query that all items share is masked in one of them.
    shared = tensors[0][:1]
    found = [answers("sdpa.short", [x, *tensors[1:]], table) for x in (shared, shared.repeat(ITEMS, 1, 1, 1))]
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1].sum(0, keepdim=True))


MAPPED: dict[str, tuple[Callable[..., qkv.scores.Score], tuple[tuple[int, ...], ...]]] = {
    "projected": (qkv.scores.Additive, ((WIDTH,),)),
    "additive": (qkv.scores.Additive, ((VALUE,), (VALUE, WIDTH), (VALUE, WIDTH))),
    "concat": (qkv.scores.Concat, ((WIDTH,), (WIDTH,))),
    "bilinear": (qkv.scores.Bilinear, ((WIDTH, WIDTH),)),
}
"""Scores whose parameters the kernel applies, each with their shapes."""


@pytest.mark.parametrize("leading", [(), (HEADS,), (ITEMS, HEADS)])
@pytest.mark.parametrize("name", MAPPED)
def test_parameters_of_scores_learn_and_have_second_derivatives(name: str, leading: tuple[int, ...]) -> None:
    """A parameter may be one for all items, or one of each head or item."""
    query, key, value, cotangent = drawn()
    make, shapes = MAPPED[name]
    parameters = [torch.randn(*leading, *shape) / 4 for shape in shapes]
    found = []
    for backend, dtype in (
        ("sdpa.short" if name == "bilinear" else "rowwise.short", torch.float32),
        ("reference", torch.float64),
    ):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (query, key, value, *parameters)]
        score = make(*leaves[3:])
        output = qkv.attention(*leaves[:3], score=score, mask=BY_ITEM, backend=backend)
        slopes = torch.autograd.grad(output, leaves, cotangent.to(dtype), create_graph=True)
        curves = torch.autograd.grad(sum(x.square().sum() for x in slopes), leaves)
        found.append([output, *slopes, *curves])
    for one, right in zip(*found, strict=True):
        torch.testing.assert_close(
            one.double(), right, rtol=1e-3, atol=2e-5 * max(1.0, float(right.detach().abs().max()))
        )


@pytest.mark.parametrize("name", ["additive", "concat", "bilinear"])
@pytest.mark.parametrize("form", ["lengths", "dense", "causal"])
def test_what_hidden_rows_hold_reaches_no_gradient_that_has_a_graph(name: str, form: str) -> None:
    """The products with a score's matrices read every row; the kernel reads those that are seen."""
    count, width, hidden = 9, 4, 7
    seen = torch.arange(count) < hidden
    masks = {
        "lengths": qkv.masks.lengths(torch.tensor([hidden]), queries=torch.tensor([hidden])),
        "dense": qkv.masks.dense(seen[:, None] & seen),
        "causal": qkv.masks.causal() & qkv.masks.lengths(torch.tensor([hidden]), queries=torch.tensor([hidden])),
    }
    torch.manual_seed(0)
    shapes = {"additive": [(5,), (5, width), (5, width)], "concat": [(width,), (width,)], "bilinear": [(width, width)]}
    make = {"additive": qkv.scores.Additive, "concat": qkv.scores.Concat, "bilinear": qkv.scores.Bilinear}[name]
    parameters = [torch.randn(shape, requires_grad=True) for shape in shapes[name]]
    rows = torch.randn(3, 1, count, width)

    def gradients(fill: float) -> tuple[torch.Tensor, ...]:
        filled = torch.where(seen[:, None], rows, fill).requires_grad_()
        output = qkv.attention(*filled, score=make(*parameters), mask=masks[form])
        return torch.autograd.grad(output.square().sum(), [filled, *parameters], create_graph=True)

    for with_nan, without in zip(gradients(float("nan")), gradients(0.0), strict=True):
        assert torch.equal(with_nan, without)
