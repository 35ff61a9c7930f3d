"""Changed heads: judged by the equations written out, on our models, attached ones and PyTorch's layers."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import qkv
from qkv.decode.greedy import greedy
from qkv.errors import ConfigError, QkvError, ShapeError, TrainingError, UnsupportedError
from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.models.recurrent_translator import RecurrentConfig, RecurrentTranslator
from qkv.models.translator import TransformerConfig, TransformerTranslator
from qkv.nn.attention import Attention
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.pointer import Pointer
from qkv.nn.recurrent.repeated_attention import RepeatedAttention
from qkv.scores.products import ScaledDot

CROSS = "decoder.0.cross_attention.attention"
LENGTHS = torch.tensor([6, 4])


def layer_of(heads: int = 2, key_heads: int | None = None) -> MultiHeadAttention:
    layer = MultiHeadAttention(8 * heads, heads, key_heads=key_heads).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def by_hand(
    layer: MultiHeadAttention,
    x: Tensor,
    visible: Tensor | None = None,
    *,
    weights: Callable[[Tensor], Tensor] = lambda w: w,  # of (B, H, Q, K)
    output: Callable[[Tensor], Tensor] = lambda o: o,  # of (B, H, Q, V)
) -> Tensor:
    """Write a layer's attention out, and change weights and outputs of all heads on the way."""
    projected: Any = map(layer.projections.part, range(3))
    parts = [F.linear(x, *part) for part in projected]
    q, k, v = (part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in parts)
    groups = layer.heads // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.mT / math.sqrt(8)
    w = s.softmax(-1) if visible is None else s.masked_fill(~visible, -torch.inf).softmax(-1)
    assert layer.output is not None
    joined = output(weights(w) @ v).transpose(1, 2).flatten(-2)
    return F.linear(joined, layer.output.weight, layer.output.bias)


