"""Whatever a layer or a function gets by mistake, a typed error names the argument and says how to mend it."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.errors import ArgumentError, ConfigError, DtypeError, QkvError, UnsupportedError

X, QUERY, KEY, VALUE = torch.ones(2, 5, 8), torch.ones(2, 3, 4), torch.ones(2, 5, 6), torch.ones(2, 5, 7)
_PAIR = {"query": QUERY, "key": KEY}
LAYERS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], dict[str, Tensor]]] = {
    "rms norm": (qkv.nn.RMSNorm, {"width": 8}, {"x": X}),
    "pool": (qkv.nn.Pool, {"width": 8}, {"states": X}),
    "mean pool": (qkv.nn.Pool, {"width": 8, "kind": "mean"}, {"states": X}),
    "pointer": (qkv.nn.Pointer, {"query_width": 4, "key_width": 6, "hidden": 8}, _PAIR),
    "bilinear pointer": (
        qkv.nn.Pointer,
        {"query_width": 4, "key_width": 6, "hidden": 8, "score": "bilinear"},
        _PAIR,
    ),
    "feed forward": (qkv.nn.FeedForward, {"width": 8, "hidden": 16}, {"x": X}),
    "gated feed forward": (qkv.nn.GatedFeedForward, {"width": 8, "hidden": 16}, {"x": X}),
    "non-local": (qkv.nn.NonLocalBlock, {"channels": 5, "inner": 2}, {"x": X}),
    "heads": (
        qkv.nn.MultiHeadAttention,
        {"width": 4, "heads": 2, "key_width": 6, "value_width": 7, "key_heads": 2, "head_width": 3},
        {**_PAIR, "value": VALUE},
    ),
    "additive": (qkv.nn.AdditiveScore, {"query_width": 4, "key_width": 6, "hidden": 8}, _PAIR),
    "additive per head": (
        qkv.nn.AdditiveScore,
        {"query_width": 4, "key_width": 6, "hidden": 8, "heads": 2, "key_heads": 2},
        {},
    ),
    "bilinear": (qkv.nn.BilinearScore, {"query_width": 4, "key_width": 6}, _PAIR),
    "concat": (qkv.nn.ConcatScore, {"query_width": 4, "key_width": 6}, _PAIR),
    "network": (qkv.nn.LearnedScore, {"query_width": 4, "key_width": 6, "hidden": 8}, _PAIR),
    "cosine": (qkv.nn.CosineScore, {"heads": 2}, {"query": X, "key": X}),
    "kernel": (qkv.nn.KernelScore, {"heads": 2}, {"query": X, "key": X}),
    "sink": (qkv.nn.SinkSoftmax, {"heads": 2}, {}),
    "entmax": (qkv.nn.LearnedEntmax, {"heads": 2}, {}),
    "alibi": (qkv.nn.AlibiBias, {"heads": 2}, {}),
    "relative": (qkv.nn.RelativeBias, {"reach": 2, "heads": 2}, {}),
    "copy": (qkv.nn.CopyHead, {"vocabulary": 9, "query_width": 4, "key_width": 6, "hidden": 8}, {}),
}
SIZES = ("nonsense", [1, 2], 0, -3, 2.5, float("nan"), True, object(), torch.empty(0))


def _no_inputs(x: Tensor) -> Iterator[tuple[str, object]]:
    yield from {"text": "nonsense", "list": [1, 2], "number": 2.5, "object": object()}.items()
    yield from {"empty": torch.empty(0), "scalar": torch.tensor(1.0)}.items()
    for dtype in (torch.int64, torch.complex64):
        yield f"{dtype}", x.to(dtype)
    yield "wide", torch.ones(*x.shape[:-2], x.shape[-2] + 3, x.shape[-1] + 3)
    yield "nothing", x[:, :0, :0]
    yield "sparse", x.to_sparse()


def _message_of(call: Callable[[], object]) -> QkvError:
    with pytest.raises(QkvError) as raised:
        call()
    error = raised.value
    assert error.argument
    assert error.expected
    assert error.got
    assert error.hint
    return error


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_refuses_what_is_no_input_of_it(name: str) -> None:
    make, sizes, inputs = LAYERS[name]
    layer = make(**sizes)
    for argument, x in inputs.items():
        layer(**inputs)
        for _, wrong in _no_inputs(x):
            error = _message_of(lambda wrong=wrong, argument=argument: layer(**{**inputs, argument: wrong}))
            # A score may name its weight, and compare its width with that of the query or the key.
            assert error.argument in inputs or any(each in error.expected for each in inputs)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_refuses_what_is_no_size(name: str) -> None:
    make, sizes, _ = LAYERS[name]
    optional = {each.name for each in inspect.signature(make).parameters.values() if each.default is None}
    for argument in (each for each, size in sizes.items() if isinstance(size, int)):
        for wrong in SIZES if argument in optional else (*SIZES, None):
            error = _message_of(lambda wrong=wrong, argument=argument: make(**{**sizes, argument: wrong}))
            assert error.argument == argument
            assert isinstance(error, ConfigError)


@pytest.mark.parametrize("make", [qkv.nn.Dropout, lambda share: qkv.nn.Attention(dropout=share)])
@pytest.mark.parametrize("share", ["0.5", None, [0.1], 1.0, -0.1, float("nan")])
def test_a_fraction_is_one(make: Callable[[Any], nn.Module], share: Any) -> None:
    assert _message_of(lambda: make(share)).argument in ("dropout", "share")


@pytest.mark.parametrize("name", ["pool", "feed forward", "gated feed forward", "non-local", "heads"])
def test_a_layer_names_another_element_type_and_device(name: str) -> None:
    make, sizes, inputs = LAYERS[name]
    layer = make(**sizes)
    wide = {argument: x.double() for argument, x in inputs.items()}
    assert isinstance(_message_of(lambda: layer(**wide)), DtypeError)
    layer.double()(**wide)
    assert isinstance(_message_of(lambda: layer(**{k: x.to("meta") for k, x in wide.items()})), DtypeError)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        make(**sizes)(**inputs)
        make(**sizes)(**{argument: x.bfloat16() for argument, x in inputs.items()})


@pytest.mark.parametrize("generator", ["seed", [1], 0, -3, 2.5, True, torch.tensor(1)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_generator_is_one(generator: Any, dropout: float) -> None:
    for call in (qkv.attention, qkv.attention_with_weights, qkv.attention_with_state):
        error = _message_of(lambda call=call: call(X, X, X, dropout=dropout, generator=generator))
        assert error.argument == "generator"


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("normalizer", [None, qkv.normalizers.Hard(), qkv.normalizers.Identity()])
def test_the_scores_of_a_function_are_floating_point_numbers(dtype: torch.dtype, normalizer: Any) -> None:
    def score(query: Tensor, key: Tensor) -> Tensor:
        return (query @ key.mT).to(dtype)

    error = _message_of(lambda: qkv.attention(X, X, X, score=score, normalizer=normalizer))
    assert error.argument == "score"
    assert isinstance(error, DtypeError)


@pytest.mark.parametrize("result", [1, 1.0, True, None, "text", torch.ones(3)])
def test_a_function_of_flex_attention_returns_a_scalar_tensor(result: Any) -> None:
    heads = torch.ones(1, 2, 4, 8)
    error = _message_of(lambda: qkv.flex_attention(heads, heads, heads, score_mod=lambda *_: result))
    assert "score_mod" in error.argument


def test_only_pairs_are_merged_and_only_one_of_them_has_a_sink() -> None:
    sink = qkv.normalizers.Softmax(sink=0.3)
    query, key, value = torch.randn(3, 2, 6, 4, generator=torch.Generator().manual_seed(1)).unbind()

    def part(first: int, last: int, normalizer: Any = None) -> Any:
        return qkv.attention_with_state(query, key[:, first:last], value[:, first:last], normalizer=normalizer)

    for wrong in (None, 3, "text", iter([]), [1], [(1, 2)], [part(0, 2), part(2, 6)[0]], {"a": 1}):
        assert isinstance(_message_of(lambda wrong=wrong: qkv.merge(wrong)), ArgumentError)
    expected = qkv.attention_with_state(query, key, value, normalizer=sink)
    some = qkv.merge([part(0, 2), part(2, 3, sink)])
    for parts in ([part(0, 3, sink), part(3, 6)], [part(3, 6), part(0, 3, sink)], [some, part(3, 6)]):
        output, state = qkv.merge(parts)
        torch.testing.assert_close(output, expected[0])
        torch.testing.assert_close(state.lse, expected[1].lse)
        assert state.sink
    assert not part(0, 3)[1].sink
    for parts in ([part(0, 3, sink), part(3, 6, sink)], [some, part(3, 6, sink)]):
        assert isinstance(_message_of(lambda parts=parts: qkv.merge(parts)), UnsupportedError)
