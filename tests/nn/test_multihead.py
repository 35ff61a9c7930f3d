"""Multi-head attention equals PyTorch's layer where that applies, and keeps its own promises elsewhere."""

import copy
import inspect
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.errors import ArgumentError, ConfigError, QkvError, ShapeError, UnsupportedError
from qkv.functional import attention
from qkv.masks.patterns import causal, lengths
from qkv.nn.biases import AlibiBias, RelativeBias
from qkv.nn.decoding.cache import Memory
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.normalizers import LearnedEntmax, LearnedSigmoid, NormalizerModule, SinkSoftmax
from qkv.nn.positions import Rotary
from qkv.nn.scores import BilinearScore, DotScore
from qkv.normalizers.dense import Softmax
from qkv.normalizers.sparse import Sparsemax
from qkv.scores.base import Score
from qkv.scores.free import Learned, Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Cosine

SCORES = ["additive", "bilinear", "dot", "scaled_dot"]


def noisy(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return layer


WIDTHS: list[dict[str, Any]] = [
    {},
    {"kdim": 12, "vdim": 20},
    {"bias": False},
    {"kdim": 12, "vdim": 12},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "kdim": 12, "vdim": 20},
]


@pytest.mark.parametrize("widths", WIDTHS)
def test_pytorchs_layer_converted_gives_its_output_and_gradients(widths: dict[str, Any]) -> None:
    theirs = noisy(nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64, **widths))
    ours = MultiHeadAttention.from_torch(theirs)
    query = torch.randn(3, 5, 16, dtype=torch.float64)
    key = torch.randn(3, 7, widths.get("kdim", 16), dtype=torch.float64)
    value = torch.randn(3, 7, widths.get("vdim", 16), dtype=torch.float64)
    # With extra keys, a row whose keys are all hidden still sees those.
    real = torch.tensor([7, 2, 0 if "add_bias_kv" in widths else 5])
    expected, _ = theirs(query, key, value, key_padding_mask=torch.arange(7) >= real[:, None])
    output = ours(query, key, value, mask=lengths(real))
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
    for loss in (output, expected):
        loss.square().sum().backward()
    torch.testing.assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad, rtol=1e-10, atol=1e-10)
    if theirs.in_proj_weight is not None:
        grads = torch.cat([layer.weight.grad for layer in ours.projections.layers])
        torch.testing.assert_close(grads, theirs.in_proj_weight.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("default_device", ["cpu", "meta"])
def test_there_and_back_keeps_every_bit(widths: dict[str, Any], default_device: str) -> None:
    theirs = noisy(nn.MultiheadAttention(16, 4, dropout=0.25, **widths))
    with torch.device(default_device):
        back = MultiHeadAttention.from_torch(theirs).to_torch()
    assert back.dropout == 0.25
    for name, parameter in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], parameter)


def test_self_attention_equals_attending_to_oneself() -> None:
    layer = MultiHeadAttention(12, 3).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer(x, x.clone(), x.clone()), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer(x), layer(x, x.clone()), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_step_by_step_equals_all_at_once(score: str, key_heads: int) -> None:
    layer = MultiHeadAttention(16, 4, score=score, key_heads=key_heads).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    past, outputs = None, []
    for step in x.split([1, 2, 1, 2], 1):
        query, past = layer.extend(step, past)
        outputs.append(layer.attend(query, past, mask=causal(past.length - step.shape[1])))
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x, mask=causal()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_grouped_heads_are_heads_that_share_their_keys(score: str) -> None:
    grouped = MultiHeadAttention(16, 4, key_heads=2, score=score).double()
    single = MultiHeadAttention(16, 4, score=score).double()
    state = single.state_dict()
    for name, parameter in grouped.state_dict().items():
        if name.startswith("projections"):
            query, *rest = parameter.split([16, 8, 8])
            shared = [part.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for part in rest]
            state[name] = torch.cat([query, *shared])
        else:
            state[name] = parameter.repeat_interleave(2, 0) if name == "score.key_weight" else parameter
    single.load_state_dict(state)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), single(x), rtol=1e-10, atol=1e-12)