def changed(head: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Change one head of a tensor of all."""

    def change_head(x: Tensor) -> Tensor:
        rows = list(x.unbind(1))
        rows[head] = change(rows[head])
        return torch.stack(rows, 1)

    return change_head


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize(
    "what", ["zero", "output", "weights", "mask", "bool mask", "another output", "tensor", "mechanism", "own mechanism"]
)
def test_a_change_is_that_of_the_equation_with_its_gradients(what: str, key_heads: int) -> None:
    layer, (x, other) = layer_of(4, key_heads), torch.randn(2, 2, 5, 32, dtype=torch.float64).unbind()
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    with qkv.record(layer) as trace:
        layer(other)
    stored: list[Tensor] = []
    by_hand(
        layer, other, weights=lambda w: stored.append(w.detach()) or w, output=lambda o: stored.append(o.detach()) or o
    )
    shared, tensor = visible.double() / visible.sum(-1, keepdim=True), torch.randn(5, 8, dtype=torch.float64)
    restricted = lambda w: w * visible / (w * visible).sum(-1, keepdim=True)  # noqa: E731
    changes: dict[str, tuple[Any, dict[str, Any]]] = {
        "zero": ("zero", {"output": lambda o: 0 * o}),
        "output": (("output", lambda o: o.tanh()), {"output": lambda o: o.tanh()}),
        "weights": (("weights", lambda w: w.square()), {"weights": lambda w: w.square()}),
        "mask": (qkv.masks.causal(), {"weights": restricted}),
        "bool mask": (visible, {"weights": restricted}),
        "another output": (("output", trace), {"output": lambda _: stored[1][:, 2]}),
        "tensor": (("output", tensor), {"output": tensor.expand_as}),
        "mechanism": (("mechanism", {"mask": visible}), {"weights": restricted}),
        "own mechanism": (
            ("mechanism", lambda own: {"score": lambda q, k: own["score"](q, k) / 2}),
            {"weights": lambda w: w.sqrt() / w.sqrt().sum(-1, keepdim=True)},
        ),
    }
    change, hand = changes[what]
    if what == "weights":  # of another pass, and as a tensor
        expected = by_hand(layer, x, weights=changed(2, lambda _: stored[0][:, 2]))
        with qkv.patch(layer, {"attention": {2: ("weights", trace)}}):
            torch.testing.assert_close(layer(x), expected)
        with qkv.patch(layer, {"attention": {2: ("weights", shared)}}):
            torch.testing.assert_close(layer(x), by_hand(layer, x, weights=changed(2, shared.expand_as)))
    results = []
    for run in (
        lambda x: by_hand(layer, x, **{name: changed(2, function) for name, function in hand.items()}),
        layer,
    ):
        inputs = x.clone().requires_grad_()
        with qkv.patch(layer, {"attention": {2: change}}):
            result = run(inputs)
        gradients = torch.autograd.grad(result.square().sum(), [inputs, *layer.parameters()])
        results.append([result, *gradients])
    for mine, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, expected)
    assert not torch.allclose(results[0][0], by_hand(layer, x))


def test_other_heads_keep_their_bits_and_everything_is_undone() -> None:
    layer, x = layer_of(), torch.randn(2, 5, 16, dtype=torch.float64)
    seen: list[Tensor] = []
    handle = layer.attention.register_forward_hook(lambda _, __, output: seen.append(output))
    before = layer(x)
    for change in ("zero", ("output", lambda o: 2 * o), qkv.masks.causal()):
        with qkv.patch(layer, {"attention": {1: change}}):
            last: list[Tensor] = []
            after = layer.attention.register_forward_hook(lambda _, __, output, last=last: last.append(output))
            layer(x)
            after.remove()
        assert torch.equal(last[0][:, 0], seen[0][:, 0])
        assert not torch.equal(last[0][:, 1], seen[0][:, 1])
        assert torch.equal(layer(x), before)
    with pytest.raises(ZeroDivisionError), qkv.patch(layer, {"attention": "zero"}):
        assert 1 / 0
    with pytest.raises(ZeroDivisionError), qkv.patch(layer, {"attention": {0: ("output", lambda _: 1 / 0)}}):
        layer(x)
    handle.remove()
    assert not layer.attention._forward_hooks
    assert torch.equal(layer(x), before)


def test_nested_changes_act_one_after_the_other() -> None:
    layer, x = layer_of(), torch.randn(2, 5, 16, dtype=torch.float64)
    add, double = ("output", lambda o: o + 1), ("output", lambda o: 2 * o)
    with qkv.patch(layer, {"attention": {1: add}}):
        with qkv.patch(layer, {"attention": {1: double, 0: "zero"}}):
            both = layer(x)
        outer = layer(x)
    scale = torch.tensor([0.0, 2.0], dtype=torch.float64).view(1, 2, 1, 1)
    torch.testing.assert_close(both, by_hand(layer, x, output=lambda o: scale * (o + 1)))
    torch.testing.assert_close(outer, by_hand(layer, x, output=changed(1, lambda o: o + 1)))


def test_a_mean_leaves_out_padding() -> None:
    """Worked by hand: outputs of the positions 0 to 5 of the first text, and 0 to 3 of the second."""
    model = TransformerTranslator(TransformerConfig(size=12, width=16, heads=2, feed_forward=8)).double().eval()
    source, target = torch.randint(3, 12, (2, 6)), torch.randint(3, 12, (2, 5))
    layer = "encoder.1.self_attention.attention"
    outputs: list[Tensor] = []
    seam = model.get_submodule(layer)
    handle = seam.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    with torch.no_grad(), qkv.record(model) as trace:
        model(source, LENGTHS, target)
    expected = torch.cat([outputs[0][0, 1, :6], outputs[0][1, 1, :4]]).mean(0)
    last: list[Tensor] = []
    with qkv.patch(model, {layer: {1: ("mean", trace)}}):
        after = seam.register_forward_hook(lambda _, __, output: last.append(output))
        model(source[:1, :3], torch.tensor([3]), target[:1])
    after.remove()
    handle.remove()
    torch.testing.assert_close(last[0][0, 1], expected.expand(3, -1))


def seen_outputs(module: Any, run: Callable[[], Any]) -> list[Tensor]:
    """Return what a module returns in each of its calls."""
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, __, output: outputs.append(output.detach()))
    run()
    handle.remove()
    return outputs


@pytest.mark.parametrize("wiring", ["bahdanau", "luong"])
def test_a_mean_of_cross_attention_and_of_one_head_without_a_dimension(wiring: Any) -> None:
    config = RecurrentConfig(size=12, wiring=wiring, embedding=6, hidden=5, attention=4)
    model = RecurrentTranslator(config).double().eval()
    source, target = torch.randint(3, 12, (2, 6)), torch.randint(3, 12, (2, 5))
    with torch.no_grad(), qkv.record(model) as trace:
        outputs = seen_outputs(model.attention, lambda: model(source, LENGTHS, target))
    mean = torch.cat(outputs, 1).mean((0, 1))
    with qkv.patch(model, {"attention": {0: ("mean", trace)}}):
        last = seen_outputs(model.attention, lambda: model(source, LENGTHS, target))
    assert len(last) == len(outputs)
    for output in last:
        torch.testing.assert_close(output, mean.expand_as(output))


def test_a_recurrent_decoder_has_the_gradients_of_its_changed_steps() -> None:
    """Long enough that the steps would sum the gradients of keys and values in one call, without the change."""
    attention = Attention()
    query = torch.randn(3, 4, 1, 64, dtype=torch.float64)
    gradients = []
    for patched in (True, False):
        key, value = (torch.linspace(-1, 1, 4 * 300 * 64, dtype=torch.float64).sin().view(4, 300, 64) for _ in range(2))
        key.requires_grad_(), value.requires_grad_()
        function = lambda o: o.exp()  # noqa: E731
        if patched:
            with qkv.patch(attention, {"": {0: ("output", function)}}):
                step = RepeatedAttention(attention, ScaledDot(), None, key, value, steps=3)
                outputs = [step(q) for q in query]
        else:
            outputs = [function((q @ key.mT / 8).softmax(-1) @ value) for q in query]
        gradients.append(torch.autograd.grad(torch.stack(outputs).sum(), [key, value]))
    for mine, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_pass_of_several_calls_is_followed_call_by_call() -> None:
    model = RecurrentTranslator(RecurrentConfig(size=12, embedding=6, hidden=5, attention=4)).double().eval()
    source, target = torch.randint(3, 12, (1, 6)), torch.randint(3, 12, (1, 5))
    lengths = torch.tensor([6])
    with torch.no_grad(), qkv.record(model) as trace:
        expected = model(source, lengths, target)
    for change in ("output", "weights"):
        with torch.no_grad(), qkv.patch(model, {"attention": {0: (change, trace)}}):
            for _ in range(2):
                torch.testing.assert_close(model(source, lengths, target), expected)
            model(source, lengths, target[:, :3])
            torch.testing.assert_close(model(source, lengths, target), expected)


def test_a_generation_runs_with_changed_heads() -> None:
    """Steps of a decoding, which otherwise read the layers' weights, give what the whole model gives."""
    model = TransformerTranslator(TransformerConfig(size=12, width=16, heads=2, feed_forward=8)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    source = torch.randint(3, 12, (2, 6))
    with torch.no_grad():
        plain = greedy(model, source, LENGTHS, limit=8, bos=1, eos=2)
        with qkv.patch(model, {CROSS: {0: "zero"}}):
            found = greedy(model, source, LENGTHS, limit=8, bos=1, eos=2)
            for row, hypothesis in enumerate(found):
                prefix = torch.tensor([[1, *hypothesis.ids]])
                scores = model(source[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1], prefix)[0].log_softmax(-1)
                ids = [*hypothesis.ids, *([2] if hypothesis.finished else [])]
                terms = [float(scores[at, token]) for at, token in enumerate(ids)]
                assert terms == pytest.approx(list(hypothesis.log_probabilities), abs=1e-9)
    assert [one.log_probabilities for one in plain] != [one.log_probabilities for one in found]


def test_a_language_model_decodes_the_same_with_a_cache() -> None:
    model = LanguageModel(DecoderConfig(size=20, width=16, heads=2, layers=2)).double().eval()
    ids = torch.randint(0, 20, (1, 7))
    with qkv.record(model) as trace:
        model(ids)
    layer = trace.layers[-1]
    with torch.no_grad(), qkv.patch(model, {layer: {1: ("output", lambda o: o.sin())}}):
        expected = model(ids)
        state, steps = model.step(ids[:, 0], model.begin(ids))[1], []
        for at in range(1, 7):
            scores, state = model.step(ids[:, at], state)
            steps.append(scores)
    assert torch.allclose(torch.stack(steps, 1), expected[:, 1:], atol=1e-9)


def test_pointers_point_with_the_changed_weights() -> None:
    pointer = Pointer(query_width=4, key_width=6, hidden=8).double()
    query, key = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    mask = torch.ones(3, 5, dtype=torch.bool).tril()
    with qkv.patch(pointer, {"attention": {0: mask}}):
        context, shares = pointer(query, key)
    expected = pointer(query, key, mask)
    torch.testing.assert_close((context, shares), expected)
    with qkv.patch(pointer, {"attention": {0: ("weights", lambda w: w.roll(1, -1))}}):
        context, shares = pointer(query, key)
    rolled = pointer(query, key)[1].roll(1, -1)
    torch.testing.assert_close((context, shares), (rolled @ key, rolled))


@pytest.mark.parametrize("batch_first", [True, False])
def test_layers_of_pytorch_are_changed_too(batch_first: bool) -> None:
    layer = nn.MultiheadAttention(16, 2, batch_first=batch_first).double().eval()
    ours = MultiHeadAttention.from_torch(layer).eval()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 5])
    inputs = x if batch_first else x.transpose(0, 1)
    change = {1: ("output", lambda o: o.tanh()), 0: "zero"}
    with qkv.patch(ours, {"attention": change}):
        expected = ours(x, mask=~padding[:, None, None])
    leaf = inputs.clone().requires_grad_()
    with qkv.patch(layer, {"attention": change}):
        found, weights = layer(leaf, leaf, leaf, key_padding_mask=padding)
    torch.testing.assert_close(found if batch_first else found.transpose(0, 1), expected)
    torch.testing.assert_close(weights, layer(inputs, inputs, inputs, key_padding_mask=padding)[1])
    assert torch.autograd.grad(found.sum(), [leaf, layer.in_proj_weight])[1].abs().sum() > 0
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), 2).double().eval()
    with torch.no_grad():
        before = encoder(x)
        with qkv.patch(encoder, {"layers.1.self_attn": {0: "zero"}}):
            assert not torch.allclose(encoder(x), before)
        assert torch.equal(encoder(x), before)


