"""Where the weights of a head lie, counted by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.normalizers.dense import Identity
from qkv.view.answers.opening import first_shown, information
from qkv.view.answers.shares import HeadShares, shares_of
from qkv.view.scene import Layer, Scene


def scene_of(*weights: Tensor, tokens: str = "ab.a", kind: Any = "self", normalizer: Any = None) -> Scene:
    """Layers whose heads have these weights (H, Q, K): scores are logarithms that a query looks up."""
    layers = []
    for number, w in enumerate(weights):
        (heads, queries, keys), bias = w.shape, w.clamp(min=1e-30).log()
        options: dict[str, Any] = {"bias": bias}
        if normalizer is not None:
            options = {"bias": w, "normalizer": normalizer}
        zeros = torch.zeros(heads, queries, 2), torch.zeros(heads, keys, 2)
        layers.append(Layer(f"layer.{number}", kind, "q", "k", zeros[0], zeros[1], zeros[1], options))
    sides = {"q": tuple(tokens[: weights[0].shape[1]]), "k": tuple(tokens[: weights[0].shape[2]])}
    if kind == "self":
        layers = [Layer(x.name, kind, "k", "k", x.query, x.key, x.value, x.options) for x in layers]
    return Scene("", sides, tuple(layers))


def test_each_share_is_counted_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25, 0], [0.5, 0, 0.5, 0], [0, 0, 1, 0], [0.25, 0, 0, 0.75]])
    found = shares_of(scene_of(weights[None]), 0, 0)
    entropies = [1.5 * math.log(2), math.log(2), 0, -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))]
    expected = {
        "diagonal": (0.5 + 0 + 1 + 0.75) / 4,
        "next": (0.25 + 0.5 + 0 + 0) / 4,
        "previous": (0.5 + 0 + 0) / 3,
        "local": (0.75 + 1 + 1 + 0.75) / 4,
        "first": (0.5 + 0.5 + 0 + 0.25) / 4,
        "separator": (0.25 + 0.5 + 1 + 0) / 4,
        "same": (0 + 0 + 0 + 0.25) / 4,
        "entropy": sum(entropies) / 4,
        "broad": sum(entropies) / 4 / math.log(4),
        "distance": (0.25 + 0.5 + 1.0 + 0.75) / 4,
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-6), name
    assert (found.layer, found.head) == ("layer.0", 0)


def test_between_two_sequences_a_diagonal_is_a_correlation() -> None:
    """A reversed order is −1; a constant column and a uniform map are 0."""
    eye = torch.eye(4)
    heads = torch.stack([eye, eye.flip(1), eye[[2, 2, 2, 2]], torch.full((4, 4), 0.25)])
    scene = scene_of(heads, kind="cross")
    found = [shares_of(scene, 0, head) for head in range(4)]
    assert [head.diagonal for head in found] == pytest.approx([1, -1, 0, 0], abs=1e-6)
    assert all(head.next is head.previous is head.local is head.distance is None for head in found)


def test_weights_that_can_be_negative_have_no_entropy() -> None:
    found = shares_of(scene_of(torch.tensor([[[0.5, -0.5], [1.0, 2.0]]]), normalizer=Identity()), 0, 0)
    assert found.entropy is found.broad is None
    assert found.first == pytest.approx(0.75)


def test_stripes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_of(torch.rand(1, 4, 4).softmax(-1))
    expected = shares_of(scene, 0, 0)
    monkeypatch.setattr("qkv.view.answers.shares._CELLS", 4)
    assert shares_of(scene, 0, 0)[2:] == pytest.approx(expected[2:])


def test_it_opens_on_the_layer_that_tells_most() -> None:
    """All looking at one key tells nothing; each at its own tells log 4, however few do."""
    eye, period = torch.eye(4), torch.eye(4)[[2, 2, 2, 2]]
    assert information(eye) == pytest.approx(math.log(4))
    assert information(period) == information(torch.full((4, 4), 0.25)) == 0
    assert information(torch.full((2, 2), float("nan"))) == information(torch.tensor([[1.0, -1.0]])) == -1
    both = torch.stack([eye, eye])
    layers = [torch.stack([eye, period]), both, torch.stack([period, period])]
    assert first_shown(scene_of(*layers)) == (1, None)
    assert first_shown(scene_of(*(x[:1] for x in layers[::-1]))) == (1, 0)
    crossing = scene_of(layers[0], layers[2], kind="cross")
    inner = scene_of(both).layers[0]
    mixed = Scene("", crossing.sequences, (Layer("inner", "self", "k", "k", *inner_parts(inner)), *crossing.layers))
    assert first_shown(mixed) == (1, None)


def inner_parts(layer: Layer) -> tuple[Any, ...]:
    return layer.query, layer.key, layer.value, layer.options


def test_labels_are_those_numbers_that_have_a_meaning() -> None:
    found = HeadShares("one", 0, 0.5, None, None, None, 0.1, 0.2, 0.3, None, None, None)
    assert found.labels(crossing=True) == {
        "diagonal": (0.5, 0.7),
        "first": (0.1, 0.4),
        "separator": (0.2, 0.4),
        "same": (0.3, 0.4),
    }
