"""Whatever stands in one argument of a constructor, a layer or a function, it is served, or a typed error names it."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.nn.layer_calls import block, layers
from torch import Tensor, nn

import qkv
from qkv import biases, masks, normalizers, scores
from qkv.errors import QkvError, UnsupportedError
from qkv.nn import (
    AdditiveScore,
    AlibiBias,
    Attention,
    BilinearScore,
    BucketedBias,
    ConcatScore,
    CopyHead,
    CosineScore,
    Dropout,
    FeedForward,
    FixedScore,
    GatedFeedForward,
    KernelScore,
    LearnedEntmax,
    LearnedScore,
    LearnedSigmoid,
    LocationScore,
    MechanismConfig,
    Memory,
    MonotonicJumps,
    MonotonicScores,
    MultiHeadAttention,
    NonLocalBlock,
    NormParts,
    Pointer,
    Pool,
    PositionEmbedding,
    RecurrentSelfAttention,
    RelativeBias,
    Residual,
    RMSNorm,
    RopeScaling,
    Rotary,
    ScaledDotScore,
    SinkSoftmax,
    TorchMultiheadAttention,
    TransformerBlock,
    build_bias,
    build_score,
    rotary,
    sinusoidal,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sparse", "ignore:The use of `x.T`", "ignore:Converting a tensor")
Calls = dict[str, tuple[Callable[..., Any], dict[str, Any]]]
STATES, QUERY, KEY, VALUE = torch.ones(2, 5, 8), torch.ones(2, 3, 4), torch.ones(2, 5, 6), torch.ones(2, 5, 7)
HEADS, SEEN, COUNTS = torch.ones(1, 2, 4, 4), torch.ones(2, 3, 5, dtype=torch.bool), torch.tensor([5, 3])
ODD: dict[str, Any] = {
    "none": None,
    "text": "nonsense",
    "list": [1, 2],
    "no list": [],
    "negative": -3,
    "zero": 0,
    "huge": 10**30,
    "true": True,
    "fraction": 2.5,
    "complex": 1j,
    "no number": float("nan"),
    "object": object(),
    "table": {"a": 1},
    "class": int,
    "module": nn.Linear(2, 3),
    "empty": torch.empty(0),
    "scalar": torch.tensor(1.0),
    "other rank": torch.ones(3, 1, 2, 1, 7),
    "other device": torch.ones(2, 5, 8, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "negative numbers": torch.full((2,), -5),
    "large numbers": torch.full((2,), 10**9),
    "flags": torch.ones(2, dtype=torch.bool),
    **{f"{dtype}": torch.ones(2, 5, 8, dtype=dtype) for dtype in (torch.int64, torch.complex64, torch.float64)},
}


def constructors() -> Calls:
    sizes = {"query_width": 4, "key_width": 6, "hidden": 8}
    heads = {"heads": 2, "key_heads": 1}
    table: list[tuple[Callable[..., Any], dict[str, Any]]] = [
        (RMSNorm, {"width": 8, "eps": 1e-6, "shift": 0.0}),
        (Pool, {"width": 8, "kind": "attention", "mechanism": MechanismConfig(score="dot")}),
        (Pointer, {**sizes, "score": "additive"}),
        (FeedForward, {"width": 8, "hidden": 16, "dropout": 0.1, "activation": "relu", "bias": True}),
        (GatedFeedForward, {"width": 8, "hidden": 16, "dropout": 0.1, "activation": "silu", "bias": False}),
        (NonLocalBlock, {"channels": 6, "inner": 3, "form": "dot"}),
        (
            MultiHeadAttention,
            {
                "width": 8,
                "heads": 4,
                "key_width": 6,
                "value_width": 7,
                "key_heads": 2,
                "head_width": 4,
                "score": "scaled_dot",
                "normalizer": normalizers.Softmax(),
                "dropout": 0.1,
                "bias": True,
                "leave_out": ("output",),
                "positions": Rotary(),
                "extra_key": False,
                "norms": (RMSNorm(4), RMSNorm(4)),
            },
        ),
        (AdditiveScore, {**sizes, **heads}),
        (BilinearScore, {"query_width": 4, "key_width": 6, "heads": 2, "scale": 1.0}),
        (ConcatScore, {"query_width": 4, "key_width": 6, "activation": "relu", **heads}),
        (LearnedScore, sizes),
        (CosineScore, {"scale": 10.0, "heads": 2}),
        (KernelScore, {"kernel": "epanechnikov", "bandwidth": 1.0, "heads": 2, "power": 2}),
        (ScaledDotScore, {"scale": 1.0, "softcap": 2.0}),
        (FixedScore, {"score": scores.Dot()}),
        (SinkSoftmax, {"heads": 2, "sink": 0.0}),
        (LearnedEntmax, {"heads": 2, "alpha": 1.5}),
        (LearnedSigmoid, {"keys": 5, "heads": 2}),
        (AlibiBias, {"heads": 2, "learned": False}),
        (RelativeBias, {"reach": 2, "heads": 2}),
        (BucketedBias, {"buckets": 8, "farthest": 16, "heads": 2, "causal": False}),
        (CopyHead, {"vocabulary": 9, **sizes, "mixing": "mixture", "score": "additive"}),
        (Attention, {"normalizer": normalizers.Softmax(), "dropout": 0.1, "backend": "auto", "also": None}),
        (Dropout, {"share": 0.1}),
        (LocationScore, {**sizes, "filters": 3, "reach": 2, "heads": 2}),
        (MonotonicScores, {**sizes, "score": "bilinear"}),
        (MonotonicJumps, {"query_width": 4, "key_width": 6, "jumps": 2}),
        (PositionEmbedding, {"kind": "learned", "width": 8, "length": 16, "skipped": 0}),
        (Rotary, {"base": 10_000.0, "share": 0.5, "scaling": RopeScaling("linear", 4.0)}),
        (RopeScaling, {"kind": "yarn", "factor": 4.0, "original": 8192, "low": 1.0, "high": 4.0, "rounded": True}),
        (NormParts, {"kind": "layer", "eps": 1e-5, "place": "before", "final": True, "heads": False}),
        (Residual, {"width": 8, "norms": NormParts(), "dropout": 0.0}),
        (
            TransformerBlock,
            {
                "attention": MultiHeadAttention(8, 2),
                "feed_forward": FeedForward(8, 16),
                "norms": NormParts(),
                "cross": MultiHeadAttention(8, 2),
                "second": MultiHeadAttention(8, 2),
                "dropout": 0.0,
                "reach": 3,
            },
        ),
        (TorchMultiheadAttention, {"attention": MultiHeadAttention(8, 2), "batch_first": True}),
        (RecurrentSelfAttention, {"width": 8, "hidden": 6, "cell": "gru", "score": "additive", "memory": "whole"}),
        (MechanismConfig, {"score": "epanechnikov", "normalizer": "softmax", "alpha": None, "bandwidth": 1.0}),
        (Memory, {"key": KEY, "value": VALUE, "first": 0}),
        (build_bias, {"name": "relative", "heads": 2, "reach": 3}),
        (build_score, {"name": "additive", **sizes, **heads}),
        (sinusoidal, {"length": 5, "width": 8, "start": 0, "device": None, "dtype": torch.float32}),
    ]
    return {make.__name__: (make, arguments) for make, arguments in table}


def functions() -> Calls:
    every: Calls = {}
    call = {"query": HEADS, "key": HEADS, "score": scores.Dot(), "normalizer": None, "mask": None, "bias": None}
    whole = {**call, "value": HEADS, "dropout": 0.0, "generator": None, "backend": "auto", "enable_gqa": False}
    for name in ("attention", "attention_with_weights", "attention_with_state", "explain"):
        every[name] = getattr(qkv, name), {k: x for k, x in whole.items() if k != "score"}
    every["attention_map"] = qkv.attention_map, {**call, "enable_gqa": False, "state": None}
    every["flex_attention"] = qkv.flex_attention, {"query": HEADS, "key": HEADS, "value": HEADS, "enable_gqa": False}
    for normalizer in (normalizers.Softmax(), normalizers.Hard()):
        parts = [
            qkv.attention_with_state(HEADS, HEADS[:, :, a:b], HEADS[:, :, a:b], normalizer=normalizer)
            for a, b in ((0, 2), (2, 4))
        ]
        every[f"merge {normalizer}"] = qkv.merge, {"parts": parts, "starts": [0, 2]}

    def scored(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **parameters: qkv.attention(HEADS, HEADS, HEADS, score=make(**parameters))

    def normalized(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **parameters: qkv.attention(HEADS, HEADS, HEADS, normalizer=make(**parameters))

    def masked(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **parameters: qkv.attention(HEADS, HEADS, HEADS, mask=make(**parameters))

    def biased(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **parameters: qkv.attention(HEADS, HEADS, HEADS, bias=make(**parameters))

    square, row = torch.eye(4), torch.ones(4)
    for score, parameters in {
        scores.Dot: {},
        scores.ScaledDot: {"scale": 1.0, "softcap": 2.0},
        scores.Cosine: {"scale": 1.0},
        scores.Bilinear: {"weight": square, "scale": 1.0},
        scores.Additive: {"vector": row, "query_weight": square, "key_weight": square},
        scores.Concat: {"query_vector": row, "key_vector": row, "activation": "relu"},
        scores.SquaredDistance: {"bandwidth": 1.0},
        scores.Gaussian: {"bandwidth": 1.0},
        scores.Boxcar: {"bandwidth": 1.0},
        scores.Epanechnikov: {"bandwidth": 1.0, "power": 2},
    }.items():
        every[score.__name__] = scored(score), parameters
        every[f"{score.__name__}()"] = score(**parameters), {"query": HEADS, "key": HEADS}  # type: ignore[abstract]
    one = torch.tensor([3])
    for normalizer, parameters in {
        normalizers.Softmax: {"sink": 0.0},
        normalizers.Sigmoid: {"bias": 0.0},
        normalizers.Entmax: {"alpha": 1.5},
        normalizers.Sum: {},
        normalizers.Hard: {},
        normalizers.Sparsemax: {},
    }.items():
        if parameters:
            every[normalizer.__name__] = normalized(normalizer), parameters  # type: ignore[attr-defined]
        table = {"scores": torch.rand(2, 3, 5), "visible": SEEN}
        every[f"{normalizer.__name__}()"] = normalizer(**parameters), table  # type: ignore[attr-defined, operator]
    every["causal"] = masked(masks.causal), {"offset": 0, "align": "start"}
    every["lengths"] = masked(masks.lengths), {"keys": one, "queries": one}
    every["span"] = masked(masks.span), {"first": one, "last": one}
    every["window"] = masked(masks.window), {"left": 1, "right": 1, "offset": 0}
    every["documents"] = masked(masks.documents), {"ids": torch.zeros(1, 4, dtype=torch.int64), "key_ids": None}
    every["dense"] = masked(masks.dense), {"tensor": torch.ones(4, 4, dtype=torch.bool)}
    every["alibi"] = biased(biases.alibi), {"slopes": 0.5, "offset": 0}
    every["relative"] = biased(biases.relative), {"table": torch.zeros(5), "offset": 0}
    amap = qkv.attention_map(HEADS, HEADS)
    every["topk"] = amap.topk, {"count": 1}
    every["pooled"] = amap.pooled, {"height": 2, "width": 2, "how": "mean"}
    every["statistics"] = lambda name, topk: amap.statistics(name, topk=topk), {"name": "entropy", "topk": 0}
    return every


CALLS: dict[str, Callable[[], Calls]] = {
    "constructors": constructors,
    "layers": lambda: {name: make() for name, make in layers().items()},
    "functions": functions,
}


def calls_with_an_odd_argument(kind: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a third of all calls, another third for each argument."""
    names = list(ODD)
    for place, (name, (call, good)) in enumerate(CALLS[kind]().items()):
        with torch.no_grad():
            call(**good)
        for index, argument in enumerate(good):
            for odd in names[(place + index) % 3 :: 3]:
                changed = {**good, argument: ODD[odd]}
                yield f"{name}, {argument}: {odd}", lambda call=call, changed=changed: call(**changed)