def test_values_and_output_can_be_left_as_they_are() -> None:
    layer = MultiHeadAttention(8, 2, key_width=6, value_width=5, leave_out=("value", "output")).double()
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    key, value = torch.randn(3, 7, 6, dtype=torch.float64), torch.randn(3, 7, 5, dtype=torch.float64)
    queries, keys = layer.projections.query(x), layer.projections.memory(key, value)[0]
    heads = [attention(q, k, value) for q, k in zip(queries.unbind(1), keys.unbind(1), strict=True)]
    torch.testing.assert_close(layer(x, key, value), torch.cat(heads, -1), rtol=1e-10, atol=1e-12)


def test_any_score_and_normalizer_serve() -> None:
    layer = MultiHeadAttention(8, 2, score=Cosine(5.0), normalizer=Sparsemax())
    assert layer(torch.randn(1, 3, 8)).shape == (1, 3, 8)
    assert isinstance(layer.attention.normalizer, Sparsemax)


@pytest.mark.parametrize("normalizer", [SinkSoftmax(2), LearnedSigmoid(3, heads=2), LearnedEntmax(2)])
def test_a_normalizer_that_learns_is_part_of_the_layer(normalizer: NormalizerModule) -> None:
    layer = MultiHeadAttention(8, 2, normalizer=normalizer)
    layer(torch.randn(2, 3, 8)).square().sum().backward()
    learned = [name for name, _ in layer.named_parameters() if name.startswith("normalizer.")]
    assert learned
    assert all(layer.get_parameter(name).grad.abs().sum() > 0 for name in learned)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_are_those_of_the_function(score: str) -> None:
    layer = MultiHeadAttention(4, 2, score=score).double()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        output: Tensor = torch.func.functional_call(layer, given, (x,), {"mask": causal()})
        return output

    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


@pytest.mark.parametrize(
    "layer",
    [
        MultiHeadAttention(8, 2, score="dot"),
        MultiHeadAttention(8, 2, key_heads=1),
        MultiHeadAttention(8, 2, normalizer=Sparsemax()),
        MultiHeadAttention(8, 2, normalizer=SinkSoftmax(2)),
        MultiHeadAttention(8, 2, leave_out=("output",)),
        MultiHeadAttention(8, 2, leave_out=("value",)),
    ],
)
def test_what_pytorchs_layer_cannot_express_is_refused(layer: MultiHeadAttention) -> None:
    with pytest.raises(UnsupportedError, match=r"a layer that nn\.MultiheadAttention supports"):
        layer.to_torch()


