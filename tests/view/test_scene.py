"""Errors of a scene name the argument that does not fit."""

import re

import pytest
import torch

from qkv.errors import ConfigError, DtypeError, QkvError, ShapeError
from qkv.view.scene import Layer, Scene

X = torch.randn(2, 4, 8)
ONE = Layer("one", "self", "text", "text", X, X, X)
TEXT = {"text": tuple("abcd")}


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            (X, X, X, {"maks": None}),
            ConfigError,
            'options: expected an option of `attention`; got "maks". Did you mean',
        ),
        ((X[0], X, X), ShapeError, "query: expected (heads, positions, width); got (4, 8)"),
        ((X, X, X[None]), ShapeError, "value: expected (heads, positions, width); got (1, 2, 4, 8)"),
        ((X, X, X[:, :3]), ShapeError, "value: expected "),
    ],
)
def test_a_layer_names_what_does_not_fit(given: tuple, kind: type[QkvError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        Layer("one", "self", "text", "text", *given)


@pytest.mark.parametrize(
    ("sequences", "layers", "notes", "kind", "message"),
    [
        ({"text": "abcd"}, (), {}, DtypeError, "sequences['text']: expected a tuple of strings; got str"),
        ({"text": (1, 2)}, (), {}, DtypeError, "sequences['text']: expected a tuple of strings; got tuple"),
        ({"txet": tuple("abcd")}, (ONE,), {}, ConfigError, "queries of one: expected the name of a sequence"),
        ({"text": tuple("abc")}, (ONE,), {}, ShapeError, "queries of one: expected 3, the tokens of 'text'; got 4"),
        (TEXT, (), {"text": ("", "")}, ShapeError, "notes['text']: expected 4, the tokens of 'text'; got 2"),
        (TEXT, (ONE, ONE), {}, ConfigError, "layers: expected distinct names; got two layers named 'one'"),
    ],
)
def test_a_scene_names_what_does_not_fit(
    sequences: dict, layers: tuple, notes: dict, kind: type[QkvError], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        Scene("a scene", sequences, layers, notes)


def test_a_layer_is_found_by_its_name() -> None:
    scene = Scene("a scene", TEXT, (ONE,))
    assert scene.layer("one") is ONE
    with pytest.raises(ConfigError, match=r'got "on"\. Did you mean "one"'):
        scene.layer("on")
