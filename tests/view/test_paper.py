"""Pictures for a paper: words instead of pieces, and long texts pooled, worked out by hand."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import qkv
from qkv.errors import ConfigError
from qkv.view.paper import MOST, map_of
from qkv.view.scene import Layer, Scene
from qkv.view.words import words


def scene_of(weights: Tensor, tokens: tuple[str, ...]) -> Scene:
    """A layer whose heads have these weights (H, N, N)."""
    zeros = torch.zeros(*weights.shape[:2], 1)
    return Scene(
        "", {"text": tokens}, (Layer("one", "self", "text", "text", zeros, zeros, zeros, {"bias": weights.log()}),)
    )


TOKENS = ("[CLS]", "em", "##bed", "a", "[SEP]")
WEIGHTS = torch.tensor(
    [
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.1, 0.3, 0.2, 0.3, 0.1],
        [0.1, 0.1, 0.6, 0.1, 0.1],
        [0.4, 0.1, 0.1, 0.2, 0.2],
        [0.2, 0.2, 0.2, 0.2, 0.2],
    ]
)


def test_pieces_are_joined_and_special_tokens_left_out() -> None:
    """Rows of "em" and "##bed" are averaged, their columns added: (0.3 + 0.2 + 0.1 + 0.6)/2 = 0.6."""
    both = torch.stack([WEIGHTS, WEIGHTS.flip(1)])
    found = map_of(scene_of(both, TOKENS), "one", 0)
    assert found.source == found.target == ("embed", "a")
    torch.testing.assert_close(found.weights, torch.tensor([[0.6, 0.2], [0.2, 0.2]]).double(), atol=1e-6, rtol=0)
    mean = map_of(scene_of(both, TOKENS), "one")
    flipped = map_of(scene_of(both, TOKENS), "one", 1)
    torch.testing.assert_close(mean.weights, (found.weights + flipped.weights) / 2)


def test_a_text_of_special_tokens_alone_keeps_them() -> None:
    assert map_of(scene_of(torch.full((1, 2, 2), 0.5), ("[CLS]", "[SEP]"))).source == ("[CLS]", "[SEP]")


@pytest.mark.parametrize("length", [MOST + 1, 250, 401, 1000])
def test_long_texts_are_blocks_of_tokens(length: int) -> None:
    weights = torch.rand(1, length, length).softmax(-1)
    found = map_of(scene_of(weights, tuple(f"w{at}" for at in range(length))))
    assert found.weights.shape == (MOST, MOST)
    starts = [-(-block * length // MOST) for block in range(MOST + 1)]
    assert found.source[7] == f"w{starts[7]}…"
    block = weights[0, starts[7] : starts[8], starts[3] : starts[4]]
    assert float(found.weights[7, 3]) == pytest.approx(float(block.double().mean()), rel=1e-4)


def test_a_layer_or_head_that_is_not_there_is_named() -> None:
    scene = scene_of(WEIGHTS[None], TOKENS)
    with pytest.raises(ConfigError, match="head"):
        map_of(scene, "one", 1)
    with pytest.raises(ConfigError, match="layer"):
        map_of(scene, "two")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["Ġthe", "Ġmead", "ow", ".", "<|endoftext|>"], ["the", "meadow", ".", "<|endoftext|>"]),
        (["the", "Ġmead", "ow"], ["the", "meadow"]),
        (["▁", "a", "▁b"], ["▁a", "b"]),
        (["<s>", "ab", "▁c"], ["<s>", "ab", "c"]),
        (["a@@", "b@@", "c", "d"], ["abc", "d"]),
        (["##", "#", "##a"], ["##", "#a"]),
        ([], []),
    ],
)
def test_words_of_each_kind_of_pieces(tokens: list[str], expected: list[str]) -> None:
    found = words(tokens)
    assert [word.text for word in found] == expected
    assert [at for word in found for at in range(word.start, word.stop)] == list(range(len(tokens)))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_trace_saves_a_picture_of_one_head_with_a_title(tmp_path: Path, suffix: str) -> None:
    model = qkv.nn.MultiHeadAttention(8, 2).eval()
    with qkv.record(model) as trace:
        model(torch.randn(1, 4, 8))
    files = [tmp_path / f"{name}.{suffix}" for name in ("plain", "head", "titled")]
    trace.save(files[0])
    trace.save(files[1], layer="attention", head=1)
    trace.save(files[2], layer="attention", head=1, title="What head 1 sees")
    contents = [file.read_bytes() for file in files]
    assert len(set(contents)) == 3
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert all(content.startswith(start) for content in contents)
    with pytest.raises(ConfigError, match="head"):
        trace.save(files[0], layer="attention", head=2)
