"""The recorder: exact weights, no trace of it in the model, rows followed through decoding."""

import contextlib
import json
import re
import resource
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.contract.calls import MECHANISMS
from tests.contract.calls import Call as CallCase
from tests.contract.mechanisms import MASKS
from tests.pairs import fast, in_turn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import qkv
from qkv.decode.beam import Beam, beam
from qkv.decode.greedy import greedy
from qkv.decode.prompted import Prompted
from qkv.errors import ArgumentError, ConfigError, DataError, QkvError, ShapeError, UnsupportedError
from qkv.functional import attention_with_weights
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.attention import Attention
from qkv.nn.blocks import BlockCache, TransformerBlock
from qkv.nn.feed_forward import FeedForward
from qkv.nn.mechanism import MechanismConfig
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.normalizers import LearnedEntmax, SinkSoftmax
from qkv.nn.pooling import Pool
from qkv.nn.recurrent.lower import RecurrentSelfAttention
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.recording import maps
from qkv.recording.recorder import record
from qkv.recording.trace import Trace
from qkv.recording.trace_reader import KEY, read
from qkv.scores.free import Learned
from qkv.scores.kernels import Gaussian
from qkv.scores.products import Cosine

BOS, EOS = 1, 2
ROWS = [[3, 4, 5, 6], [7], [8, 9], [4, 5, 6]]


def model_of(name: str) -> RecurrentTranslator | TransformerTranslator:
    if name == "transformer":
        model: Any = TransformerTranslator(TransformerConfig(size=12, width=8, heads=2, feed_forward=8))
    else:
        model = RecurrentTranslator(RecurrentConfig(size=12, wiring=name, embedding=6, hidden=5, attention=4))  # type: ignore[arg-type]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    return model.double().eval()


def batch() -> tuple[Tensor, Tensor]:
    width = max(map(len, ROWS))
    padded = torch.tensor([row + [0] * (width - len(row)) for row in ROWS])
    return padded, torch.tensor([len(row) for row in ROWS])


models = pytest.mark.parametrize("name", ["bahdanau", "luong", "transformer"])


@models
def test_recording_changes_no_bit_and_leaves_nothing(name: str) -> None:
    model, target = model_of(name), torch.randint(0, 12, (4, 5))
    expected = model(*batch(), target)
    with record(model):
        assert torch.equal(model(*batch(), target), expected)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_hooks_with_kwargs


