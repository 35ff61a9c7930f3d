"""The picture of one map of a scene, as a page of paper can show it."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.errors import ConfigError, DataError
from qkv.view.alignment import Alignment
from qkv.view.answers.opening import first_shown
from qkv.view.not_finite import first_not_finite
from qkv.view.scene import Layer, Scene
from qkv.view.words import is_special, words

MOST = 100
"""Rows or columns that a picture shows; of longer texts a cell is the mean of several tokens."""
_WHOLE = 4 * MOST
"""Tokens of a text whose pieces are joined to words."""


@torch.no_grad()
def map_of(scene: Scene, layer: str | None = None, head: int | None = None) -> Alignment:
    """Return the map of a head, or of the mean over heads, for a picture.

    Pieces of a word are joined: its row is the mean of theirs, its column their sum (Clark et al. 2019, section 4.1).
    Special tokens are left out, so that rows need not sum to one. Of a text of more than 400 tokens, or 100 words, a
    cell is the mean over a block of tokens, named after the first.

    Args:
        scene: the scene.
        layer: the name of the layer; None for the map on which the viewer opens.
        head: the number of the head; None for the mean over heads, or without a layer for the head that the viewer
            opens on.

    Raises:
        ConfigError: there is no such layer or head.
        DataError: a weight is not finite; the message gives the first number of all layers that is not.
    """
    if layer is None:
        number, opened = first_shown(scene)
        shown = scene.layers[number]
        head = opened if head is None else head
    else:
        shown = scene.layer(layer)
    if head is not None and not 0 <= head < shown.heads:
        hint = "Leave it out for the mean over all heads."
        raise ConfigError("head", f"a head from 0 to {shown.heads - 1} of {shown.name}", f"{head}", hint)
    texts = [scene.sequences[name] for name in (shown.queries, shown.keys)]
    whole = max(map(len, texts)) <= _WHOLE
    rows, columns = (_side(text, whole) for text in texts)
    weights = _joined(_joined(_weights(shown, head, whole), rows, -2), columns, -1)
    if not bool(weights.isfinite().all()) and (diverged := first_not_finite(scene)) is not None:
        at = f"layer {scene.layers[diverged.layer].name}, head {diverged.head}, {diverged.side} {diverged.place}"
        hint = "Save it as .html or .safetensors, which show the rest."
        raise DataError("weights", "finite numbers to draw", f"others, the first in {at}", hint)
    return Alignment(tuple(columns.names), tuple(rows.names), weights)


class _Side(NamedTuple):
    """What a picture names along one side.

    Attributes:
        names: the words, or of a long text the first token of each block.
        parts: the rows or columns of the map that each of them takes.
        are_words: whether they are words, whose weights a column adds up.
    """

    names: list[str]
    parts: list[slice]
    are_words: bool


def _side(tokens: tuple[str, ...], whole: bool) -> _Side:
    """Return the words of a text, if there are few, or blocks of its tokens.

    Args:
        tokens: its tokens.
        whole: whether the map has a position for each token; otherwise it has at most `MOST` blocks.
    """
    if whole or len(tokens) <= MOST:
        everything = words(tokens)
        kept = [word for word in everything if not is_special(word.text)] or everything
        if len(kept) <= MOST:
            return _Side([word.text for word in kept], [slice(word.start, word.stop) for word in kept], True)
    ends = [-(-block * len(tokens) // MOST) for block in range(MOST + 1)]
    names = [f"{tokens[start].lstrip('▁Ġ')}…" for start in ends[:-1]]
    parts = [slice(*pair) for pair in pairwise(ends)] if whole else [slice(at, at + 1) for at in range(MOST)]
    return _Side(names, parts, False)


def _weights(layer: Layer, head: int | None, whole: bool) -> Tensor:
    """Return the weights, float64; of long texts means over at most `MOST` blocks along each side."""
    _, queries, keys = layer.shape
    amap = layer.map()
    weights = amap.dense().double() if whole else amap.pooled(min(MOST, queries), min(MOST, keys))
    return weights.mean(0) if head is None else weights[head]


def _joined(weights: Tensor, side: _Side, dim: int) -> Tensor:
    """Return the means over the positions of each part, or for columns of words their sums."""
    if not side.parts:
        return weights.narrow(dim, 0, 0)
    adds = dim == -1 and side.are_words
    parts = [weights.narrow(dim, part.start, part.stop - part.start) for part in side.parts]
    return torch.cat([part.sum(dim, keepdim=True) if adds else part.mean(dim, keepdim=True) for part in parts], dim)
