import pytest
import torch

import qkv
from qkv.view.answers.requests import RequestHandler
from qkv.view.scene import Layer, Scene

HEADS, QUERIES, KEYS, WIDTH, VALUES, MODEL = 2, 6, 9, 4, 3, 5


@pytest.fixture
def made():
    """Build a scene of one layer with an output projection, with the weights and output of `qkv.attention`."""

    def make(options, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def draw(*size):
            return torch.randn(*size, generator=generator)

        query, key, value = draw(HEADS, QUERIES, WIDTH), draw(HEADS, KEYS, WIDTH), draw(HEADS, KEYS, VALUES)
        output = draw(MODEL, HEADS * VALUES), draw(MODEL)
        layer = Layer("one", "cross", "target", "source", query, key, value, options, output=output)
        scene = Scene("a pair", {"target": tuple("abcdef"), "source": tuple("ghijklmno")}, (layer,))
        out, weights = qkv.attention_with_weights(query, key, value, **options)
        projected = torch.nn.functional.linear(out.transpose(0, 1).flatten(1), *output)
        return RequestHandler(scene), weights, projected

    return make


@pytest.fixture(scope="session")
def grid():
    """Read a numeric answer as a tensor."""

    def read(answer):
        return torch.frombuffer(bytearray(answer.content), dtype=torch.float32).view(answer.rows, answer.columns)

    return read
