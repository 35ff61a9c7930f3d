"""What a scene holds: its sequences and layers, as the page lists them."""

from typing import Any

from qkv.biases import Bias
from qkv.errors import ConfigError, error_message, nearest
from qkv.masks.base import Both, Either, Inverse, Mask
from qkv.masks.patterns import Causal, Documents, Lengths, Window
from qkv.view.answers.equations import equation_of
from qkv.view.answers.head import Head, head_of
from qkv.view.answers.pooling import levels
from qkv.view.scene import Layer, Scene
from qkv.view.tokens import label

VERSION = 1
"""Of the questions and answers between page and server."""
LISTED = 20_000
"""The longest sequence that is listed whole."""
PIECE = 4_096
"""The most tokens of one answer about a longer one."""


def listed(scene: Scene, live: bool) -> dict[str, Any]:
    """The scene without its numbers.

    Args:
        scene: what is looked at.
        live: whether a server can answer further questions.
    """
    sequences = {
        name: {"length": len(tokens)} if len(tokens) > LISTED else piece(scene, name, 0, len(tokens))
        for name, tokens in scene.sequences.items()
    }
    layers = [_layer(layer) for layer in scene.layers]
    return {"title": label_of(scene.title), "version": VERSION, "live": live, "sequences": sequences, "layers": layers}


def piece(scene: Scene, sequence: str, start: int, stop: int) -> list[dict[str, str]]:
    """Some tokens of a sequence: as they are, as they can be shown, and what is noted of them.

    Raises:
        ConfigError: a sequence that is not there.
    """
    if sequence not in scene.sequences:
        hint = nearest(sequence[:40], scene.sequences)
        raise ConfigError(error_message("sequence", "the name of a sequence", ascii(sequence[:40]), hint))
    tokens = scene.sequences[sequence][start:stop]
    notes = scene.notes.get(sequence, ())[start:stop] or ("",) * len(tokens)
    return [
        {"text": _sayable(token), "shown": label(token), "note": note}
        for token, note in zip(tokens, notes, strict=True)
    ]


def label_of(title: str) -> str:
    """A line of text with its spaces, and nothing in it that could act."""
    return " ".join(label(word) for word in title.split(" ") if word)


def _sayable(token: str) -> str:
    """JSON travels as UTF-8, which has no lone surrogates."""
    return token.encode("utf-8", "replace").decode("utf-8")


def _layer(layer: Layer) -> dict[str, Any]:
    heads, rows, columns = layer.shape
    head = head_of(layer, 0) if heads else None
    return {
        "name": layer.name,
        "kind": layer.kind,
        "queries": layer.queries,
        "keys": layer.keys,
        "heads": heads,
        "rows": rows,
        "columns": columns,
        "levels": levels(rows, columns),
        "score": type(head.score).__name__ if head else "",
        "normalizer": type(head.normalizer).__name__ if head else "",
        "mask": mask_name(head) if head else "",
        "equation": equation_of(head) if head else "",
        "has_inputs": layer.inputs is not None,
        "has_output": layer.output is not None,
        "value_width": layer.value.shape[-1],
    }


def mask_name(head: Head) -> str:
    """A mask, in a word or two.

    Example:
        >>> import torch, qkv
        >>> _named(qkv.masks.causal() & qkv.masks.window(2, 0))
        'causal and window'
    """
    named = "none" if head.mask is None else _named(head.mask)
    kind = "" if head.bias is None else type(head.bias).__name__.lower() if isinstance(head.bias, Bias) else "tensor"
    return f"{named}, bias: {kind}" if kind else named


def _named(mask: Mask) -> str:
    match mask:
        case Both(left, right) | Either(left, right):
            joined = "and" if isinstance(mask, Both) else "or"
            return f"{_named(left)} {joined} {_named(right)}"
        case Inverse(inner):
            return f"not {_named(inner)}"
        case Causal() | Lengths() | Window() | Documents():
            return type(mask).__name__.lower()
    return "a pattern"
