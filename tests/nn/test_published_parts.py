"""The parts of published models match their equations."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qkv.errors import ConfigError
from qkv.nn.biases import BucketedBias
from qkv.nn.blocks import TransformerBlock
from qkv.nn.feed_forward import GatedFeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.norms import NORMS, NormParts, RMSNorm, build_norm
from qkv.nn.positions import RopeScaling, Rotary, rotary


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_root_mean_square_is_pytorchs(dtype: torch.dtype) -> None:
    x, ours, theirs = torch.randn(3, 5, 8, dtype=dtype), RMSNorm(8, 1e-3).to(dtype), nn.RMSNorm(8, 1e-3).to(dtype)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))


def test_half_inputs_are_normed_in_float32() -> None:
    x = torch.full((4,), 300.0, dtype=torch.float16)  # its square overflows in half precision
    assert torch.equal(RMSNorm(4).half()(x), torch.ones(4, dtype=torch.float16))


@pytest.mark.parametrize("name", NORMS)
def test_norms_by_name_begin_with_gain_one(name: str) -> None:
    x = torch.randn(2, 8)
    expected = F.layer_norm(x, (8,)) if name == "layer" else F.rms_norm(x, (8,), eps=1e-5)
    torch.testing.assert_close(build_norm(name, 8, 1e-5)(x), expected)


def test_an_unknown_norm_suggests_one() -> None:
    with pytest.raises(ConfigError, match='Did you mean "rms"'):
        build_norm("rmss", 8, 1e-5)


@pytest.mark.parametrize(("name", "function"), [("silu", F.silu), ("gelu", F.gelu), ("relu", F.relu)])
def test_the_gate_is_the_papers(name: str, function: object) -> None:
    layer, x = GatedFeedForward(6, 10, activation=name, bias=True), torch.randn(2, 3, 6)  # type: ignore[arg-type]
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    hidden = function(layer.gate(x)) * layer.expand(x)  # type: ignore[operator]
    torch.testing.assert_close(layer(x), layer.contract(hidden))


def bucket(distance: int, buckets: int, farthest: int, causal: bool) -> int:
    """Raffel et al. 2020, by one distance: near ones each their own, the others by their logarithm."""
    side = buckets if causal else buckets // 2
    length = max(0, -distance) if causal else abs(distance)
    near = side // 2
    share = math.log(max(length, 1) / near) / math.log(farthest / near)
    far = min(side - 1, near + int(share * (side - near) + 1e-6))
    return (length if length < near else far) + (side if distance > 0 and not causal else 0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 12), (4, 3), (6, 100)])
def test_buckets_are_those_of_the_paper(buckets: int, farthest: int, causal: bool) -> None:
    bias = BucketedBias(buckets, farthest, heads=2, causal=causal)
    nn.init.normal_(bias.weight)
    places = range(0, 300, 7)
    expected = torch.tensor([[bucket(k - q, buckets, farthest, causal) for k in range(300)] for q in places])
    found = torch.stack([bias(1, 300, offset=q)[:, 0] for q in places], 1)
    torch.testing.assert_close(found, bias.weight[expected].permute(2, 0, 1), rtol=0, atol=0)
    found.sum().backward()
    assert bias.weight.grad is not None


@pytest.mark.parametrize(("buckets", "farthest"), [(2, 8), (8, 2), (8, 1 << 40), (0, 8)])
def test_buckets_that_are_none(buckets: int, farthest: int) -> None:
    with pytest.raises(ConfigError, match="buckets: expected"):
        BucketedBias(buckets, farthest, heads=2)


def test_a_share_of_the_features_is_rotated() -> None:
    x = torch.randn(2, 5, 8)
    found = Rotary(share=0.5)(x, start=3)
    torch.testing.assert_close(found[..., :4], rotary(x[..., :4], start=3))
    assert torch.equal(found[..., 4:], x[..., 4:])


def test_linear_scaling_divides_positions() -> None:
    x = torch.randn(2, 9, 8)
    scaled = Rotary(scaling=RopeScaling("linear", 4.0))(x)
    torch.testing.assert_close(scaled[:, 8], rotary(x[:, 8:9], start=2)[:, 0])


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_scaling_keeps_high_rates_and_divides_low_ones(kind: str) -> None:
    scaling = RopeScaling(kind, 8.0, 64, 1.0, 4.0)  # type: ignore[arg-type]
    plain = 500.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    rates = scaling.rates(32, 500.0)
    torch.testing.assert_close(rates[0], plain[0])
    torch.testing.assert_close(rates[-1], plain[-1] / 8)
    assert bool(((rates <= plain * (1 + 1e-12)) & (rates >= plain / 8 * (1 - 1e-12))).all())


@pytest.mark.parametrize(
    "wrong", [("none", 2.0), ("linear", 0.0), ("llama3", 2.0, 8, 4.0, 1.0), ("yarn", 2.0, 0)], ids=str
)
def test_scalings_that_are_none(wrong: tuple[object, ...]) -> None:
    with pytest.raises(ConfigError):
        RopeScaling(*wrong)  # type: ignore[arg-type]


def test_heads_of_another_width_with_norms() -> None:
    layer = MultiHeadAttention(12, 4, key_heads=2, head_width=6, bias="inputs", norms=(RMSNorm(6), RMSNorm(6)))
    x = torch.randn(2, 5, 12)
    q, k, v = (
        part.view(2, 5, -1, 6).transpose(1, 2) for part in layer.projections.layers[0](x).split([24, 12, 12], -1)
    )
    q, k = F.rms_norm(q, (6,), eps=1e-6), F.rms_norm(k, (6,), eps=1e-6)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(-2)
    assert layer.output is not None
    assert layer.output.bias is None
    torch.testing.assert_close(layer(x), expected @ layer.output.weight.T)


@pytest.mark.parametrize("place", ["before", "after", "both", "parallel"])
def test_norms_are_where_they_should_be(place: str) -> None:
    norms = NormParts("rms", 1e-6, place)  # type: ignore[arg-type]
    block = TransformerBlock(MultiHeadAttention(8, 2), GatedFeedForward(8, 16), norms).eval()
    x = torch.randn(2, 5, 8)
    first, second = block.around_self.norm, block.around_feed.norm
    attend, feed = block.self_attention, block.feed_forward
    match place:
        case "before":
            middle = x + attend(first(x))
            expected = middle + feed(second(middle))
        case "after":
            middle = first(x + attend(x))
            expected = second(middle + feed(middle))
        case "both":
            assert block.around_self.end_norm is not None
            assert block.around_feed.end_norm is not None
            middle = x + block.around_self.end_norm(attend(first(x)))
            expected = middle + block.around_feed.end_norm(feed(second(middle)))
        case _:
            expected = x + attend(first(x)) + feed(second(x))
    torch.testing.assert_close(block(x), expected)
