"""Features as a second source: a set of their own, read by an attention of their own."""

from typing import Any

import pytest
import torch
from tests.models.test_translators import KINDS, batch, made

from qkv.errors import ConfigError
from qkv.models.checks import split_source
from qkv.models.configs.translator import RecurrentConfig
from qkv.recording.recorder import record

MARK = 7
every = pytest.mark.parametrize("kind", [kind for kind in KINDS if "features_mark" in kind[1]], ids=str)
TARGET = torch.tensor([[1, 4, 5]])


@every
@torch.no_grad()
def test_features_are_a_set(kind: tuple[str, dict[str, Any]]) -> None:
    """Their order changes nothing but rounding; another feature, or its absence, changes the prediction."""
    model = made(kind)
    first = model(*batch([[3, 4, 5, MARK, 8, 9, 10]]), TARGET)
    turned = model(*batch([[3, 4, 5, MARK, 10, 8, 9]]), TARGET)
    torch.testing.assert_close(turned, first, rtol=1e-10, atol=1e-12)
    for other in ([3, 4, 5, MARK, 8, 9, 11], [3, 4, 5, MARK, 8], [3, 4, 5, MARK], [3, 4, 5]):
        assert not torch.allclose(model(*batch([other]), TARGET), first, atol=1e-6)


@every
@torch.no_grad()
def test_without_features_the_mark_says_nothing(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    marked, plain = (model(*batch([row]), TARGET) for row in ([3, 4, 5, MARK], [3, 4, 5]))
    torch.testing.assert_close(marked, plain, rtol=1e-10, atol=1e-12)


@every
@torch.no_grad()
def test_each_attention_sees_its_own_source(kind: tuple[str, dict[str, Any]]) -> None:
    """Letters may spell the mark: the last one counts."""
    model = made(kind)
    source = batch([[3, MARK, 5, MARK, 8, 9], [3, 4]])
    with record(model) as trace:
        model(*source, torch.cat([TARGET, TARGET]))
    layers = {name: trace.weights(name) for name in trace.calls if "encoder" not in name and "self" not in name}
    features = {name for name in layers if "second_attention" in name or "features_attention" in name}
    assert features
    assert len(features) < len(layers)
    letters, marks = torch.tensor([1, 1, 1, 0, 0, 0]).bool(), torch.tensor([0, 0, 0, 0, 1, 1]).bool()
    for name, weights in layers.items():
        first, second = (row if row.ndim == 3 else row[None] for row in weights)
        seen = marks if name in features else letters
        torch.testing.assert_close(first[..., seen].sum(-1), torch.ones_like(first[..., 0]))
        assert not first[..., ~seen].any()
        assert bool(second[..., :2].any()) is (name not in features), "the second row has no features"


@every
def test_features_have_gradients(kind: tuple[str, dict[str, Any]]) -> None:
    model = made(kind)
    model(*batch([[3, 4, MARK, 8], [5, 6]]), torch.cat([TARGET, TARGET])).square().sum().backward()
    gradient = model.source_embedding.weight.grad
    assert gradient is not None
    assert gradient[[3, 4, 5, 6, 8]].abs().sum(-1).min() > 0
    assert gradient.isfinite().all()


def test_marks_in_the_padding_do_not_count() -> None:
    sides = split_source(torch.tensor([[5, MARK, 8, MARK], [MARK] * 4, [5, 6, 8, 9]]), torch.tensor([3, 0, 4]), MARK)
    assert sides.lengths.tolist() == [1, 0, 4]
    assert sides.features.int().tolist() == [[0, 0, 1, 0], [0] * 4, [0] * 4]


def test_no_attention_and_features_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"score: expected an attention beside that over features"):
        RecurrentConfig(size=9, score="none", features_mark=4)
