"""The contents of a scene: its sequences and layers, as the page lists them."""

from collections.abc import Mapping
from typing import Any

from qkv.biases import Bias
from qkv.normalizers.steps import equation_of as normalizer_equation
from qkv.scores.steps import equation_of as score_equation
from qkv.view.answers.head import Head, head_of
from qkv.view.answers.pooling import levels
from qkv.view.layer_names import short_names
from qkv.view.not_finite import first_not_finite
from qkv.view.scene import Layer, Scene
from qkv.view.tokens import label, labels, sentence
from qkv.view.words import is_special

VERSION = 2
"""Version of the requests and answers between page and server."""
LISTED = 20_000
"""Maximum length of a sequence that is listed in full."""
_READ = 200
"""Maximum number of tokens of a translation that the page shows beside its title."""
_LONGEST_NAME = 200
"""Maximum number of characters of a title, or of the name of a layer or a sequence."""
PIECE = 4_096
"""Maximum number of tokens per answer for a longer one."""


def contents(scene: Scene, opening: tuple[int, int | None]) -> dict[str, Any]:
    """Return the scene without its numbers.

    Args:
        scene: the scene.
        opening: the layer and the head that are shown first.
    """
    # By number: a name, which a file may choose, is no name of a request nor of a JSON object.
    numbers = {name: number for number, name in enumerate(scene.sequences)}
    sequences: list[dict[str, Any]] = [
        {"name": name_of(name), "length": len(tokens)}
        | ({} if len(tokens) > LISTED else {"tokens": token_range(scene, name, 0, len(tokens))})
        for name, tokens in scene.sequences.items()
    ]
    short = short_names([layer.name for layer in scene.layers])
    layers = [
        _layer(layer, numbers) | {"short": name_of(name)} for layer, name in zip(scene.layers, short, strict=True)
    ]
    crossing = any(layer.kind == "cross" for layer in scene.layers)
    diverged = first_not_finite(scene)
    written = sentence(scene.sequences["target"][:_READ]) if crossing and "target" in scene.sequences else ""
    return {
        "written": written,
        "title": name_of(scene.title),
        "version": VERSION,
        "answers": scene.rerun is not None,
        "sequences": sequences,
        "layers": layers,
        "opening": dict(zip(("layer", "head"), opening, strict=True)),
        "not_finite": None if diverged is None else diverged._asdict(),
    }


def token_range(scene: Scene, sequence: str, start: int, stop: int) -> list[dict[str, Any]]:
    """Return some tokens of a sequence: raw, as labels, their notes, and whether they are no text."""
    everything = scene.sequences[sequence]
    tokens = everything[start:stop]
    notes = scene.notes.get(sequence, ())[start:stop] or ("",) * len(tokens)
    return [
        {"text": _without_lone_surrogates(token), "shown": escaped, "note": note}
        | ({"special": True} if is_special(token) else {})
        for token, escaped, note in zip(
            tokens, labels(everything, range(len(everything))[start:stop]), notes, strict=True
        )
    ]


def name_of(text: str) -> str:
    """Return a title or a name as one line of at most 200 characters, with control characters escaped."""
    line = " ".join(label(word) for word in text[: _LONGEST_NAME + 1].split(" ") if word)
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


def _without_lone_surrogates(token: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return token.encode("utf-8", "replace").decode("utf-8")


def _layer(layer: Layer, numbers: Mapping[str, int]) -> dict[str, Any]:
    heads, rows, columns = layer.shape
    head = head_of(layer, 0) if heads else None
    return {
        "name": name_of(layer.name),
        "kind": layer.kind,
        "queries": numbers[layer.queries],
        "keys": numbers[layer.keys],
        "heads": heads,
        "rows": rows,
        "columns": columns,
        "levels": levels(rows, columns),
        "score": type(head.score).__name__ if head else "",
        "normalizer": type(head.normalizer).__name__ if head else "",
        "mask": mask_name(head) if head else "",
        "equation": _equation(head) if head else "",
        "has_inputs": layer.inputs is not None,
        "has_output": layer.output is not None,
        "value_width": layer.value.shape[-1],
    }


def _equation(head: Head) -> str:
    """Return a whole mechanism on one line."""
    biased = "" if head.bias is None else ", s ← s + b"
    return f"{score_equation(head.score)}{biased}; {normalizer_equation(head.normalizer)}; o = Σ w v"


def mask_name(head: Head) -> str:
    """Describe a mask and a bias in a few words."""
    mask = "none" if head.mask is None else head.mask.name
    bias = "" if head.bias is None else head.bias.name if isinstance(head.bias, Bias) else "tensor"
    return f"{mask}, bias: {bias}" if bias else mask
