"""Additive attention's kernels: as exact as the equation, at every range, with every mask, forward and backward."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.additive.direct import Case, assert_as_exact, case, judged, ours, run

from qkv.algorithms.additive.direct import Upstream
from qkv.algorithms.additive.factored import backward, factor, forward, tile_size
from qkv.compiled import thread_pool
from qkv.engine.key_ranges import Drop, Weighting, key_ranges

pytestmark = pytest.mark.kernels

DTYPES = (np.float32, np.float64)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)


def causal(queries: int) -> np.ndarray:
    return np.arange(1, queries + 1, dtype=np.int32)[None]


def ways(c: Case) -> set[int]:
    """Which of the four ways to compute a tanh the features of a case select."""
    count = factor(c.query, c.key, c.vector, c.sight).count
    return {way for way in range(4) if count[:, way].any()}


EXACT = {
    "one tile": {"queries": 64, "keys": 64, "width": 32, "columns": 16},
    "many tiles": {"queries": 33, "keys": 1100, "width": 128, "columns": 5},
    "wide": {"queries": 24, "keys": 90, "width": 300, "columns": 64},
    "causal": {"queries": 70, "keys": 70, "last": causal(70)},
    "heads": {"items": 6, "heads": 3, "queries": 24},
    "saturated": {"scale": 3.0, "queries": 40},
    "small": {"scale": 0.02, "queries": 40},
    "tiny": {"scale": 1e-6, "queries": 40},
    "spread": {"scale": 40.0, "queries": 40},
    "identity": {"rule": "identity", "queries": 40},
    "sigmoid": {"rule": "sigmoid", "queries": 40, "shift": True},
    "dropout": {"drop": Drop(-3, 0.25), "queries": 40},
    "few": {"queries": 1, "items": 40, "heads": 2},
    "few identity": {"queries": 2, "items": 20, "rule": "identity"},
    "few sigmoid": {"queries": 2, "items": 20, "rule": "sigmoid", "shift": True},
    "few dropout": {"queries": 3, "items": 20, "drop": Drop(2**40, 0.4)},
    "few keys": {"queries": 50, "keys": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
@by_dtype
def test_as_exact_as_the_equation(name, dtype):
    assert_as_exact(lambda seed: case(seed, **EXACT[name]), dtype, grad_lse="rule" not in EXACT[name])


def test_each_range_takes_its_way():
    assert ways(case(1, queries=40)) == {0}
    assert 1 in ways(case(1, scale=3.0, queries=40))
    assert ways(case(1, scale=0.02)) == {2}
    assert ways(case(1, scale=40.0, queries=40)) == {3}
    assert ways(mixed(1)) == {0, 1, 2, 3}
    assert_as_exact(mixed)


def mixed(seed: int) -> Case:
    """Features of every range."""
    c = case(seed, queries=40)
    c.query[..., :3] *= 0.001
    c.key[..., :3] *= 0.001
    c.query[..., 5:7] *= 60
    c.key[..., 5:7] *= 60
    c.query[..., 8:10] += 5
    c.key[..., 8:10] += 5
    return c


@by_dtype
@pytest.mark.parametrize("wide", ["query", "key"])
def test_opposite_activations_of_ten_thousand(dtype, wide):
    """Queries and keys have ranges of their own that cancel: the shift N must be right."""

    def make(seed: int) -> Case:
        c = case(seed, queries=40, scale=2.0)
        c.query[:] += 1e4
        c.key[:] -= 1e4
        getattr(c, wide)[:, ::3] *= 1.0 + 2.0**-9
        return c

    assert_as_exact(make, dtype)


@by_dtype
@pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1e4, 1e30, 3e38])
def test_extremes(dtype, magnitude):
    def make(seed: int) -> Case:
        c = case(seed, queries=24)
        c.query[:, ::2] = np.sign(c.query[:, ::2]) * np.float32(magnitude)
        c.key[:, 1::2] = np.sign(c.key[:, 1::2]) * np.float32(magnitude)
        return c

    with np.errstate(over="ignore"):
        assert_as_exact(make, dtype)


@pytest.mark.parametrize(
    ("edge", "dtype"),
    [
        pytest.param(edge, dtype, marks=[] if turn % 2 == place else pytest.mark.slow)
        for turn, edge in enumerate([8.9, 9.02, 9.1, 17.1, 17.3, 34.0, 44.0, 166.0, 167.0, 355.0])
        for place, dtype in enumerate(DTYPES)
    ],
)
def test_no_step_at_the_limits_of_the_factored_form(dtype, edge):
    def make(seed: int) -> Case:
        c = case(seed, items=1, queries=40, keys=40, width=8)
        c.query[:, 0], c.query[:, 1] = edge, -edge
        c.key[:, 0], c.key[:, 1] = edge, -edge
        return c

    assert_as_exact(make, dtype)


@by_dtype
@pytest.mark.parametrize("magnitude", [2.0**17, 2.0**19, 1e38])
def test_a_vector_of_any_size(dtype, magnitude):
    """Four products EF and a weight are multiplied: beyond 2^12 each tanh is computed on its own."""

    def make(seed: int) -> Case:
        c = case(seed, queries=24, width=8, rule="identity")
        c.vector[:, ::2] *= np.float32(magnitude / 64)
        return c

    assert_as_exact(make, dtype)


def test_product_never_infinite():
    c = case(5, items=1, queries=64, keys=64, width=8)
    for edge in np.arange(1.0, 60.0, 0.25, dtype=np.float32):
        c.query[:, 0], c.query[:, 1], c.key[:, 0], c.key[:, 1] = 4 * edge, -4 * edge, edge, -edge
        made = factor(c.query, c.key, c.vector, c.sight)
        factored = made.count[0, :2].sum()
        with np.errstate(over="raise"):
            product = made.left[0, :, None, :factored] * made.right[0, :, None, :factored].transpose(0, 3, 2, 1)[0]
        assert np.isfinite(product).all()
        assert (made.left[0, :, :factored] > 0).all()


@by_dtype
@pytest.mark.parametrize("weight", [2.0**12, 2.0**13, -1e30])
def test_saturated_features_of_large_weight_have_finite_scores(dtype, weight):
    for distance in (4.8, 4.9, 5.2, 9.0, 12.0):
        rows, vector = np.full((1, 40, 8), distance, dtype), np.full((1, 8), weight, dtype)
        sight = key_ranges(rows.dtype, 1, 40, 40)
        out = forward(
            factor(rows, rows, vector, sight), np.eye(40, dtype=dtype)[None], Weighting(sight, "identity")
        ).out
        np.testing.assert_allclose(out, 8 * weight * np.tanh(2 * distance), rtol=1e-6)


@pytest.mark.parametrize("deviation", [0.25, 1.0])
def test_scores_of_few_features_are_about_as_exact_as_the_literal_sum(deviation):
    """Rounding is relative to v·tanh; relative to v(1 − tanh), the error was 3.3 and 2.0 times that of the equation."""
    errors, literal = [], []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        a, b = (draw.normal(scale=deviation, size=(1, 32, 6)).astype(np.float32) for _ in range(2))
        vector = draw.normal(size=(1, 6)).astype(np.float32)
        sight, ones = key_ranges(a.dtype, 1, 32, 32), np.eye(32, dtype=np.float32)[None]
        scores = forward(factor(a, b, vector, sight), ones, Weighting(sight, "identity")).out[0]
        exact = np.tanh(a[0, :, None].astype(float) + b) @ vector[0].astype(float)
        terms = np.tanh(a[0, :, None] + b) * vector[0]
        errors.append(scores - exact)
        literal.append(np.add.accumulate(terms, axis=-1)[..., -1] - exact)
    assert np.sqrt(np.mean(np.square(errors))) <= 1.75 * np.sqrt(np.mean(np.square(literal)))


MASKED = product(("softmax", "identity", "sigmoid"), ((24, 24), (24, 1), (2, 2), (2, 1)))
IN_TURN = [
    pytest.param(rule, *sizes, dtype, marks=[] if (turn + turn // 4) % 2 == place else [pytest.mark.slow])
    for turn, (rule, sizes) in enumerate(MASKED)
    for place, dtype in enumerate(DTYPES)
]
"""Each rule with all sizes of a mask, in one type in the fast suite; each rule and each size in both types."""


@pytest.mark.parametrize(("rule", "queries", "mask_rows", "dtype"), IN_TURN)
def test_dense_mask_and_bias(rule, queries, mask_rows, dtype):
    random = np.random.default_rng(6)
    mask = random.random((2, mask_rows, 60)) < 0.6
    bias = random.normal(size=(1, mask_rows, 60)).astype(np.float32)
    first, last = np.array([[3], [0]], np.int32), np.array([[50], [60]], np.int32)
    options = {"mask": mask, "bias": bias, "first": first, "last": last, "rule": rule}
    assert_as_exact(lambda seed: case(seed, items=4, heads=2, queries=queries, **options), dtype)


@by_dtype
def test_empty_row_gives_zero(dtype):
    mask = np.ones((1, 24, 60), bool)
    mask[0, 5] = False
    last = np.full((1, 24), 60, np.int32)
    last[0, 2] = 0
    c = case(7, mask=mask, last=last).cast(dtype)
    found = ours(c, np.ones((2, 24, 7), dtype))
    assert (found["out"][:, [2, 5]] == 0).all()
    assert (found["lse"][:, [2, 5]] == -torch.inf).all()
    assert (found["query"][:, [2, 5]] == 0).all()
    assert all(torch.isfinite(x).all() for name, x in found.items() if name != "lse")
    assert_as_exact(lambda seed: case(seed, mask=mask, last=last), dtype)


def test_bias_of_minus_infinity_in_a_whole_row_gives_zero():
    bias = np.zeros((1, 24, 60), np.float32)
    bias[0, 4] = -np.inf
    c = case(8, bias=bias)
    found = ours(c, np.ones((2, 24, 7), np.float32))
    assert (found["out"][:, 4] == 0).all()
    assert all(torch.isfinite(found[name]).all() for name in ("query", "key", "value", "vector", "bias"))


@pytest.mark.parametrize("queries", [24, 1])
@pytest.mark.parametrize("held", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("by", ["bounds", "mask"])
def test_hidden_keys_change_no_bit(held, by, queries):
    mask = np.ones((1, 1, 60), bool)
    mask[..., 30:] = False
    hiding = {"mask": mask} if by == "mask" else {"last": np.array([[30]], np.int32)}
    c = case(9, queries=queries, **hiding)
    zeroed = replace(c, key=c.key.copy(), value=c.value.copy())
    zeroed.key[:, 30:] = 0
    zeroed.value[:, 30:] = 0
    c.key[:, 30:] = held
    if by == "bounds":
        c.value[:, 30:] = held
    else:
        c.value[:, 30:] = 0
    grad = np.random.default_rng(0).normal(size=(2, queries, 7)).astype(np.float32)
    for name, x in ours(zeroed, grad).items():
        assert torch.equal(ours(c, grad)[name], x), name


def test_visible_nan_stays_visible_in_its_rows_only():
    last = np.full((1, 24), 60, np.int32)
    last[0, :4] = 20
    c = case(10, last=last)
    c.key[0, 25, 3] = np.nan
    out = forward(factor(c.query, c.key, c.vector, c.sight), c.value, c.weighting).out
    assert np.isnan(out[0, 4:]).all()
    assert np.isfinite(out[0, :4]).all()
    assert np.isfinite(out[1]).all()


def test_visible_infinity_saturates():
    c = case(11)
    c.key[:, 3, 0] = np.inf
    c.query[:, 2, 1] = -np.inf
    grad = np.ones((2, 24, 7), np.float32)
    np.testing.assert_allclose(ours(c, grad)["out"], judged(c, torch.float64, grad)["out"], rtol=1e-4, atol=1e-5)


@by_dtype
@pytest.mark.parametrize("empty", ["items", "queries", "keys", "columns", "width"])
def test_empty_axes(dtype, empty):
    assert_as_exact(lambda seed: case(seed, **{empty: 0}), dtype)


@given(
    st.integers(0, 2**16),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 150),
    st.integers(1, 33),
    st.integers(1, 9),
    st.sampled_from([0.01, 0.4, 1.0, 5.0]),
)
def test_any_sizes_and_bounds(seed, items, queries, keys, width, columns, scale):
    random = np.random.default_rng(seed)
    first = random.integers(0, keys + 1, (items, queries)).astype(np.int32)
    last = random.integers(0, keys + 1, (items, queries)).astype(np.int32)
    c = case(seed, items, queries, keys, width, columns, scale=scale, first=first, last=last)
    grad = random.normal(size=(items, queries, columns)).astype(np.float32)
    # Too few numbers for statistics, and gradients that are small differences of large products:
    product = np.abs(grad).max() * np.abs(c.value).max() * max(1.0, np.abs(c.vector).max()) * columns
    found, exact = ours(c, grad), judged(c, torch.float64, grad)
    for name, r in ((name, r) for name, r in exact.items() if r.numel()):
        scale = max(1.0, r.nan_to_num(neginf=0).abs().max().item(), product)
        torch.testing.assert_close(found[name].double(), r, rtol=0, atol=2.0**-20 * scale, msg=name)


def test_gradients_agree_with_finite_differences():
    bias = np.random.default_rng(13).normal(size=(2, 3, 5)).astype(np.float32)
    c = case(13, queries=3, keys=5, width=6, columns=2, bias=bias, drop=Drop(5, 0.3)).cast(np.float64)
    random = np.random.default_rng(14)
    grad = random.normal(size=(2, 3, 2))
    _, gradients = run(c, grad)
    for name in ("query", "key", "value", "vector"):
        array = getattr(c, name)
        direction = random.normal(size=array.shape)
        losses = []
        for step in (1e-5, -1e-5):
            moved = replace(c, **{name: array + step * direction})
            losses.append((run(moved, grad)[0].out * grad).sum())
        slope = (losses[0] - losses[1]) / 2e-5
        np.testing.assert_allclose((getattr(gradients, name) * direction).sum(), slope, rtol=1e-7, atol=1e-9)


def test_same_bits_again_and_whatever_the_threads(two_threads):
    c = case(15, items=3, queries=200, keys=300, width=64, columns=16, last=causal(200))
    grad = np.random.default_rng(0).normal(size=(3, 200, 16)).astype(np.float32)
    first, again = ours(c, grad), ours(c, grad)
    assert all(torch.equal(first[name], again[name]) for name in first)
    torch.set_num_threads(1)
    alone = ours(c, grad)
    assert torch.equal(alone["out"], first["out"])
    assert torch.equal(alone["lse"], first["lse"])


@pytest.fixture
def cut(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that share any work, however little."""
    monkeypatch.setattr(thread_pool, "ALONE_BELOW", 0.0)


