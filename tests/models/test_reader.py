"""Encoder models: padding, batches and equations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from qkv.errors import ConfigError, ShapeError
from qkv.functional import attention
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.reader import TextClassifier, TextTagger, WideScores
from qkv.nn.pooling import Pool
from qkv.recording import record
from qkv.scores.sums import Additive

ENCODERS = ("transformer", "gru", "lstm", "rnn", "none")


def _config(encoder: Any, pool: Any = "attention") -> ClassifierConfig:
    return ClassifierConfig(size=30, labels=3, model=encoder, pool=pool, width=16, layers=2, feed_forward=16)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("pool", ["attention", "mean"])
def test_a_text_is_scored_alike_alone_and_in_any_batch(encoder: str, pool: str) -> None:
    torch.manual_seed(0)
    model = TextClassifier(_config(encoder, pool)).double().eval()
    lengths = torch.tensor([7, 3, 1, 5])
    ids = torch.randint(4, 30, (4, 7))
    together = model(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(ids[row : row + 1, :length], torch.tensor([length]))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_what_stands_in_the_padding_changes_no_bit(encoder: str) -> None:
    torch.manual_seed(0)
    model = TextClassifier(_config(encoder)).eval()
    lengths, ids = torch.tensor([4, 2]), torch.randint(4, 30, (2, 6))
    other = ids.clone()
    other[0, 4:], other[1, 2:] = 29, 10**6
    assert torch.equal(model(ids, lengths), model(other, lengths))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_tags_are_those_of_the_text_alone(encoder: str) -> None:
    torch.manual_seed(0)
    model = TextTagger(_config(encoder)).double().eval()
    ids, lengths = torch.randint(4, 30, (2, 6)), torch.tensor([6, 4])
    words = torch.tensor([[0, 2, 5], [1, 3, 0]])
    together = model(ids, lengths, words)
    alone = model(ids[1:, :4], lengths[1:], words[1:, :2])
    torch.testing.assert_close(together[1:, :2], alone, rtol=1e-10, atol=1e-12)


def test_pooling_is_its_equation() -> None:
    torch.manual_seed(0)
    pool = Pool(5).double()
    nn.init.normal_(pool.query)
    h = torch.randn(2, 7, 5, dtype=torch.float64)
    alpha = (torch.tanh(h @ pool.key.weight.T + pool.query) @ pool.vector).softmax(-1)
    torch.testing.assert_close(pool(h), (alpha[..., None] * h).sum(1))


def test_pooling_goes_through_the_seam() -> None:
    model = TextClassifier(_config("gru")).eval()
    ids, lengths = torch.randint(4, 30, (2, 6)), torch.tensor([6, 4])
    with record(model) as trace, torch.no_grad():
        model(ids, lengths)
    weights = trace.weights(model.attention_layer)
    assert weights.shape == (2, 1, 6)
    assert (weights[1, :, 4:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1))


def test_the_learned_query_sees_the_same_as_a_call_of_attention() -> None:
    pool, h = Pool(4), torch.randn(1, 3, 4)
    nn.init.normal_(pool.query)
    direct = attention(pool.query[None, None], h, h, score=Additive(pool.vector, None, pool.key.weight))
    torch.testing.assert_close(pool(h), direct[:, 0])


@pytest.mark.parametrize("encoder", ["gru", "lstm", "rnn"])
def test_a_residual_adds_the_embeddings_to_the_states(encoder: str) -> None:
    torch.manual_seed(0)
    plain = TextClassifier(_config(encoder)).eval()
    model = TextClassifier(replace(plain.config, residual=True)).eval()
    model.load_state_dict(plain.state_dict())
    ids, lengths = torch.randint(4, 30, (2, 6)), torch.tensor([6, 4])
    embedded = model.reader.embed(ids) * (torch.arange(6) < lengths[:, None])[..., None]
    torch.testing.assert_close(model.reader(ids, lengths)[0], plain.reader(ids, lengths)[0] + embedded)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_empty_text_has_finite_scores(encoder: str) -> None:
    model = TextClassifier(_config(encoder)).eval()
    assert model(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 3])).isfinite().all()


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_parameter_learns(encoder: str) -> None:
    torch.manual_seed(0)
    model = TextClassifier(_config(encoder))
    nn.functional.cross_entropy(
        model(torch.randint(4, 30, (8, 6)), torch.full((8,), 6)), torch.arange(8) % 3
    ).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def _wide(buckets: int = 40) -> TextClassifier:
    model = TextClassifier(replace(_config("none"), wide=buckets)).double().eval()
    assert model.wide is not None
    nn.init.normal_(model.wide.weights.weight)
    return model


def test_the_wide_part_is_its_equation() -> None:
    torch.manual_seed(0)
    wide = WideScores(9, labels=2, dropout=0.5).double().eval()
    nn.init.normal_(wide.weights.weight)
    s = wide.weights.weight
    found = wide(torch.tensor([[1, 4, 8], [5, 0, 0]]), torch.tensor([3, 1]))
    torch.testing.assert_close(found, torch.stack([(s[1] + s[4] + s[8]) * 2 / 3**0.5, s[5] * 2]))


def test_the_wide_part_adds_its_scores_and_begins_with_none() -> None:
    torch.manual_seed(0)
    model = _wide()
    ids, lengths = torch.randint(4, 30, (2, 6)), torch.tensor([6, 4])
    features, counts = torch.randint(0, 40, (2, 5)), torch.tensor([5, 2])
    assert model.wide is not None
    parts = model(ids, lengths) + model.wide(features, counts)
    torch.testing.assert_close(model(ids, lengths, features, counts), parts)
    assert not TextClassifier(model.config).wide.weights.weight.any()  # type: ignore[union-attr]


def test_what_stands_after_a_texts_features_changes_no_bit() -> None:
    model, ids, lengths = _wide(), torch.randint(4, 30, (2, 3)), torch.tensor([3, 2])
    features, counts = torch.tensor([[7, 3, 1], [2, 0, 0]]), torch.tensor([3, 1])
    other = features.clone()
    other[1, 1:] = torch.tensor([39, 10**6])
    assert torch.equal(model(ids, lengths, features, counts), model(ids, lengths, other, counts))
    alone = model(ids[1:, :2], lengths[1:], features[1:, :1], counts[1:])
    torch.testing.assert_close(model(ids, lengths, features, counts)[1:], alone)


def test_a_text_without_features_has_the_scores_of_the_network_alone() -> None:
    model, ids, lengths = _wide(), torch.randint(4, 30, (2, 3)), torch.tensor([3, 2])
    none = torch.zeros(2, 0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    torch.testing.assert_close(model(ids, lengths, *none), model(ids, lengths))


def test_features_that_fit_no_wide_part_are_named() -> None:
    ids, lengths = torch.randint(4, 30, (1, 3)), torch.tensor([3])
    with pytest.raises(ShapeError, match="features: expected none for a model without a wide part; got some"):
        TextClassifier(_config("none"))(ids, lengths, ids, lengths)
    with pytest.raises(ShapeError, match=r"features: .*expected numbers from 0 to 39; got 40"):
        _wide()(ids, lengths, torch.tensor([[40]]), torch.tensor([1]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "grv"}, 'Did you mean "gru"?'),
        ({"width": 15}, "width: expected an even width, for two directions; got 15"),
        ({"model": "transformer", "heads": 3, "width": 16}, "heads: expected a divisor"),
        ({"word_dropout": 1.0}, "word_dropout: expected a finite number from 0 and below 1"),
        ({"labels": 0}, "labels: expected an integer, at least 1"),
        ({"wide": 0}, "wide: expected an integer, at least 1; got 0"),
        ({"heads": 2}, "heads: expected a Transformer; got 2 with gru"),
    ],
)
def test_bad_settings_are_named(given: dict, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ClassifierConfig(**{"size": 9, "labels": 2, **given})
    assert message in str(raised.value)


def test_ids_beyond_the_vocabulary_are_named() -> None:
    with pytest.raises(ShapeError, match="source: expected numbers from 0 to 29; got 30"):
        TextClassifier(_config("gru"))(torch.tensor([[30]]), torch.tensor([1]))