def test_a_recording_inside_sees_the_changed_inputs() -> None:
    model = TransformerTranslator(TransformerConfig(size=12, width=16, heads=2, feed_forward=8)).double().eval()
    source, target = torch.randint(3, 12, (2, 6)), torch.randint(3, 12, (2, 5))
    first, second = "encoder.0.self_attention.attention", "encoder.1.self_attention.attention"
    with torch.no_grad(), qkv.record(model) as plain:
        model(source, LENGTHS, target)
    with torch.no_grad(), qkv.record(model) as around, qkv.patch(model, {first: "zero"}), qkv.record(model) as within:
        model(source, LENGTHS, target)
    assert torch.equal(around.weights(second), within.weights(second))
    assert torch.equal(around.weights(first), plain.weights(first))
    assert not torch.allclose(around.weights(second), plain.weights(second))


class _Shared(nn.Module):
    """One layer that runs three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer_of()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.layer(x)
        return x


def test_a_layer_that_runs_several_times_has_a_name_for_each() -> None:
    model, x = _Shared(), torch.randn(2, 5, 16, dtype=torch.float64)
    with qkv.record(model) as trace:
        model(x)
    name = trace.layers[1]
    assert name == "layer.attention#2"
    hidden = x + by_hand(model.layer, x)
    hidden = hidden + by_hand(model.layer, hidden, output=changed(1, lambda o: 0 * o))
    with qkv.patch(model, {name: {1: "zero"}}):
        for _ in range(2):
            torch.testing.assert_close(model(x), hidden + by_hand(model.layer, hidden))
    with (
        pytest.raises(UnsupportedError, match="no call of layer"),
        qkv.patch(model, {"layer.attention#4": "zero"}),
    ):
        model(x)
    found = qkv.effects(model, x, lambda output: output.square().mean())
    assert found.layers == tuple(trace.layers)


def test_repeated_forward_passes_of_a_backward_pass_are_changed_inside_the_block() -> None:
    layer, x = layer_of(), torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    with qkv.patch(layer, {"attention": {0: ("output", lambda o: o.tanh())}}):
        (expected,) = torch.autograd.grad(layer(x).square().sum(), [x])
        (found,) = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), [x])
    torch.testing.assert_close(found, expected)


BAD: dict[str, tuple[Any, type[QkvError], str]] = {
    "unknown layer": ({"attentoin": {0: "zero"}}, ConfigError, "attention"),
    "unknown change": ({"attention": {0: "nought"}}, ConfigError, "zero"),
    "a bare function": ({"attention": {0: torch.tanh}}, ConfigError, "output"),
    "mean of a function": ({"attention": {0: ("mean", torch.tanh)}}, ConfigError, "mean"),
    "empty trace": ({"attention": {0: ("mean", qkv.recording.Trace())}}, ConfigError, "trace"),
    "no mechanism": ({"attention": {0: ("mechanism", {"scores": None})}}, ConfigError, "score"),
    "negative head": ({"attention": {-1: "zero"}}, ConfigError, "from 0"),
    "no head": ({"attention": {True: "zero"}}, ConfigError, "numbers of heads"),
    "head beyond": ({"attention": {2: "zero"}}, ConfigError, "heads from 0 to 1"),
    "other shape": ({"attention": {0: ("output", torch.zeros(4, 8))}}, ShapeError, "head 0: output"),
    "no tensor": ({"attention": {0: ("weights", lambda _: None)}}, ConfigError, "a tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_change_is_refused(name: str) -> None:
    layer, (changes, error, message) = layer_of(), BAD[name]
    with pytest.raises(error, match=message), qkv.patch(layer, changes):
        layer(torch.randn(1, 3, 16, dtype=torch.float64))
    assert not layer.attention._forward_hooks


class _Half(nn.Module):
    """A model that does not run one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = layer_of(), layer_of()

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def test_models_that_cannot_be_changed_say_so() -> None:
    extra = MultiHeadAttention(16, 2, extra_key=True)
    with pytest.raises(UnsupportedError, match="extra key"), qkv.patch(extra, {"attention": "zero"}):
        pass
    compiled = nn.Sequential(layer_of())
    compiled.compile(backend="eager")
    with pytest.raises(UnsupportedError, match="compiled"), qkv.patch(compiled, {"0.attention": "zero"}):
        pass
    model = _Half()
    with pytest.raises(UnsupportedError, match="no call of unused"), qkv.patch(model, {"unused.attention": "zero"}):
        model(torch.randn(1, 3, 16, dtype=torch.float64))


