"""Naming the sequences between which the layers of a model attend."""

from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

_TARGET, _SOURCE = "<target>", "<source>"
"""The parts of a model of unknown structure; no path of a module looks like them."""


class Ends(NamedTuple):
    """What is known of the two ends of a layer.

    Attributes:
        self_attention: whether it attends within one sequence.
        group: path of the model that contains it; None if unknown.
        queries, keys: the number of positions.
    """

    self_attention: bool
    group: str | None
    queries: int
    keys: int


def name_sequences(layers: Mapping[str, Ends]) -> dict[str, tuple[str, str]]:
    """Return the names of the sequences of queries and keys of each layer.

    Without cross-attention the only sequence is "text". Cross-attention attends from "target" to "source"; other layers
    attend within one of them, which follows from its length, or from the path of the layer. Further models inside, such
    as one for images, have sequences named after their paths.

    Args:
        layers: what is known of each layer, by its path.

    Example:
        >>> layers = {"model.encoder.0": Ends(True, None, 5, 5), "model.decoder.0.cross": Ends(False, None, 3, 5)}
        >>> name_sequences(layers)
        {'model.encoder.0': ('source', 'source'), 'model.decoder.0.cross': ('target', 'source')}
    """
    parts = _parts(layers)
    roles = _roles(layers, parts)
    lengths: dict[str, int] = {}
    named = {}
    for layer, ends in layers.items():
        name = roles[parts[layer]]
        queries = _of_length(name, ends.queries, lengths)
        named[layer] = (queries, queries if ends.self_attention else _of_length("source", ends.keys, lengths))
    return named


def _parts(layers: Mapping[str, Ends]) -> dict[str, str]:
    """Return the part of a model that each layer belongs to: the model around it, or a side of a cross-attention."""
    crossing = {name: ends for name, ends in layers.items() if not ends.self_attention and ends.group is None}
    writes = {name for name, ends in layers.items() if name in crossing or _writes(name, ends, crossing)}
    return {
        name: ends.group if ends.group is not None else (_TARGET if name in writes else _SOURCE)
        for name, ends in layers.items()
    }


def _writes(name: str, ends: Ends, crossing: Mapping[str, Ends]) -> bool:
    """Return whether a layer attends within the target: by its length, or if that fits both sides, by its path."""
    as_target = any(ends.keys == other.queries for other in crossing.values())
    as_source = any(ends.keys == other.keys for other in crossing.values())
    return as_target if as_target is not as_source else any(_one_stack(name, other) for other in crossing)


def _one_stack(one: str, other: str) -> bool:
    """Return whether two layers are in one stack: parts of one layer in it, or of two that only their number tells.

    Example:
        >>> _one_stack("decoder.0.self", "decoder.1.cross"), _one_stack("encoder.0.self", "decoder.0.cross")
        (True, False)
    """
    first, second = one.split("."), other.split(".")
    shared = sum(1 for _ in takewhile(lambda names: names[0] == names[1], zip(first, second, strict=False)))
    endings = first[shared:], second[shared:]
    numbered = all(part[:1] and part[0].isdecimal() for part in endings)
    return numbered or not any(name.isdecimal() for name in endings[0])


def _roles(layers: Mapping[str, Ends], parts: Mapping[str, str]) -> dict[str, str]:
    crossing = {parts[name] for name, ends in layers.items() if not ends.self_attention}
    lengths = {ends.keys for ends in layers.values() if not ends.self_attention}
    others = [part for part in dict.fromkeys(parts.values()) if part not in crossing]
    roles = dict.fromkeys(crossing, "target")
    grouped = {
        part for part in others if any(parts[name] == part and layers[name].group is not None for name in layers)
    }
    if not crossing:
        is_single = len(grouped) < 2
        return {part: "text" if is_single or part not in grouped else _short(part, others) for part in others}
    reading = [part for part in others if any(parts[name] == part and layers[name].keys in lengths for name in layers)]
    for part in others:
        source = part not in grouped or part in reading[:1] or len(others) == 1
        roles[part] = "source" if source else _short(part, others)
    return roles


def _short(part: str, others: list[str]) -> str:
    last = part.rpartition(".")[2] or "text"
    return part if sum(other.rpartition(".")[2] == last for other in others) > 1 else last


def _of_length(name: str, count: int, lengths: dict[str, int]) -> str:
    """Return a sequence of this length; a second length under the same name becomes a sequence of its own."""
    if lengths.setdefault(name, count) == count:
        return name
    return f"{name} of {count}"