class _Mixed(nn.Module):
    """Two layers of ours and one of PyTorch's, with what makes float32 of half precision between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)
        self.norm, self.third = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.norm(x + self.first(x)))
        return self.third(x, x, x)[0]


@pytest.mark.parametrize("how", fast(["autocast", "bfloat16", "float16", "float64"], "autocast", "float16"))
def test_a_model_of_any_precision_is_a_page_a_picture_and_a_file(how: str, tmp_path: Path) -> None:
    model, x = _Mixed(), torch.randn(2, 5, 8)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=how == "autocast")
    if how != "autocast":
        model, x = model.to(getattr(torch, how)), x.to(getattr(torch, how))
    with autocast(), record(model) as trace:
        model(x)
    outside = [trace.weights(layer) for layer in trace.layers]
    for context in (contextlib.nullcontext, autocast):
        with context():
            for name in ("page.html", "picture.svg", "trace.safetensors"):
                trace.save(tmp_path / name)
            for layer, weights in zip(trace.layers, outside, strict=True):
                assert torch.equal(trace.weights(layer), weights)
                (statistics,) = trace.statistics(layer, "entropy", "total")
                assert statistics.total is not None
                torch.testing.assert_close(statistics.total, torch.ones_like(statistics.total))


@pytest.mark.parametrize("layer", [MultiHeadAttention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)], ids=type)
@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_a_transformed_call_is_refused(transform: Callable[..., Any], layer: nn.Module) -> None:
    def call(x: Tensor) -> Tensor:
        x = x if x.ndim == 3 else x[None]
        output = layer(x, x, x)
        return (output if isinstance(output, Tensor) else output[0]).sum()

    with pytest.raises(UnsupportedError, match=r"record.*outside of torch\.func"), record(layer):
        transform(call)(torch.randn(2, 5, 8))


def test_hooks_go_when_the_model_fails() -> None:
    model = MultiHeadAttention(8, 2)
    with pytest.raises(ShapeError), record(model):
        model(torch.zeros(1, 2, 7))
    assert not model.attention._forward_hooks


def test_weights_are_those_of_the_function() -> None:
    seam = Attention(Cosine(3.0), Sparsemax())
    query, key, value = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64).unbind()
    mask, bias = torch.rand(6, 6) > 0.3, torch.randn(6, 6, dtype=torch.float64)
    with record(seam) as trace:
        seam(query, key=key, value=value, mask=mask, bias=bias)
    _, expected = attention_with_weights(
        query, key, value, score=Cosine(3.0), normalizer=Sparsemax(), mask=mask, bias=bias
    )
    assert torch.equal(trace.weights(""), expected)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{score} {normalizer}": partial(MultiHeadAttention, 8, 2, key_heads=1, score=score, normalizer=normalizer)
        for score in ("scaled_dot", "additive", "bilinear", Gaussian(2.0))
        for normalizer in (None, Softmax(0.5), Mean(), Identity(), Hard(), Sigmoid(), Sparsemax(), Entmax(1.3))
    },
    **{
        f"mechanism {name}": partial(MultiHeadAttention, 8, 2, score=MechanismConfig(normalizer=name))
        for name in ("softmax", "sparsemax", "entmax", "sigmoid")
    },
    "learned sinks": lambda: MultiHeadAttention(8, 2, normalizer=SinkSoftmax(2)),
    "learned alpha": lambda: MultiHeadAttention(8, 2, normalizer=LearnedEntmax(2)),
    "block": lambda: TransformerBlock(MultiHeadAttention(8, 2, normalizer=Sparsemax()), FeedForward(8, 8)),
    "pool": lambda: Pool(8, mechanism=MechanismConfig(normalizer="sparsemax")),
    "recurrent": lambda: RecurrentSelfAttention(8, 8),
    "the seam": lambda: Attention(Cosine(3.0), Sparsemax()),
}


@pytest.mark.filterwarnings("ignore:score and normalizer")  # a kernel under a softmax
@pytest.mark.parametrize("name", LAYERS)
def test_weights_are_those_that_the_layer_applied(name: str) -> None:
    """Whether score and normalizer are arguments of the call, or defaults of the module that the arguments leave."""
    torch.manual_seed(0)
    layer, x, applied = LAYERS[name]().double().eval(), torch.randn(2, 5, 8, dtype=torch.float64), []
    (attention,) = (module for module in layer.modules() if isinstance(module, Attention))

    def apply(module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> None:
        _, weights = module.forward(*tensors, **options | {"also": "weights"})
        applied.append(weights)

    with attention.register_forward_hook(apply, with_kwargs=True), torch.no_grad(), record(layer) as trace:
        layer(*([x, x, x] if layer is attention else [x]))
    (expected,) = applied
    assert torch.equal(trace.weights(trace.layers[0]), expected)


def test_an_extra_key_is_refused_as_that_of_pytorch() -> None:
    """The weights of the keys, which are less than they would be without it, are those of no call that is seen."""
    layers = [MultiHeadAttention(8, 2, extra_key=True), nn.MultiheadAttention(8, 2, add_bias_kv=True)]
    for layer in layers:
        with pytest.raises(UnsupportedError, match="keys that belong to positions; got an extra key"), record(layer):
            pass


@models
def test_teacher_forcing_gives_a_row_for_each_target(name: str) -> None:
    model, target = model_of(name), torch.randint(0, 12, (4, 5))
    layer = model.alignment_layer
    assert layer is not None
    source, lengths = batch()
    with record(model, layers=[layer]) as trace:
        model(source, lengths, target)
    weights = trace.weights(layer)
    assert weights.shape[-2:] == (5, 4)
    assert trace.layers == [layer]
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    for row, count in enumerate(lengths.tolist()):
        assert not weights[row, ..., count:].any()
        mean = weights[row].mean(0) if weights.ndim == 4 else weights[row]
        assert torch.equal(trace.alignment(layer, row), mean)


@models
def test_rows_are_followed_while_others_leave(name: str) -> None:
    model = model_of(name)
    layer = model.alignment_layer
    assert layer is not None
    limit = torch.tensor([3, 6, 2, 5])
    with record(model, layers=[layer]) as trace:
        found = greedy(model, *batch(), bos=BOS, eos=EOS, limit=limit)
    assert len({len(one.log_probabilities) for one in found}) > 1
    for row, one in enumerate(found):
        target = torch.tensor([[BOS, *one.ids][: len(one.log_probabilities)]])
        with record(model, layers=[layer]) as alone:
            model(torch.tensor([ROWS[row]]), torch.tensor([len(ROWS[row])]), target)
        expected = alone.alignment(layer)
        alignment = trace.alignment(layer, row)
        assert alignment.shape[0] == len(one.log_probabilities)
        torch.testing.assert_close(alignment[:, : len(ROWS[row])], expected, rtol=1e-9, atol=1e-11)


def test_growing_keys_have_weight_zero_before_they_exist() -> None:
    model = model_of("transformer")
    layer = "decoder.0.self_attention.attention"
    source, lengths = batch()
    target = torch.randint(0, 12, (4, 5))
    with record(model, layers=["decoder.0"]) as trace:
        state = model.start(source, lengths)
        for tokens in target.unbind(1):
            _, state = model.step(tokens, state)
    with record(model) as whole:
        model(source, lengths, target)
    assert trace.layers == [layer, "decoder.0.cross_attention.attention"]
    assert trace.weights(layer).triu(1).eq(0).all()
    torch.testing.assert_close(trace.weights(layer), whole.weights(layer), rtol=1e-9, atol=1e-11)


WINDOWED = [("rotary", None), ("alibi", "sparsemax"), ("relative", "sigmoid"), ("learned", "entmax")]


@pytest.mark.parametrize(("kind", "width"), in_turn(WINDOWED, [1, 2]))
def test_keys_that_a_window_dropped_keep_their_positions(kind: tuple[Any, Any], width: int) -> None:
    """The cache of a window holds the last keys only: in each step a key has another index, and the same position."""
    positions, normalizer = kind
    torch.manual_seed(0)
    sizes = {"width": 8, "heads": 2, "key_heads": 1, "feed_forward": 8, "layers": 2}
    config = DecoderConfig(size=12, **sizes, positions=positions, normalizer=normalizer, window=2)  # type: ignore[arg-type]
    model = LanguageModel(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    source, lengths = batch()
    with record(model) as trace:
        found = [
            one[0] for one in beam(Prompted(model), source, lengths, bos=BOS, eos=EOS, limit=6, search=Beam(width))
        ]
    for row, one in enumerate(found):
        text = [*ROWS[row], *one.ids][: len(ROWS[row]) + len(one.log_probabilities) - 1]
        before = source.shape[1] - len(ROWS[row])
        with record(model) as alone:
            model(torch.tensor([text]))
        for layer in trace.layers:
            alignment = trace.alignment(layer, row, hypothesis=one)[before:, before:]
            torch.testing.assert_close(alignment[:, : len(text)], alone.alignment(layer), rtol=1e-9, atol=1e-11)
            shown = next(each for each in trace.scene(row, hypothesis=one).layers if each.name == layer)
            weights = qkv.attention_map(shown.query, shown.key, **shown.options).dense().mean(0)[before:, before:]
            torch.testing.assert_close(weights, alignment, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("reach", [0, 1, 3])
def test_a_block_with_a_window_is_recorded_step_by_step(reach: int) -> None:
    torch.manual_seed(0)
    layer = TransformerBlock(MultiHeadAttention(8, 2), FeedForward(8, 8), reach=reach).double().eval()
    model, x = nn.ModuleList([layer]), torch.randn(2, 6, 8, dtype=torch.float64)
    cache = BlockCache()
    with torch.no_grad(), record(model) as trace:
        for part in x.split([2, 1, 1, 2], 1):
            _, cache = layer.step(part, cache)
    index = torch.arange(6)
    near = (index[:, None] - index >= 0) & (index[:, None] - index <= reach)
    query, memory = layer.self_attention.extend(layer.around_self.before(x), None)
    _, expected = layer.self_attention.attend_with_weights(query, memory, mask=near)
    torch.testing.assert_close(trace.weights(trace.layers[0]), expected)


def test_each_batch_that_is_read_is_a_reading_of_its_own() -> None:
    model = model_of("bahdanau")
    source, lengths = batch()
    with record(model) as trace:
        model(source[:2], lengths[:2], torch.full((2, 3), BOS))
        model(source[2:], lengths[2:], torch.full((2, 4), BOS))
    assert trace.alignment("attention", 1).shape == (4, 4)
    assert trace.alignment("attention", 1, reading=0).shape == (3, 4)
    assert not torch.equal(trace.alignment("attention", 1)[:3], trace.alignment("attention", 1, reading=0))


def test_heads_are_chosen() -> None:
    layer = MultiHeadAttention(8, 4)
    x = torch.randn(2, 3, 8)
    with record(layer) as every:
        layer(x)
    with record(layer, heads=[2, 0]) as some:
        layer(x)
    assert torch.equal(some.weights("attention"), every.weights("attention")[:, [2, 0]])
    torch.testing.assert_close(some.alignment("attention", 1), every.weights("attention")[1, [2, 0]].mean(0))
    with record(layer, heads=[4]) as none:
        layer(x)
    with pytest.raises(ConfigError, match="heads: expected heads from 0 to 3 of attention"):
        none.weights("attention")


def test_weights_of_grouped_heads_are_those_of_each_head() -> None:
    layer = MultiHeadAttention(8, 4, key_heads=2)
    with record(layer) as trace:
        layer(torch.randn(2, 3, 8))
    assert trace.weights("attention").shape == (2, 4, 3, 3)


WRONG: dict[str, tuple[dict[str, Any], type[QkvError], str]] = {
    "no model": ({"model": None}, ArgumentError, r"record\(model\): expected a torch\.nn\.Module; got None\. "),
    "a path": ({"model": "runs/one"}, ArgumentError, r"got 'runs/one'\. Record the module that runs\."),
    "a task": ({"model": SimpleNamespace(model=nn.Linear(1, 1))}, ArgumentError, r"record\(found\.model\)"),
    "one layer": ({"layers": "attention"}, ConfigError, r"layers: .* Write layers=\['attention'\]\."),
    "no layers": ({"layers": []}, ConfigError, r"layers: .*; got none\. None records all"),
    "numbers of layers": ({"layers": [0]}, ConfigError, r"layers: expected a list of names .*; got 0\."),
    "one head": ({"heads": 1}, ConfigError, r"heads: expected a list of numbers of heads; got 1\. Write heads=\[1\]\."),
    "no heads": ({"heads": ()}, ConfigError, r"heads: .*; got none\. None shows all"),
    "names of heads": ({"heads": "01"}, ConfigError, r"heads: .*; got '01'\. None shows all"),
    "answers": ({"heads": [True]}, ConfigError, r"heads: .*; got True\."),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_of_other_kinds_are_refused_at_once(name: str) -> None:
    given, error, message = WRONG[name]
    with pytest.raises(error, match=message), record(**{"model": MultiHeadAttention(8, 2), **given}):
        pytest.fail("it began to record")


@pytest.mark.parametrize("kind", [list, tuple, iter, dict.fromkeys])
def test_layers_and_heads_are_any_that_can_be_listed(kind: Callable[[Any], Any]) -> None:
    model = MultiHeadAttention(8, 2)
    with record(model, layers=kind(["attention"]), heads=kind([1])) as trace:
        model(torch.randn(1, 3, 8))
    assert trace.layers == ["attention"]
    assert trace.weights("attention").shape == (1, 1, 3, 3)


class Halves(nn.Module):
    """Two layers, of which a pass may use one, or none; it fails without an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)

    def forward(self, x: Tensor, only: str = "first") -> Tensor:
        return getattr(self, only)(x) if only else x


