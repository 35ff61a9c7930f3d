"""Converting the recorded calls of one row to a scene for the viewer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.biases import Bias
from qkv.errors import ShapeError, UnsupportedError, error_message
from qkv.masks.base import Mask
from qkv.masks.lower import matrix, part
from qkv.masks.patterns import Lengths, causal, dense
from qkv.normalizers.row_state import RowState
from qkv.recording.around import Around
from qkv.recording.calls import Call
from qkv.recording.rows import Item, item_of
from qkv.view.scene import Inputs, Layer, Scene


class Part(NamedTuple):
    """A call, the index of the row in its batch, and its index in the batch when the keys were projected."""

    call: Call
    place: int
    source: int | None


def scene_of(
    parts: Mapping[str, Sequence[Part]],
    surroundings: Mapping[str, Around],
    tokens: Mapping[str, Sequence[str]],
    notes: Mapping[str, Sequence[str]],
    title: str,
) -> Scene:
    """Collect the layers of one row, and name their sequences.

    Args:
        parts: the calls of each layer that include the row.
        surroundings: the projections around layers that have some.
        tokens: the tokens of each sequence; without tokens, positions are numbered.
        notes: the notes of each sequence.
        title: title of the scene.

    Returns:
        The scene.

    Raises:
        ShapeError: the number of tokens differs from the number of positions.
        UnsupportedError: the calls do not form one matrix.
    """
    sides = _sides({layer: some[0].call.own for layer, some in parts.items()})
    named = {name: tuple(some) for name, some in tokens.items()}
    layers = tuple(_layer(name, some, surroundings.get(name), sides[name], named) for name, some in parts.items())
    for layer in layers:
        for side, count in ((layer.queries, layer.shape[1]), (layer.keys, layer.shape[2])):
            named.setdefault(side, tuple(str(place) for place in range(count)))
    return Scene(title, named, layers, {name: tuple(some) for name, some in notes.items()})


def _sides(own: Mapping[str, bool]) -> dict[str, tuple[str, str]]:
    """Return the sequences of queries and keys of each layer; modules with a layer that attends to the source are
    decoders.
    """
    decoders = {name.split(".")[0] for name, alone in own.items() if not alone}
    if not decoders:
        return dict.fromkeys(own, ("text", "text"))
    inside = {name: "target" if name.split(".")[0] in decoders else "source" for name in own}
    return {name: (inside[name],) * 2 if alone else ("target", "source") for name, alone in own.items()}


def _layer(
    name: str,
    parts: Sequence[Part],
    surrounding: Around | None,
    sides: tuple[str, str],
    tokens: Mapping[str, tuple[str, ...]],
) -> Layer:
    for part_of in parts:
        part_of.call.check()
    item = _one_after_another(name, [item_of(call, place) for call, place, _ in parts])
    item = _without_padding(item, *(len(tokens[side]) if side in tokens else None for side in sides))
    kind: Literal["self", "cross"] = "self" if parts[0].call.own else "cross"
    output = None if surrounding is None or surrounding.output.weight is None else surrounding.output
    inputs = None if surrounding is None else _inputs(parts, surrounding, item.query.shape[1], item.key.shape[1])
    joined = None if output is None or output.weight is None else (output.weight, output.bias)
    return Layer(name, kind, *sides, item.query, item.key, item.value, item.options, item.state, joined, inputs)


def _inputs(parts: Sequence[Part], surrounding: Around, queries: int, keys: int) -> Inputs | None:
    """Return the inputs of the projections: queries call by call; keys too if each call had its own."""
    seen = [(call.given, place, source) for call, place, source in parts if call.given is not None]
    if len(seen) < len(parts) or any(source is None for _, _, source in seen):
        return None
    grows = parts[0].call.own
    query = torch.cat([given.query[place] for given, place, _ in seen], 0)
    sources = [(given, source) for given, _, source in (seen if grows else seen[-1:])]
    key = torch.cat([given.key[source] for given, source in sources], 0)
    value = torch.cat([given.value[source] for given, source in sources], 0)
    if query.shape[0] < queries or key.shape[0] < keys:
        return None
    weights, biases = zip(surrounding.query, surrounding.key, surrounding.value, strict=True)
    return Inputs(query[:queries], key[:keys], value[:keys], *weights, *biases)


def _one_after_another(name: str, items: Sequence[Item]) -> Item:
    """Combine the calls of a decoder, one per step, into one matrix, with the keys of the last step."""
    last = items[-1]
    if len(items) == 1:
        return last
    for item in items:
        if not torch.equal(item.key, last.key[:, : item.key.shape[1]]):
            hint = "Record one call at a time."
            raise UnsupportedError(
                error_message(name, "keys that stay the same or grow from call to call", "other keys", hint)
            )
    query = torch.cat([item.query for item in items], 1)
    given = dict(last.options)
    gatherers: dict[str, Callable[[str, Sequence[Item]], Mask | Bias | Tensor | None]]
    gatherers = {"mask": _masks, "bias": _biases}
    for option, gather in gatherers.items():
        given.pop(option, None)
        whole = gather(name, items)
        if whole is not None:
            given[option] = whole
    return Item(query, last.key, last.value, given, _states([item.state for item in items]))


def _masks(name: str, items: Sequence[Item]) -> Mask | None:
    masks = [item.options.get("mask") for item in items]
    counts = [(item.query.shape[1], item.key.shape[1]) for item in items]
    total = sum(queries for queries, _ in counts)
    if len({keys for _, keys in counts}) == 1:
        if all(mask is None for mask in masks):
            return None
        if all(isinstance(mask, Lengths) and mask.queries is None for mask in masks):
            return masks[-1]
    elif all(mask is None for mask in masks) and _one_more_each_time(counts):
        return causal(counts[-1][1] - total)
    heads, widest = items[-1].query.shape[0], counts[-1][1]
    tables = [_written_out(mask, heads, *count) for mask, count in zip(masks, counts, strict=True)]
    return dense(torch.cat([F.pad(table, (0, widest - table.shape[-1])) for table in tables], -2))


def _one_more_each_time(counts: Sequence[tuple[int, int]]) -> bool:
    first = counts[0][1]
    return all(count == (1, first + step) for step, count in enumerate(counts))


def _written_out(mask: Mask | None, heads: int, queries: int, keys: int) -> Tensor:
    if mask is None:
        return torch.ones(heads, queries, keys, dtype=torch.bool)
    return matrix(mask, queries, keys, (heads,))


def _biases(name: str, items: Sequence[Item]) -> Tensor | Bias | None:
    biases = [item.options.get("bias") for item in items]
    if isinstance(biases[0], Bias):
        # A position bias counts from its first query, here that of the first call.
        return biases[0]
    if all(bias is None for bias in biases):
        return None
    sizes = [(item.query.shape[0], item.query.shape[1], item.key.shape[1]) for item in items]
    widest = sizes[-1][-1]
    tables = [
        item.query.new_zeros(size) if bias is None else bias.expand(size)
        for bias, size, item in zip(biases, sizes, items, strict=True)
    ]
    return torch.cat([F.pad(table, (0, widest - table.shape[-1])) for table in tables], -2)


def _states(states: Sequence[RowState | None]) -> RowState | None:
    kept = [state for state in states if state is not None]
    if len(kept) < len(states):
        return None
    return RowState(kept[0].kind, torch.cat([state.value for state in kept], -1))


def _without_padding(item: Item, queries: int | None, keys: int | None) -> Item:
    """Drop the positions after the tokens: the padding of a batch, to which nothing attends."""
    (heads, whole_queries, _), whole_keys = item.query.shape, item.key.shape[1]
    queries = whole_queries if queries is None else min(queries, whole_queries)
    keys = whole_keys if keys is None else min(keys, whole_keys)
    if (queries, keys) == (whole_queries, whole_keys):
        return item
    options = dict(item.options)
    mask, bias = options.get("mask"), options.get("bias")
    seen = None if mask is None else matrix(mask, whole_queries, whole_keys, (heads,))[:, :queries]
    if keys < whole_keys and (seen is None or bool(seen[..., keys:].any())):
        got, hint = f"{keys} for {whole_keys} positions that receive attention", "Give one token per position."
        raise ShapeError(error_message("tokens", "one token per position", got, hint))
    if seen is not None and not isinstance(mask, Lengths):
        options["mask"] = dense(seen[..., :keys])
    if isinstance(bias, Tensor):
        options["bias"] = part(bias, slice(queries), slice(keys))
    state = None if item.state is None else replace(item.state, value=item.state.value[:, :queries])
    return Item(item.query[:, :queries], item.key[:, :keys], item.value[:, :keys], options, state)