CUT = {"queries": 70, "keys": 40, "width": 32, "columns": 16}
"""Queries enough for two slices of at least 32."""


def test_one_item_cut_among_threads(cut):
    """With fewer items than threads, each slice of the queries sums its own gradients of keys."""

    def make(seed: int) -> Case:
        return case(seed, items=1, **CUT, bias=np.ones((1, 1, 40), np.float32))

    assert_as_exact(make)
    assert_cut(make(16))


def test_bias_shared_by_items(cut):
    bias = np.random.default_rng(17).normal(size=(1, 70, 40)).astype(np.float32)

    def make(seed: int) -> Case:
        return case(seed, items=3, **CUT, bias=bias)

    assert_as_exact(make)
    assert_cut(make(17))


def assert_cut(c: Case) -> None:
    """The gradients of keys are sums of other parts than those of one thread."""
    grad = np.random.default_rng(0).normal(size=(*c.query.shape[:2], 16)).astype(np.float32)
    parts = ours(c, grad)
    torch.set_num_threads(1)
    alone = ours(c, grad)
    assert torch.equal(parts["out"], alone["out"])
    assert not torch.equal(parts["key"], alone["key"])


def test_few_queries_take_no_factors():
    c = case(20, queries=1)
    made = factor(c.query, c.key, c.vector, c.sight)
    assert made.few
    assert np.shares_memory(made.right, c.key)
    out = forward(made, c.value, c.weighting).out
    c.query[0, 0, 0] = np.nan
    broken = forward(factor(c.query, c.key, c.vector, c.sight), c.value, c.weighting).out
    assert np.isnan(broken[0]).all()
    assert np.array_equal(broken[1], out[1])


