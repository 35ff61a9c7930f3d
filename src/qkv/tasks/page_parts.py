"""The parts of a model in a page that computes, see `Parts` in `view/static/models.js`."""

from typing import Any

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.errors import setting
from qkv.models.parts import TransformerParts
from qkv.view.live import LiveModel, Network, lacks

DEFAULTS = "Train with the defaults."


def page_model(
    model: nn.Module,
    tokenizer: Tokenizer,
    longest: int,
    parts: dict[str, Any],
    *,
    never: tuple[int, ...] | None = None,
    labels: tuple[str, ...] = (),
) -> LiveModel:
    """Return what a page needs of a model that reads or writes text.

    Args:
        model: the network, with weights of `qkv.view.live.rounded_to_int8`.
        tokenizer: text to tokens and back.
        longest: maximum tokens of a text.
        parts: what the network consists of.
        never: the tokens that it does not write; None for those of the tokenizer.
        labels: of a classifier.

    Raises:
        UnsupportedError: an attention or the tokenizer has a part that a page cannot compute.
    """
    tokenizers = {
        "source": _vocabulary(tokenizer.source),
        "target": None if tokenizer.shared else _vocabulary(tokenizer),
    }
    never = tokenizer.never_written if never is None else never
    marks = {"bos": tokenizer.bos, "eos": tokenizer.eos, "never": list(never)}
    return LiveModel(Network(model), parts | {"marks": marks}, tokenizers, labels, longest)


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    if tokenizer.imported is not None or tokenizer.kind == "unigram":
        raise lacks(f"a {tokenizer.kind} tokenizer", "Train with " + setting("tokenizer", "bpe") + ".")
    vocabulary = tokenizer.vocabulary
    names = ("kind", "lowercase", "unicode", "pieces")
    merges = [" ".join(pair) for pair in vocabulary.merges]
    return {name: getattr(vocabulary, name) for name in names} | {"merges": merges}


def embedding(name: str, scale: float = 1.0, positions: str = "none", learned: str = "positions") -> dict[str, Any]:
    """Describe an embedding: its name, its factor, and the positions that are added to it.

    Example:
        >>> embedding("embed", 8.0, "rotary")
        {'embed': 'embed', 'scale': 8.0, 'positions': 'none'}
    """
    added = {"sinusoidal": "sinusoidal", "learned": learned}.get(positions, "none")
    return {"embed": name, "scale": scale, "positions": added}


def stack(name: str, blocks: int, parts: TransformerParts) -> dict[str, Any]:
    """Describe the blocks of a Transformer.

    Raises:
        UnsupportedError: they are those of a published model.
    """
    if parts.gated or parts.norms.kind != "layer" or parts.norms.place not in ("before", "after"):
        raise lacks("the blocks of a published model", DEFAULTS)
    place, activation = parts.norms.place, parts.activation
    return {"name": name, "blocks": blocks, "place": place, "activation": activation, "window": parts.window}


def encoder(
    embedding: dict[str, Any], norm: str, *, stack: dict[str, Any] | None = None, cells: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Describe an encoder: blocks of a Transformer (`stack`), recurrent cells, or neither."""
    return {"embedding": embedding, "norm": norm, "residual": False, "stack": stack, "cells": cells}
