"""The recorder: exact weights, no trace of it in the model, rows followed through decoding."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qkv.decode.greedy import greedy
from qkv.errors import ConfigError, ShapeError
from qkv.functional import attention_with_weights
from qkv.models.recurrent import RecurrentConfig, RecurrentTranslator
from qkv.models.transformer import TransformerConfig, TransformerTranslator
from qkv.nn.attention import Attention
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers.sparse import Sparsemax
from qkv.recording import record
from qkv.scores.products import Cosine

BOS, EOS = 1, 2
ROWS = [[3, 4, 5, 6], [7], [8, 9], [4, 5, 6]]


def model_of(name: str) -> RecurrentTranslator | TransformerTranslator:
    if name == "transformer":
        model: Any = TransformerTranslator(TransformerConfig(12, width=8, heads=2, feed_forward=8))
    else:
        model = RecurrentTranslator(RecurrentConfig(12, wiring=name, embedding=6, hidden=5, attention=4))  # type: ignore[arg-type]
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


def test_an_unknown_layer_gives_the_nearest() -> None:
    model = model_of("transformer")
    with (
        pytest.raises(ConfigError, match=r'layers: .*Did you mean "decoder\.2\.cross_attention\.attention"'),
        record(model, layers=["decoder.2.cros_attention.attention"]),
    ):
        pass
    with record(model, layers=["encoder"]) as trace:
        pass
    with pytest.raises(ConfigError, match="layer: expected a recorded layer that was run"):
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
