"""What the lectures claim, as properties that hold for any input, and the claims that do not hold."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qkv

scores, normalizers = qkv.scores, qkv.normalizers
SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 10_000)
CONVEX = [
    (scores.ScaledDot(), normalizers.Softmax()),
    (scores.ScaledDot(), normalizers.Sparsemax()),
    (scores.ScaledDot(), normalizers.Entmax()),
    (scores.ScaledDot(), normalizers.Hard()),
    (scores.Gaussian(), normalizers.Sum()),
    (scores.Uniform(), normalizers.Sum()),
]


def draw(seed: int, *sizes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, queries=SIZES, keys=SIZES, width=SIZES, which=st.sampled_from(CONVEX))
def test_convex_combinations_stay_in_the_convex_hull(seed: int, queries: int, keys: int, width: int, which) -> None:  # type: ignore[no-untyped-def]
    """In every direction the output extends no further than the farthest value."""
    query, key, value, directions = draw(seed, (queries, 3), (keys, 3), (keys, width), (50, width))
    output = qkv.attention(query, key, value, score=which[0], normalizer=which[1])
    assert bool((output @ directions.mT <= (value @ directions.mT).amax(0) + 1e-9).all())


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, keys=SIZES, times=st.integers(2, 6))
def test_bare_sums_grow_with_the_length_and_normalized_ones_do_not(seed: int, keys: int, times: int) -> None:
    query, key, value = draw(seed, (4, 3), (keys, 3), (keys, 2))
    longer = key.repeat(times, 1), value.repeat(times, 1)
    bare, soft = normalizers.Identity(), normalizers.Softmax()
    for normalizer, growth in ((bare, times), (soft, 1)):
        (once, slope), (more, steeper) = (_with_slope(query, *kv, normalizer) for kv in ((key, value), longer))
        assert torch.allclose(more, growth * once)
        assert torch.allclose(steeper, growth * slope)


def _with_slope(query: Tensor, key: Tensor, value: Tensor, normalizer: normalizers.Normalizer) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of its sum with respect to the query."""
    leaf = query.clone().requires_grad_()
    output = qkv.attention(leaf, key, value, normalizer=normalizer)
    return output.detach(), torch.autograd.grad(output.sum(), leaf)[0]


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, length=st.integers(2, 9), heads=st.sampled_from([1, 2, 4]))
def test_self_attention_without_positions_follows_any_permutation(seed: int, length: int, heads: int) -> None:
    torch.manual_seed(seed)
    layer = qkv.nn.MultiHeadAttention(8, heads).double()
    (x,) = draw(seed, (1, length, 8))
    order = torch.randperm(length)
    assert torch.allclose(layer(x[:, order]), layer(x)[:, order])


def test_sinusoidal_positions_end_the_indifference_to_order() -> None:
    torch.manual_seed(0)
    layer, order = qkv.nn.MultiHeadAttention(8, 2).double(), torch.tensor([2, 0, 1])
    (x,) = draw(0, (1, 3, 8))
    place = qkv.nn.sinusoidal(3, 8, dtype=torch.float64)
    assert not torch.allclose(layer(x[:, order] + place), layer(x + place)[:, order], atol=1e-3)


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, queries=SIZES, keys=SIZES, width=SIZES, values=SIZES)
def test_columns_and_rows_say_the_same(seed: int, queries: int, keys: int, width: int, values: int) -> None:
    """Output = V·softmax(QᵀK)ᵀ in columns, d_v × n_q, with the softmax over the keys of each query."""
    query, key, value = draw(seed, (width, queries), (width, keys), (values, keys))
    output = value @ torch.softmax(query.mT @ key, 1).mT
    rows = qkv.attention(query.mT, key.mT, value.mT, score=scores.Dot())
    assert torch.allclose(rows.mT, output)


def test_without_parameters_scores_are_symmetric() -> None:
    """Q = K = X: scores are mutual, so no token can look for the one before it."""
    (x,) = draw(0, (6, 4))
    for score in (scores.Dot(), scores.ScaledDot(), scores.Cosine(), scores.SquaredDistance()):
        s = score(x, x)
        assert torch.allclose(s, s.mT)


def test_the_gradient_of_a_softmax_vanishes() -> None:
    """The second lecture says that it never vanishes. Without 1/√d it is exactly zero at width 256."""
    torch.manual_seed(0)
    key, value = torch.randn(32, 256), torch.eye(32)
    for score, vanishes in ((scores.Dot(), True), (scores.ScaledDot(), False)):
        query = key[:1].clone().requires_grad_()
        (qkv.attention(query, key, value, score=score) - value[1]).square().sum().backward()
        assert query.grad is not None
        assert bool((query.grad == 0).all()) == vanishes


def test_a_larger_product_is_no_smaller_angle() -> None:
    """The fifth lecture reads similarity off the product, which requires equal norms."""
    query, near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1]]), torch.tensor([[5.0, 5.0]])
    dot, cosine = scores.Dot(), scores.Cosine()
    assert dot(query, far) > dot(query, near)
    assert cosine(query, far) < cosine(query, near)


@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm_makes_norms_constant_and_batch_norm_does_not(affine: bool) -> None:
    x = draw(0, (64, 32))[0].float() * torch.linspace(0.1, 10, 64)[:, None]
    layer, batch = nn.LayerNorm(32, elementwise_affine=affine), nn.BatchNorm1d(32, affine=affine)
    assert torch.allclose(layer(x).norm(dim=-1), torch.full((64,), 32**0.5), rtol=1e-2)
    norms = batch(x).norm(dim=-1)
    assert norms.max() > 10 * norms.min()


class LecturePositions(nn.Module):
    """The fifth lecture's code, without its unused dropout."""

    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(size=(max_len, d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.pe = pe


def test_positions_are_those_of_the_lectures_code() -> None:
    assert torch.allclose(LecturePositions(64, 100).pe, qkv.nn.sinusoidal(100, 64), atol=1e-4)


def test_the_lectures_code_has_no_odd_widths_and_ours_has() -> None:
    with pytest.raises(RuntimeError, match="must match"):
        LecturePositions(7, 5)
    last = qkv.nn.sinusoidal(5, 7)[4, 6]
    assert math.isclose(float(last), math.sin(4 / 10_000 ** (6 / 7)), rel_tol=1e-5)


def test_neighboring_positions_are_nearly_parallel_at_any_width() -> None:
    """The fifth lecture calls them approximately orthogonal for large widths."""
    for width in (16, 64, 512, 4096):
        unit = nn.functional.normalize(qkv.nn.sinusoidal(64, width, dtype=torch.float64), dim=-1)
        products = unit @ unit.mT
        assert products[0, 1] > 0.9
        assert products.mean() > 0.3
