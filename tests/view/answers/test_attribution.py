"""Rollout and gradient × attention, judged by products of matrices and by differences of the model's own answers."""

from typing import Any

import pytest
import torch
from tests.view.answers.test_rerun import IDS, asked  # noqa: F401

import qkv
from qkv.errors import ConfigError, UnsupportedError
from qkv.normalizers.dense import Identity
from qkv.view.answers.attribution import LONGEST, gradients_of, rollout_of
from qkv.view.answers.requests import RequestHandler
from qkv.view.scene import Layer, Scene

TOKENS = {"source": tuple("abcde"), "target": tuple("xyz")}


def layer(name: str, kind: Any, queries: str, keys: str, heads: int = 2, **options: Any) -> Layer:
    query = torch.randn(heads, len(TOKENS[queries]), 4)
    return Layer(name, kind, queries, keys, query, *torch.randn(2, heads, len(TOKENS[keys]), 4), options)


@pytest.fixture
def translator() -> Scene:
    torch.manual_seed(1)
    layers = (
        layer("encoder.0", "self", "source", "source"),
        layer("encoder.1", "self", "source", "source"),
        layer("decoder.0", "self", "target", "target", mask=qkv.masks.causal()),
        layer("cross", "cross", "target", "source"),
    )
    return Scene("small", TOKENS, layers)


def mean(one: Layer) -> torch.Tensor:
    return one.map().dense().double().mean(0)


def test_rollout_multiplies_the_layers_of_the_same_sequence(translator: Scene) -> None:
    first, second, target, cross = map(mean, translator.layers)
    half = lambda weights: 0.5 * torch.eye(len(weights)) + 0.5 * weights  # noqa: E731
    expected = [half(first), half(second) @ half(first), half(target), cross @ half(second) @ half(first)]
    for number, matrix in enumerate(expected):
        torch.testing.assert_close(rollout_of(translator, number), matrix)


def test_rollout_of_negative_weights_or_long_texts_is_refused(translator: Scene) -> None:
    negative = layer("one", "self", "source", "source", normalizer=Identity())
    with pytest.raises(UnsupportedError, match="non-negative weights"):
        rollout_of(Scene("negative", TOKENS, (negative,)), 0)
    x = torch.zeros(1, LONGEST + 1, 1)
    words = {"text": ("a",) * (LONGEST + 1)}
    with pytest.raises(UnsupportedError, match="single positions at any length"):
        rollout_of(Scene("long", words, (Layer("one", "self", "text", "text", x, x, x),)), 0)


@pytest.mark.parametrize("row", [None, 2])
@pytest.mark.parametrize("number", [0, 1])
def test_gradient_times_attention_is_the_derivative_of_the_answer(asked: Any, number: int, row: int | None) -> None:  # noqa: F811
    model, _, handler, layers = asked
    found = gradients_of(handler.scene, number, row)
    step = 1e-5

    def certain(change: float, head: int, query: int, key: int) -> float:
        scaled = torch.ones(IDS.shape[1], IDS.shape[1], dtype=torch.float64)
        scaled[query, key] += change
        with torch.no_grad(), qkv.patch(model, {layers[number]: {head: ("weights", lambda weights: weights * scaled)}}):
            scores = model(IDS)[0].log_softmax(-1)
        return float(scores[range(5), best].sum() if row is None else scores[row, best[row]])

    with torch.no_grad():
        best = model(IDS)[0].argmax(-1)
    for place in ((0, 1, 0), (1, 3, 2), (1, 4, 4), (0, 2, 2)):
        slope = (certain(step, *place) - certain(-step, *place)) / (2 * step)
        assert float(found[place]) == pytest.approx(slope, rel=1e-3, abs=1e-6)
    assert not found[:, 0, 1:].any(), "what the mask hides has no weight"


def test_maps_of_gradients_are_requested_by_row_of_the_answer(asked: Any, grid: Any) -> None:  # noqa: F811
    handler: RequestHandler = asked[2]
    assert handler.ask("answer", "").content["labels"] == list("abcde")
    tile = "layer=1&head={}&level=0&row=0&column=0&how=mean&quantity={}"
    expected = gradients_of(handler.scene, 1, 3)
    torch.testing.assert_close(grid(handler.ask("tile", tile.format(1, "gradient.3"))), expected[1].float())
    torch.testing.assert_close(grid(handler.ask("tile", tile.format("mean", "gradient.3"))), expected.mean(0).float())
    whole = gradients_of(handler.scene, 1, None)
    torch.testing.assert_close(grid(handler.ask("tile", tile.format(0, "gradient"))), whole[0].float())
    for wrong in ("gradient.5", "gradient.x", "weight.1", "gradients"):
        with pytest.raises(ConfigError, match="quantity"):
            handler.ask("tile", tile.format(0, wrong))


def test_a_scene_without_its_model_has_no_gradients(translator: Scene) -> None:
    with pytest.raises(UnsupportedError, match="a recorded trace has no model"):
        gradients_of(translator, 0, None)