def test_a_model_that_ran_without_its_layers_is_an_error_at_the_end() -> None:
    model, x = Halves(), torch.randn(1, 3, 8)
    message = r"expected a call of a layer; got no call of second\.attention\. The model ran"
    with pytest.raises(UnsupportedError, match=message), record(model, layers=["second"]):
        model(x)
    message = r"got no call of first\.attention, second\.attention\. "
    with pytest.raises(UnsupportedError, match=message), record(model):
        model(x, only="")


def test_a_part_that_ran_or_a_model_that_did_not_is_no_error() -> None:
    model, x = Halves(), torch.randn(1, 3, 8)
    with record(model) as trace:
        model(x)
    assert {name: len(calls) for name, calls in trace.calls.items()} == {"first.attention": 1, "second.attention": 0}
    with record(model) as trace:
        model.second(x)
    assert len(trace.calls["second.attention"]) == 1
    with record(model) as trace:
        pass
    assert not any(trace.calls.values())


def test_errors_of_the_caller_are_not_replaced() -> None:
    model = Halves()

    def fail() -> None:
        model(torch.randn(1, 3, 8), only="")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), record(model):
        fail()
    with record(model) as trace, contextlib.suppress(ShapeError):
        model(torch.randn(1, 3, 7))
    assert not any(trace.calls.values())