def error_of(call: Callable[[], Any]) -> Exception | None:
    """Return what a call without gradients raises."""
    try:
        with torch.no_grad():
            call()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("kind", CALLS)
def test_an_odd_argument_is_served_or_named(kind: str) -> None:
    refused = 0
    for name, call in calls_with_an_odd_argument(kind):
        error = error_of(call)
        assert error is None or isinstance(error, QkvError), (name, repr(error))
        if error is not None:
            assert all((error.argument, error.expected, error.got, error.hint)), name
            refused += 1
    assert refused > 800, refused


def test_all_layers_are_tried() -> None:
    tried = set(constructors())
    without_arguments = {"BatchRows", "DotScore", "BlockCache"}
    what_others_build = {"Copyable", "LocationSteps", "FirstOrder", "ZerothOrder", "Transitions"}
    abstract = {name for name in qkv.nn.__all__ if inspect.isabstract(getattr(qkv.nn, name))}
    missing = set(qkv.nn.__all__) - tried - without_arguments - what_others_build - abstract - {"rotary"}
    assert not missing


def test_an_integer_is_a_number() -> None:
    torch.testing.assert_close(SinkSoftmax(2, sink=0).sink, SinkSoftmax(2, sink=0.0).sink)


def test_a_score_may_have_no_hidden_layer_of_width_zero() -> None:
    for make in (build_score, MechanismConfig(score="additive").score_module):
        with pytest.raises(QkvError):
            make(*(["additive"] if make is build_score else []), 4, 4, hidden=0)  # type: ignore[operator]