def test_effects_are_the_metric_of_each_changed_model(tmp_path: Path) -> None:
    model = nn.Sequential(layer_of(), layer_of()).train()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    metric = lambda output: output.detach().square().mean()  # noqa: E731
    found = qkv.effects(model, x, metric)
    assert all(module.training for module in model)
    model.eval()
    first, second = model[0], model[1]
    before = float(metric(by_hand(second, by_hand(first, x))))
    assert found.metric == pytest.approx(before)
    assert found.layers == ("0.attention", "1.attention")
    for head in range(2):
        silent = changed(head, lambda o: 0 * o)
        expected = float(metric(by_hand(second, by_hand(first, x, output=silent)))) - before
        assert float(found.values[0, head]) == pytest.approx(expected)
        expected = float(metric(by_hand(second, by_hand(first, x), output=silent))) - before
        assert float(found.values[1, head]) == pytest.approx(expected)
    best = max(found.rows(), key=lambda row: abs(row.effect))
    assert found.largest(1) == [best]
    found.save(tmp_path / "effects.tsv")
    lines = (tmp_path / "effects.tsv").read_text().splitlines()
    assert lines[1] == f"0.attention\t0\t{float(found.values[0, 0])!r}"
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        found.save(file := tmp_path / f"effects.{suffix}")
        assert file.read_bytes().startswith(start)


def test_effects_of_layers_with_different_heads_and_of_some_layers() -> None:
    one, two = layer_of(2), MultiHeadAttention(16, 4).double()
    model, x = nn.Sequential(one, two), torch.randn(1, 5, 16, dtype=torch.float64)
    found = qkv.effects(model, (x,), lambda output: float(output.mean()))
    assert found.values.isnan().tolist() == [[False, False, True, True], [False] * 4]
    assert len(found.rows()) == 6
    assert qkv.effects(model, x, torch.mean, layers=["1"], change=qkv.masks.causal()).layers == ("1.attention",)


@pytest.mark.parametrize(
    ("batch", "metric", "error"),
    [
        ("text", torch.mean, ConfigError),
        (torch.zeros(1, 3, 16).double(), lambda output: output, ConfigError),
        (torch.zeros(1, 3, 16).double(), lambda _: "large", ConfigError),
        (torch.zeros(1, 3, 16).double(), lambda _: math.nan, TrainingError),
    ],
)
def test_effects_need_a_batch_and_a_number(batch: Any, metric: Any, error: type[QkvError]) -> None:
    with pytest.raises(error):
        qkv.effects(layer_of(), batch, metric)