@pytest.mark.parametrize("name", [name for name in EXACT if name.startswith("few")])
def test_other_gradients_are_the_same_bits_without_those_of_keys_and_values(name):
    c = case(22, **{"keys": 50, **EXACT[name]})
    made, bias = factor(c.query, c.key, c.vector, c.sight), c.sight.bias.size > 0
    assert made.few
    rows = forward(made, c.value, c.weighting)
    grad = np.random.default_rng(0).normal(size=rows.out.shape).astype(np.float32)
    whole, part = (
        backward(made, c.vector, c.value, c.weighting, rows, Upstream(grad, bias=bias, memory=wanted))
        for wanted in (True, False)
    )
    assert part.key is None
    assert part.value is None
    for one, two in zip(part._replace(key=0, value=0), whole._replace(key=0, value=0), strict=True):
        assert np.array_equal(one, two)


def test_row_of_one_key_has_no_gradient_but_its_value():
    for queries in (1, 30):
        c = case(21, queries=queries, last=np.ones((1, 1), np.int32))
        found = ours(c, np.random.default_rng(0).normal(size=(2, queries, 7)).astype(np.float32))
        assert all((found[name] == 0).all() for name in ("query", "key", "vector"))


def test_rows_do_not_depend_on_other_rows():
    c = case(18, items=1, queries=130, keys=300, width=64, columns=16)
    made = factor(c.query, c.key, c.vector, c.sight)
    whole = forward(made, c.value, c.weighting)
    sight = replace(c.sight, first=c.sight.first.copy(), last=c.sight.last.copy())
    # In most groups of four, a few rows.
    changed = np.arange(130) % 3 == 0
    sight.last[0, changed] = 7
    part = forward(made, c.value, Weighting(sight))
    assert np.array_equal(whole.out[:, ~changed], part.out[:, ~changed])
    assert not np.array_equal(whole.out[:, changed], part.out[:, changed])