def test_a_second_source_is_never_ignored() -> None:
    seen = torch.ones(2, 5, dtype=torch.bool)
    with pytest.raises(UnsupportedError):
        block(cross=MultiHeadAttention(8, 2)).begin(STATES, second=(STATES, seen))
    with pytest.raises(QkvError):
        block(second=MultiHeadAttention(8, 2))


@pytest.mark.parametrize("kind", ["sinusoidal", "halves"])
def test_far_positions_take_no_table(kind: Any) -> None:
    layer, x, far = PositionEmbedding(kind, 8), torch.zeros(2, 3, 8), 10**12
    starts = torch.tensor([far, 0])
    torch.testing.assert_close(layer(x, starts), torch.cat([layer(x[:1], far), layer(x[:1], 0)]))
    near = rotary(STATES[0].double(), start=5) @ rotary(STATES[0].double(), start=3).mT
    distant = rotary(STATES[0].double(), start=far + 5) @ rotary(STATES[0].double(), start=far + 3).mT
    torch.testing.assert_close(near, distant, rtol=1e-3, atol=1e-3)

    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, starts), layer(x, starts))


class Failing(nn.Module):
    """A user's module with a mistake in it."""

    def forward(self, x: Tensor) -> Tensor:
        """Fail."""
        raise KeyError("mine")


def test_the_error_of_a_module_in_a_layer_passes() -> None:
    layer = block()
    layer.feed_forward = Failing()
    with pytest.raises(KeyError, match="mine"):
        layer(STATES)