@pytest.mark.parametrize("reentrant", [False, True])
def test_passes_that_backward_repeats_are_not_recorded(reentrant: bool) -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    model = nn.ModuleList([MultiHeadAttention(8, 2), theirs])

    def run(x: Tensor) -> Tensor:
        return theirs(*[model[0](x)] * 3)[0]

    x = torch.randn(2, 3, 8, requires_grad=True)
    with record(model) as trace:
        checkpoint(run, x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None
    assert [len(calls) for calls in trace.calls.values()] == [1, 1]


def test_an_unknown_layer_gives_the_nearest() -> None:
    model = model_of("transformer")
    with (
        pytest.raises(ConfigError, match=r'layers: .*Did you mean "decoder\.2\.cross_attention\.attention"'),
        record(model, layers=["decoder.2.cros_attention.attention"]),
    ):
        pass
    with record(model, layers=["encoder"]) as trace:
        pass
    with pytest.raises(ConfigError, match="layer: expected a recorded layer that ran"):
        trace.weights("encoder.0.self_attention.attention")
    with pytest.raises(ConfigError, match="Did you mean"):
        trace.weights("encoder.0.self_attention")


def test_rows_that_left_or_never_were_are_named() -> None:
    model = model_of("bahdanau")
    with record(model) as trace:
        greedy(model, *batch(), bos=BOS, eos=EOS, limit=torch.tensor([1, 2, 3, 4]))
    with pytest.raises(ShapeError, match="rows that left the batch"):
        trace.weights("attention")
    with pytest.raises(ShapeError, match="row: expected a row that ran through attention; got 9"):
        trace.alignment("attention", 9)


def test_a_row_that_is_there_twice_is_named() -> None:
    model = model_of("bahdanau")
    with record(model) as trace:
        state = model.select(model.start(*batch()), torch.tensor([1, 1]))
        model.step(torch.tensor([BOS, BOS]), state)
    with pytest.raises(ShapeError, match="row 1, 2 times"):
        trace.alignment("attention", 1)


@models
def test_a_scene_has_the_weights_of_one_row(name: str) -> None:
    model = model_of(name)
    with record(model) as trace:
        greedy(model, *batch(), bos=BOS, eos=EOS, limit=torch.tensor([3, 6, 2, 5]))
    for row, ids in enumerate(ROWS):
        scene = trace.scene(row, {"source": [str(one) for one in ids]})
        assert [layer.name for layer in scene.layers] == trace.layers
        cross = scene.layer(model.alignment_layer or "")
        assert (cross.kind, cross.queries, cross.keys) == ("cross", "target", "source")
        expected = trace.alignment(cross.name, row)[:, : len(ids)]
        torch.testing.assert_close(cross.map().dense().mean(0), expected)
        for layer in scene.layers:
            torch.testing.assert_close(layer.map().dense().sum(-1), torch.ones(layer.shape[:2], dtype=torch.float64))


def test_a_scene_has_what_projections_were_given() -> None:
    model = model_of("transformer")
    with record(model) as trace:
        greedy(model, *batch(), bos=BOS, eos=EOS, limit=5)
    for layer in trace.scene(2, {"source": ["a", "b"]}).layers:
        given, output = layer.inputs, layer.output
        assert given is not None
        assert output is not None
        sides = ((given.query_input, given.query_weight, given.query_bias, layer.query),)
        sides += ((given.key_input, given.key_weight, given.key_bias, layer.key),)
        sides += ((given.value_input, given.value_weight, given.value_bias, layer.value),)
        for x, weight, bias, made in sides:
            torch.testing.assert_close(x @ weight.mT + bias, made.transpose(0, 1).flatten(1))
        assert output[0].shape == (8, 8)


@pytest.mark.parametrize("name", ["bahdanau", "transformer"])
def test_a_beam_shows_the_rows_of_the_hypothesis_asked_for(name: str) -> None:
    model = model_of(name)
    layer = model.alignment_layer
    assert layer is not None
    search = Beam(width=3, n_best=2)
    with record(model) as trace:
        found = beam(model, *batch(), bos=BOS, eos=EOS, limit=6, search=search)
    for row, best in enumerate(found):
        for one in best:
            target = torch.tensor([[BOS, *one.ids][: len(one.log_probabilities)]])
            with record(model) as alone:
                model(torch.tensor([ROWS[row]]), torch.tensor([len(ROWS[row])]), target)
            shown = trace.alignment(layer, row, hypothesis=one)[:, : len(ROWS[row])]
            torch.testing.assert_close(shown, alone.alignment(layer), rtol=1e-9, atol=1e-11)
            scene = trace.scene(row, {"source": [str(piece) for piece in ROWS[row]]}, hypothesis=one)
            for whole in alone.scene().layers:
                mine = scene.layer(whole.name).map().dense()
                torch.testing.assert_close(mine, whole.map().dense(), rtol=1e-9, atol=1e-11)
    with pytest.raises(ShapeError, match="Select one hypothesis of the beam"):
        trace.alignment(layer, 0)
    with pytest.raises(ShapeError, match="hypothesis: expected one of row 0"):
        trace.alignment(layer, 0, hypothesis=found[3][0])


@pytest.mark.slow
def test_a_compiled_module_is_refused() -> None:
    model = MultiHeadAttention(8, 2)
    with (
        pytest.raises(UnsupportedError, match="Record the original module"),
        record(
            torch.compile(model)  # type: ignore[arg-type]
        ),
    ):
        pass
    model.compile()
    with pytest.raises(UnsupportedError, match="compiled by torch"), record(model):
        pass


def test_what_an_optimizer_changed_is_not_shown() -> None:
    model = model_of("bahdanau")
    with record(model) as trace:
        model(*batch(), torch.full((4, 2), BOS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    with pytest.raises(UnsupportedError, match="a tensor that was changed in place"):
        trace.alignment("attention")
    with pytest.raises(UnsupportedError, match="before the optimizer's next step"):
        trace.scene()


def test_keys_that_others_follow_in_place_stay_as_they_were() -> None:
    seam, x = Attention(), torch.randn(1, 8, 4)
    with record(seam) as trace:
        seam(torch.randn(1, 1, 4), x[:, :3], x[:, :3])
        expected = trace.weights("")
        x[:, 3:] = 5.0
        assert torch.equal(trace.weights(""), expected)
        seam(x, x, x)
        x += 1
    with pytest.raises(UnsupportedError, match="a tensor that was changed in place"):
        trace.weights("")


@models
def test_a_trace_goes_to_disk_and_back(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    with record(model) as trace:
        greedy(model, *batch(), bos=BOS, eos=EOS, limit=torch.tensor([3, 6, 2, 5]))
    trace.described({"source": ["a", "b"]}, "two words").save(tmp_path / "trace.safetensors")
    again = read(tmp_path / "trace.safetensors")
    one, other = trace.scene(2, {"source": ["a", "b"]}), again.scene(2)
    assert other.title == "two words"
    assert other.sequences == one.sequences
    for left, right in zip(one.layers, other.layers, strict=True):
        assert torch.equal(left.map().dense(), right.map().dense())
        assert (left.inputs is None) == (right.inputs is None)
        if left.inputs is not None and right.inputs is not None:
            assert torch.equal(left.inputs.key_input, right.inputs.key_input)


def test_every_mechanism_goes_to_disk_and_back(tmp_path: Path) -> None:
    seams = nn.ModuleDict()
    with record_of(seams, len(MECHANISMS)) as trace:
        for place, (score, normalizer) in enumerate(MECHANISMS):
            mask = MASKS[place % len(MASKS)].build(5, 7, torch.Generator())
            case = CallCase.draw(score, normalizer, ((2, 2), 5, 7), mask=mask)
            given = case.arguments(case.leaves)
            if not isinstance(given["score"], Learned):
                seams[str(place)](case.leaves["query"], case.leaves["key"], case.leaves["value"], **given)
    trace.save(tmp_path / "trace.safetensors")
    again = read(tmp_path / "trace.safetensors")
    for layer in trace.layers:
        if trace.calls[layer]:
            assert torch.equal(again.weights(layer), trace.weights(layer)), MECHANISMS[int(layer)]


def record_of(seams: nn.ModuleDict, count: int) -> Any:
    for place in range(count):
        seams[str(place)] = Attention()
    return record(seams)


def test_a_function_does_not_go_to_disk(tmp_path: Path) -> None:
    seam = Attention(Learned(lambda query, key: query @ key.mT))
    with record(seam) as trace:
        seam(*torch.randn(3, 1, 4, 8))
    with pytest.raises(UnsupportedError, match="trace: expected names, numbers and tensors; got Learned"):
        trace.save(tmp_path / "trace.safetensors")


def test_what_repeats_is_kept_once(tmp_path: Path) -> None:
    seam = Attention()
    key = torch.randn(1, 1, 1, 4).expand(1, 8, 2000, 4)
    with record(seam) as trace:
        for _ in range(3):
            seam(torch.randn(1, 8, 1, 4), key, key)
    trace.save(tmp_path / "trace.safetensors")
    assert (tmp_path / "trace.safetensors").stat().st_size < 10_000
    assert read(tmp_path / "trace.safetensors").weights("").shape == (1, 8, 3, 2000)


def altered(path: Path, change: Callable[[Any], Any]) -> None:
    """Rewrite a trace with other metadata."""
    with safe_open(path, "pt") as file:
        plain = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors |= {"one": torch.ones(1, dtype=torch.int64), "half": torch.ones(1), "wide": torch.ones(1, 1, 1, 4)}
    tensors["true"] = torch.ones(1, dtype=torch.bool)
    save_file(tensors, path, {KEY: json.dumps(change(plain))})


HOSTILE: dict[str, Callable[[Any], Any]] = {
    "no table": lambda plain: [plain],
    "version": lambda plain: plain | {"version": 9},
    "missing": lambda plain: {name: plain[name] for name in plain if name != "calls"},
    "a class that is none": lambda plain: with_option(plain, "mask", {"value": "os.system", "fields": {}}),
    "fields that are none": lambda plain: with_option(plain, "mask", {"value": "Causal", "fields": {"x": 1}}),
    "an option that is none": lambda plain: with_option(plain, "__class__", 1),
    "a score of text": lambda plain: with_option(plain, "score", "ScaledDot"),
    "a scale of text": lambda plain: with_option(
        plain, "score", {"value": "ScaledDot", "fields": {"scale": "1", "softcap": None}}
    ),
    "a tensor that is none": lambda plain: with_tensors(plain, [{"tensor": "99", "shape": [1]}] * 3),
    "a shape beyond memory": lambda plain: with_tensors(plain, [{"tensor": "0", "shape": [1 << 50] * 4}] * 3),
    "a shape of text": lambda plain: with_tensors(plain, [{"tensor": "0", "shape": ["1"]}] * 3),
    "tensors that do not fit": lambda plain: with_tensors(plain, [plain["lineages"][0][0][0]] * 3),
    "rows that were not": lambda plain: plain | {"lineages": [[[plain["lineages"][0][0][0], False]]]},
    "a moment that was not": lambda plain: with_call(plain, moment=7),
    "tokens that are none": lambda plain: plain | {"tokens": {"source": [1]}},
    "heads of text": lambda plain: plain | {"heads": "all"},
    "a state of other rows": lambda plain: with_call(
        plain, state={"value": "RowState", "fields": {"kind": "softmax", "value": plain["lineages"][0][0][0]}}
    ),
    "rows that claim to be many": lambda plain: (
        plain | {"lineages": [[[{"tensor": "one", "shape": [1 << 30]}, True]] * 2]}
    ),
    "keys that claim to be many": lambda plain: with_tensors(
        plain, [{"tensor": "wide", "shape": [1, 1, size, 4]} for size in (4, 1 << 28, 1 << 28)]
    ),
    "a bandwidth that claims to be many": lambda plain: with_option(
        plain, "score", {"value": "Gaussian", "fields": {"bandwidth": {"tensor": "half", "shape": [1 << 30]}}}
    ),
    "a moment that is a large tensor": lambda plain: with_call(plain, moment={"tensor": "half", "shape": [1 << 31]}),
    "a moment of inputs that is a large mask": lambda plain: with_call(
        plain, given=[{"tensor": "wide", "shape": [1, 4, 4]}] * 3 + [{"tensor": "true", "shape": [1 << 31]}]
    ),
    "inputs that are none": lambda plain: with_call(plain, given=[1, 2, 3, 0]),
    "a pass without calls": lambda plain: plain | {"passes": []},
    "a pass of calls that are none": lambda plain: with_pass(plain, calls={"attention": [0, 99]}),
    "a pass of layers that are none": lambda plain: with_pass(plain, calls={"other": [0]}),
    "a pass of calls by name": lambda plain: with_pass(plain, calls={"attention": ["0"]}),
    "a pass of rows that are none": lambda plain: with_pass(plain, lineage=1),
    "a pass of no thread": lambda plain: with_pass(plain, thread=-1),
    "a step of text": lambda plain: with_pass(plain, step="0"),
    "a call before its text": lambda plain: with_call(plain, start=-1),
    "layers of numbers": lambda plain: plain | {"layers": [0]},
    "models of numbers": lambda plain: plain | {"groups": {"attention": 1}},
    "projections that are none": lambda plain: plain | {"around": {"attention": [[1, 2]] * 4}},
}


def with_call(plain: Any, **changes: Any) -> Any:
    calls = plain["calls"]
    return plain | {"calls": [calls[0] | changes, *calls[1:]]}


def with_pass(plain: Any, **changes: Any) -> Any:
    return plain | {"passes": [plain["passes"][0] | changes]}


def with_option(plain: Any, name: str, option: Any) -> Any:
    return with_call(plain, options={name: option})


def with_tensors(plain: Any, tensors: Any) -> Any:
    return with_call(plain, tensors=tensors)


@pytest.mark.parametrize("how", HOSTILE)
def test_a_file_that_is_no_trace_is_named(how: str, tmp_path: Path) -> None:
    model = model_of("bahdanau")
    path = tmp_path / "trace.safetensors"
    with record(model) as trace:
        model(*batch(), torch.full((4, 2), BOS))
    trace.save(path)
    altered(path, lambda plain: plain)
    assert torch.equal(read(path).alignment("attention"), trace.alignment("attention"))
    altered(path, HOSTILE[how])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=re.escape(str(path))) as raised:
        read(path)
    assert len(str(raised.value)) < 1000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.safetensors"
    with pytest.raises(DataError, match="a trace in safetensors"):
        read(path)
    for content in (b"", b"\xff" * 64, (1 << 60).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="Give a file written by"):
            read(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="a trace"):
        read(path)
    with pytest.raises(ConfigError, match=r"path: expected a file name that ends in \.safetensors"):
        record_nothing().save(tmp_path / "trace.bin")
    with pytest.raises(ConfigError, match="a layer that ran"):
        record_nothing().show(browser=False)


def record_nothing() -> Trace:
    with record(MultiHeadAttention(8, 2)) as trace:
        pass
    return trace


def test_a_trace_is_a_page_a_picture_and_a_notebook_cell(tmp_path: Path) -> None:
    model = model_of("bahdanau")
    with record(model) as trace:
        model(*batch(), torch.full((4, 2), BOS))
    named = trace.described({"source": ["ein", "</script>", "läuft", "."], "target": ["a", "dog"]}, "a <dog>")
    for suffix, beginning in ((".html", b"<!doctype html>"), (".svg", b"<?xml"), (".png", b"\x89PNG")):
        path = tmp_path / f"trace{suffix}"
        named.save(path)
        assert path.read_bytes().startswith(beginning)
    cell = named._repr_html_()
    assert cell.startswith('<iframe title="a &lt;dog&gt;" sandbox="allow-scripts"')
    assert cell.count("<") == 2
    assert len(cell) < 80_000


def test_a_notebook_shows_no_large_map() -> None:
    seam = Attention()
    with record(seam) as trace:
        seam(*torch.randn(3, 1, 1, 1200, 2))
    assert trace._repr_html_() == "<p>attention: 1,440,000 weights. Open the viewer with show().</p>"


def test_a_trace_is_shown(tmp_path: Path) -> None:
    model = model_of("bahdanau")
    with record(model) as trace:
        model(*batch(), torch.full((4, 2), BOS))
    serving = trace.show(browser=False)
    try:
        with urllib.request.urlopen(f"{serving.url}api/scene") as answer:
            assert json.load(answer)["layers"][0]["name"] == "attention"
    finally:
        serving.close()


def test_a_trace_is_one_line_without_its_numbers() -> None:
    model = model_of("bahdanau")
    with record(model) as trace:
        model(*batch(), torch.full((4, 2), BOS))
    assert repr(trace).startswith("Trace('attention': ")
    assert all(len(repr(each)) < 300 for each in (trace, trace.scene(), *trace.scene().layers))


class Notebook:
    """What a kernel has, for code that looks for one."""

    kernel = object()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("what", ["trace", "map"])
def test_show_prints_its_address_and_is_inline_in_a_notebook(
    what: str, inside: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    displayed: list[str] = []
    opened: list[str] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: Notebook() if inside else None  # type: ignore[attr-defined]
    display.display = lambda data, raw: displayed.append(data["text/html"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("webbrowser.open", opened.append)
    if what == "map":
        shown: Any = qkv.attention_map(*torch.randn(2, 2, 3, 5, 4), mask=qkv.masks.lengths(torch.tensor([3, 5])))
    else:
        seam = Attention()
        with record(seam) as shown:
            seam(*torch.randn(3, 1, 2, 5, 4))
    with shown.show() as serving:
        (address,) = capsys.readouterr().out.split()
        assert address.startswith(f"http://127.0.0.1:{serving.port}/")
    assert [text.startswith("file://") for text in opened] == [True] * (not inside)
    assert [text.startswith("<iframe") for text in displayed] == [True] * inside


def test_a_map_shows_the_weights_that_it_has() -> None:
    query, key = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 6, 8)
    score = qkv.scores.Gaussian(torch.tensor([1.0, 2.0, 3.0]))
    amap = qkv.attention_map(query, key, score=score, mask=qkv.masks.lengths(torch.tensor([6, 4])))
    scene = maps.scene_of_map((query, key, amap._inputs[2]), 1, {"target": list("abcd"), "source": list("uvwxyz")})
    torch.testing.assert_close(scene.layers[0].map().dense(), amap.dense()[1])
    assert "<iframe" in amap._repr_html_()
    with pytest.raises(ShapeError, match="row"):
        amap.show(2)


def test_a_plan_is_a_table() -> None:
    plan = qkv.explain(*torch.randn(3, 1, 4, 8), mask=qkv.masks.causal())
    assert repr(plan) == str(plan)
    page = plan._repr_html_()
    assert page.count("<tr>") == len(plan.rows())
    assert "<b>algorithm</b>" in page