def test_a_gradient_of_a_row_that_sees_nothing_may_be_anything():
    c = case(19, queries=64, keys=96, width=32, columns=9)
    c = replace(c, sight=replace(c.sight, last=np.where(np.arange(64) < 62, 96, 0).astype(np.int32)[None]))
    grad = np.random.default_rng(0).normal(size=(2, 64, 9)).astype(np.float32)
    plain = ours(c, grad)
    grad[:, 62], grad[:, 63] = np.nan, np.inf
    found = ours(c, grad)
    assert all(torch.equal(plain[name], found[name]) for name in ("query", "key", "value", "vector"))


@pytest.mark.parametrize(
    ("columns", "keys", "dtype"),
    [
        *((8, 512, dtype) for dtype in DTYPES),
        (64, 1500, np.float32),
        *(pytest.param(64, 512, dtype, marks=pytest.mark.slow) for dtype in DTYPES),
        pytest.param(64, 1500, np.float64, marks=pytest.mark.slow),
    ],
)
def test_values_that_are_not_centered(dtype, columns, keys):
    """A long sum of numbers of one sign: its error enters the gradient of every score of its row."""

    def make(seed: int) -> Case:
        c = case(seed, queries=32, keys=keys, width=64, columns=columns)
        return replace(c, value=(0.3 * c.value + 1).astype(np.float32))

    assert_as_exact(make, dtype)