@pytest.mark.parametrize("options", [{}, {"score": "additive", "key_heads": 2}, {"normalizer": SinkSoftmax(4)}])
def test_an_extra_key_is_one_more_key_that_every_query_sees(options: dict[str, Any]) -> None:
    layer = MultiHeadAttention(16, 4, extra_key=True, leave_out=("output",), **options).double()
    x, seen = torch.randn(2, 5, 16, dtype=torch.float64), torch.rand(2, 1, 5, 5) < 0.5
    query, memory = layer.extend(x, None)
    key, value = layer.score.project_key(layer.extra_key), layer.extra_value
    expected = attention(
        query,
        torch.cat([memory.key, key.expand(2, -1, -1, -1)], -2),
        torch.cat([memory.value, value.expand(2, -1, -1, -1)], -2),
        score=layer.score.projected(),
        normalizer=None if layer.normalizer is None else layer.normalizer.value(),
        mask=torch.cat([seen, torch.ones(2, 1, 5, 1, dtype=torch.bool)], -1),
        enable_gqa=layer.key_heads != layer.heads,
    )
    output = layer(x, mask=seen)
    torch.testing.assert_close(output, expected.transpose(1, 2).flatten(2), rtol=1e-10, atol=1e-12)
    gradients = [
        torch.autograd.grad(answer.square().sum(), list(layer.parameters()), retain_graph=True)
        for answer in (output, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_an_extra_key_needs_rows_that_can_be_merged() -> None:
    with pytest.raises(UnsupportedError, match="Sparsemax"):
        MultiHeadAttention(8, 2, normalizer=Sparsemax(), extra_key=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads: expected a divisor of the width 8; got 3"),
        ({"heads": 4, "key_heads": 3}, "key_heads: expected a divisor of 4 heads; got 3"),
        ({"heads": 2, "leave_out": ("values",)}, 'leave_out: .* Did you mean "value"'),
        ({"heads": 2, "score": "bilinar"}, 'Did you mean "bilinear"'),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MultiHeadAttention(8, **options)


def test_an_input_of_another_width_is_named() -> None:
    layer = MultiHeadAttention(8, 2, key_width=6)
    with pytest.raises(ShapeError, match=r"key: expected shape \(B, N, 6\); got \(1, 3, 8\)"):
        layer(torch.zeros(1, 3, 8))
    with pytest.raises(ShapeError, match=r"query: expected shape \(B, N, 8\)"):
        layer(torch.zeros(1, 3, 6), torch.zeros(1, 3, 6))


@pytest.mark.parametrize("positions", [Rotary(), AlibiBias(4), RelativeBias(3, 4)], ids=lambda p: type(p).__name__)
def test_positions_depend_on_differences_and_go_on_with_a_cache(positions: Rotary | AlibiBias | RelativeBias) -> None:
    torch.manual_seed(0)
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    attend = MultiHeadAttention(16, 4, key_heads=2, positions=positions).eval()
    x = torch.randn(2, 9, 16)
    whole = attend(x, mask=causal())
    _, past = attend.extend(x[:, :5], None)
    query, memory = attend.extend(x[:, 5:], past)
    rest = attend.attend(query, memory, mask=causal(offset=5))
    torch.testing.assert_close(rest, whole[:, 5:], rtol=0, atol=1e-5)
    later = Memory(past.key[:, :, :0], past.value[:, :, :0], first=70)
    query, memory = attend.extend(x, later)
    torch.testing.assert_close(attend.attend(query, memory, mask=causal()), whole, rtol=0, atol=1e-4)
    without = MultiHeadAttention(16, 4, key_heads=2).eval()
    without.load_state_dict(attend.state_dict(), strict=False)
    assert (without(x, mask=causal()) - whole).abs().max() > 1e-3


def test_positions_are_refused_where_they_mean_nothing() -> None:
    x = torch.randn(1, 3, 8)
    with pytest.raises(ConfigError, match="positions: expected none between two sequences; got Rotary"):
        MultiHeadAttention(8, 2, positions=Rotary())(x, torch.randn(1, 4, 8))
    with pytest.raises(ConfigError, match="bias: expected no bias, because the layer's positions"):
        MultiHeadAttention(8, 2, positions=AlibiBias(2))(x, bias=torch.zeros(3, 3))


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("score", ["dot", "bilinear", "dot module", "bilinear module"])
def test_scores_of_products_start_as_wide_as_scaled_ones(score: str, width: int) -> None:
    """Scores √D times as wide saturate the softmax: a Transformer with them learns nothing at all."""
    torch.manual_seed(0)
    x = torch.randn(4, 64, width)
    modules = {"dot module": DotScore(), "bilinear module": BilinearScore(width // 2, width // 2, heads=2)}
    widths = []
    for given in (modules.get(score, score), "scaled_dot"):
        attend = MultiHeadAttention(width, 2, score=given)
        q, k, _ = attend.projections.together(x)
        widths.append(attend.score(q, k).std().item())
    assert 0.5 < widths[0] / widths[1] < 2


def test_unknown_arguments_of_a_call_are_explained_and_others_errors_stay() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    for name, says in (("is_causal", "masks.causal"), ("need_weights", "qkv.record"), ("biass", 'Did you mean "bias"')):
        with pytest.raises(ArgumentError, match=f"{name}: .*{re.escape(says)}") as caught:
            layer(x, **{name: None})
        assert isinstance(caught.value, TypeError)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'query'") as missing:
        layer()
    assert not isinstance(missing.value, QkvError)

    def fails(query: Tensor, key: Tensor) -> Tensor:
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        MultiHeadAttention(8, 2, score=Learned(fails))(x)


@pytest.mark.compiler
def test_explaining_arguments_changes_no_way_to_run_a_layer() -> None:
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    want = layer(x, mask=causal())
    assert list(inspect.signature(layer.forward).parameters)[:4] == ["query", "key", "value", "mask"]
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, mask=causal()), want)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))
    torch.testing.assert_close(copy.deepcopy(layer)(x, mask=causal()), want)
    seen = []
    layer.register_forward_hook(lambda module, given, named, output: seen.append(named), with_kwargs=True)
    layer(x, mask=causal())
    assert list(seen[0]) == ["mask"]


def test_threads_may_ask_one_layer_for_its_weights_and_its_output() -> None:
    layer, x = MultiHeadAttention(8, 2).eval(), torch.randn(1, 3, 8)
    expected = layer(x).detach()
    memory, query = layer.project_memory(x), layer.project_query(x)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            pairs = [pool.submit(layer.attend_with_weights, query, memory) for _ in range(400)]
            outputs = [pool.submit(layer, x) for _ in range(400)]
    finally:
        sys.setswitchinterval(before)
    for output in (*(pair.result()[0] for pair in pairs), *(each.result() for each in outputs)):
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("widths", [{}, {"kdim": 6, "vdim": 7}])
@pytest.mark.parametrize("extra", [False, True])
def test_what_learns_there_learns_here_and_back(widths: dict[str, int], extra: bool) -> None:
    names = [name for name, _ in nn.MultiheadAttention(8, 2, **widths, add_bias_kv=extra).named_parameters()]
    for frozen in ([], names, *([name] for name in names)):
        theirs = nn.MultiheadAttention(8, 2, **widths, add_bias_kv=extra)
        for name in frozen:
            theirs.get_parameter(name).requires_grad_(False)
        ours = MultiHeadAttention.from_torch(theirs)
        learn = sum(x.numel() for x in ours.parameters() if x.requires_grad)
        assert learn == sum(x.numel() for x in theirs.parameters() if x.requires_grad)
        again = {name: x.requires_grad for name, x in ours.to_torch().named_parameters()}
        assert again == {name: name not in frozen for name in names}


@pytest.mark.parametrize("score", ["gaussian", Gaussian(0.5), Boxcar(), Epanechnikov(), "triangular"])
@pytest.mark.parametrize("normalizer", [Softmax(), Softmax(0.0), SinkSoftmax(2)])
def test_a_softmax_of_a_kernel_comes_with_a_hint(score, normalizer):
    with pytest.warns(UserWarning, match="SquaredDistance|squared-distance"):
        MultiHeadAttention(8, 2, score=score, normalizer=normalizer)
    values = {"score": score if isinstance(score, Score) else Gaussian(), "normalizer": Softmax(0.0)}
    assert "squared-distance" in dict(qkv.explain(*torch.randn(3, 4, 8), **values).rows())["hint"].replace("\n", " ")


@pytest.mark.parametrize("score", ["squared_distance", "scaled_dot", SquaredDistance(), Uniform()])
def test_other_scores_take_a_sink_without_a_hint(score):
    MultiHeadAttention(8, 2, score=score, normalizer=SinkSoftmax(2))
    value = score if isinstance(score, Score) else SquaredDistance()
    assert "hint" not in dict(qkv.explain(*torch.randn(3, 4, 8), score=value, normalizer=Softmax(0.0)).rows())