def test_tiles_depend_on_the_width_alone():
    assert {tile_size(keys, 128) for keys in (500, 512, 4096)} == {512}
    assert all(tile_size(keys, width) % 16 == 0 for keys in (0, 1, 17, 500) for width in (0, 1, 77, 5000))


def test_owner_of_shared_data():
    sight = key_ranges(
        np.dtype(np.float32), 6, 2, 3, heads=3, mask=np.ones((2, 1, 3), bool), bias=np.zeros((6, 2, 3), "f4")
    )
    assert sight.owner.tolist() == [
        [*row, 0] for row in ((0, 0, 0, 0), (1, 0, 0, 1), (2, 0, 0, 2), (0, 0, 1, 3), (1, 0, 1, 4), (2, 0, 1, 5))
    ]


@by_dtype
@pytest.mark.parametrize("queries", [1, 24])
@pytest.mark.parametrize("width", [1, 15, 16, 20, 70, 128])
def test_scores_of_the_backward_pass_are_those_of_the_forward_pass_to_the_bit(dtype, queries, width):
    """Weights are recomputed as exp(s − top)/total: if s is rounded differently they do not sum to 1."""
    c = case(23, queries=queries, width=width, columns=60, rule="identity").cast(dtype)
    # With values of one, the output is the scores; with a gradient of ones in one row, so is the gradient of the
    # values.
    c = replace(c, value=np.broadcast_to(np.eye(60, dtype=dtype), (2, 60, 60)).copy())
    row = queries // 2
    grad = np.zeros((2, queries, 60), dtype)
    grad[:, row] = 1
    rows, gradients = run(c, grad)
    assert np.array_equal(gradients.value, np.broadcast_to(rows.out[:, row, :, None], (2, 60, 60)))


def test_an_output_is_a_short_sum():
    """64 weights of one and 64 equal values: sixteen groups of four, each sum rounded by at most u of its current
    value.

    Two roundings within a group, Σ_{n=2}^{16} n/16 = 8.44 for sums of groups, one for the division: 11.44u. One key at
    a time it would be Σ_{n=2}^{64} n/64 + 1 = 33.5u, and for some of these values the error exceeds 11.44u.
    """
    c = case(24, queries=24, keys=64, columns=512)
    column = 1 + np.arange(512, dtype=np.float32) * np.float32(2.0**-12 + 2.0**-23)
    c = replace(c, key=np.zeros_like(c.key), value=np.broadcast_to(column, c.value.shape).copy())
    out = forward(factor(c.query, c.key, c.vector, c.sight), c.value, c.weighting).out
    assert np.abs(out / column.astype(np.float64) - 1).max() <= 11.44 * 2.0**-24
