"""Converting the recorded calls of one row to a scene for the viewer."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.biases import Bias
from qkv.errors import ConfigError, ShapeError, UnsupportedError, nearest
from qkv.masks.base import Mask, as_mask
from qkv.masks.lower import factors, matrix, part
from qkv.masks.patterns import Causal, Lengths, Span, causal, dense, span
from qkv.normalizers.base import Normalizer
from qkv.normalizers.row_state import RowState
from qkv.recording.calls import RecordedCall
from qkv.recording.projections import LayerProjections
from qkv.recording.sequences import Ends, name_sequences
from qkv.scores.base import Score
from qkv.shapes import Shape, show
from qkv.values import parameters
from qkv.values.sharded import is_sharded
from qkv.view.scene import Layer, ProjectedInputs, Scene


class CallRow(NamedTuple):
    """A call, the index of the row in its batch, and its index in the batch when the keys were projected."""

    call: RecordedCall
    row: int
    source: int | None


class CallItem(NamedTuple):
    """One item of a call: (H, Q, D), (G, K, E), (G, K, V), its options, and its row state (H, Q)."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: Mapping[str, Any]
    state: RowState | None


def scene_of(
    parts: Mapping[str, Sequence[CallRow]],
    sides: Mapping[str, tuple[str, str]],
    surroundings: Mapping[str, LayerProjections],
    tokens: Mapping[str, Sequence[str]],
    notes: Mapping[str, Sequence[str]],
    title: str,
) -> Scene:
    """Collect the layers of one row, and name their sequences.

    Args:
        parts: the calls of each layer that include the row.
        sides: the sequences of queries and keys of each layer.
        surroundings: the projections around layers that have some.
        tokens: the tokens of each sequence; without tokens, positions are numbered.
        notes: the notes of each sequence.
        title: title of the scene.

    Returns:
        The scene.

    Raises:
        ShapeError: the number of tokens differs from the number of positions.
        ConfigError: tokens belong to no sequence.
        UnsupportedError: the calls do not form one matrix, or a shard is open.
    """
    if is_sharded():
        hint = "Open it after the `with` block of the shard."
        raise UnsupportedError("scene", "a viewer of one process", "one inside of a shard", hint)
    sequences = {name for pair in sides.values() for name in pair}
    for name in tokens:
        if name not in sequences:
            hint = nearest(name, sorted(sequences))
            raise ConfigError("tokens", "names of sequences of the trace", repr(name), hint)
    named = {name: tuple(sequence) for name, sequence in tokens.items()}
    layers = tuple(
        _layer(name, call_rows, surroundings.get(name), sides[name], named) for name, call_rows in parts.items()
    )
    for layer in layers:
        for side, count in ((layer.queries, layer.shape[1]), (layer.keys, layer.shape[2])):
            named.setdefault(side, tuple(str(index) for index in range(count)))
    return Scene(title, named, layers, {name: tuple(sequence_notes) for name, sequence_notes in notes.items()})


def sides_of(parts: Mapping[str, Sequence[CallRow]], groups: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the names of the sequences of queries and keys of each layer.

    Args:
        parts: the calls of each layer that include the row.
        groups: for layers of `transformers`, the path of the model around them.

    Raises:
        UnsupportedError: the beginning of a text was not recorded.
    """
    ends = {}
    for name, call_rows in parts.items():
        queries = sum(part.call.query.shape[-2] for part in call_rows)
        keys = max(part.call.key.shape[-2] for part in call_rows)
        if call_rows[0].call.self_attention and queries < keys:
            got = f"{queries} of {keys} positions of {name}: a cache held the others before"
            hint = f"Fill the cache inside the `with` block, or take the numbers alone: trace.weights({name!r})."
            raise UnsupportedError("record", "a text from its first token on", got, hint)
        ends[name] = Ends(call_rows[0].call.self_attention, groups.get(name), queries, keys)
    return name_sequences(ends)


def _layer(
    name: str,
    parts: Sequence[CallRow],
    surrounding: LayerProjections | None,
    sides: tuple[str, str],
    tokens: Mapping[str, tuple[str, ...]],
) -> Layer:
    for part_of in parts:
        part_of.call.check()
    item = _one_call(name, [item_of(call, index) for call, index, _ in parts])
    item = _without_padding(item, *(len(tokens[side]) if side in tokens else None for side in sides))
    kind: Literal["self", "cross"] = "self" if parts[0].call.self_attention else "cross"
    output = None if surrounding is None or surrounding.output.weight is None else surrounding.output
    inputs = None if surrounding is None else _inputs(parts, surrounding, item.query.shape[1], item.key.shape[1])
    joined = None if output is None or output.weight is None else (output.weight, output.bias)
    return Layer(name, kind, *sides, item.query, item.key, item.value, item.options, item.state, joined, inputs)


def item_of(call: RecordedCall, row: int) -> CallItem:
    """Extract one row of a call's batch; a call without heads gets one head.

    Args:
        call: with query (B, H, Q, D), or (B, Q, D).
        row: its index in the call's batch.

    Returns:
        The item.

    Raises:
        ShapeError: the call has more dimensions, or no batch dimension.
    """
    operands = call.query, call.key, call.value
    rank = max(tensor.ndim for tensor in operands) - 2
    if rank not in (1, 2):
        got = show(tuple(call.query.shape))
        raise ShapeError("query", "(B, H, Q, D) or (B, Q, D)", got, "Record a model that processes batches.")
    batch = max(tensor.shape[0] for tensor in (call.query, call.key))
    leading = (batch, call.query.shape[-3])[:rank]
    tensors = [parameters.pick(tensor.detach(), row, rank + 2) for tensor in operands]
    query, key, value = (tensor if rank == 2 else tensor.unsqueeze(0) for tensor in tensors)
    options = {name: _option(name, option, row, leading) for name, option in call.options.items()}
    state = None if call.state is None else call.state.map(lambda x: x[row].reshape(query.shape[:2]))
    return CallItem(query, key, value, options, state)


def _option(name: str, option: Any, row: int, leading: Shape) -> Any:
    if name == "mask":
        return as_mask(option).item(row, leading)
    if isinstance(option, Bias):
        return option.item(row, leading)
    if isinstance(option, Score | Normalizer):
        return parameters.item(option, option.parameters, row, leading)
    return parameters.pick(option.detach(), row, len(leading) + 2) if isinstance(option, Tensor) else option


def _inputs(parts: Sequence[CallRow], surrounding: LayerProjections, queries: int, keys: int) -> ProjectedInputs | None:
    """Return the inputs of the projections: queries call by call; keys too if each call had its own."""
    recorded = [(call.inputs, index, source) for call, index, source in parts if call.inputs is not None]
    if len(recorded) < len(parts) or any(source is None for _, _, source in recorded):
        return None
    grows = parts[0].call.self_attention
    query = torch.cat([inputs.query[index] for inputs, index, _ in recorded], 0)
    sources = [(inputs, source) for inputs, _, source in (recorded if grows else recorded[-1:])]
    key = torch.cat([inputs.key[source] for inputs, source in sources], 0)
    value = torch.cat([inputs.value[source] for inputs, source in sources], 0)
    if query.shape[0] < queries or key.shape[0] < keys:
        return None
    weights, biases = zip(surrounding.query, surrounding.key, surrounding.value, strict=True)
    return ProjectedInputs(query[:queries], key[:keys], value[:keys], *weights, *biases)


def _one_call(name: str, items: Sequence[CallItem]) -> CallItem:
    """Combine the calls of a decoder, one per step, into one matrix, with the keys of the last step."""
    last = items[-1]
    if len(items) == 1:
        return last
    for item in items:
        if not torch.equal(item.key, last.key[:, : item.key.shape[1]]):
            hint = "Record one call at a time."
            raise UnsupportedError(name, "keys that stay the same or grow from call to call", "other keys", hint)
    query = torch.cat([item.query for item in items], 1)
    options = dict(last.options)
    gatherers: dict[str, Callable[[str, Sequence[CallItem]], Mask | Bias | Tensor | None]]
    gatherers = {"mask": _masks, "bias": _biases}
    for option, gather in gatherers.items():
        options.pop(option, None)
        joined = gather(name, items)
        if joined is not None:
            options[option] = joined
    return CallItem(query, last.key, last.value, options, _states([item.state for item in items]))


def _masks(name: str, items: Sequence[CallItem]) -> Mask | None:
    masks = [item.options.get("mask") for item in items]
    counts = [(item.query.shape[1], item.key.shape[1]) for item in items]
    if len({keys for _, keys in counts}) == 1:
        if all(mask is None for mask in masks):
            return None
        if all(isinstance(mask, Lengths) and mask.queries is None for mask in masks):
            return masks[-1]
    heads = items[-1].query.shape[0]
    growing = _growing_causal(masks, counts)
    if growing is not None:
        return growing
    tables = [_as_table(mask, heads, *count) for mask, count in zip(masks, counts, strict=True)]
    return dense(stacked(tables))


def _growing_causal(masks: Sequence[Mask | None], counts: Sequence[tuple[int, int]]) -> Mask | None:
    """Return the mask of a causal model whose cache grows by as many keys as there are new queries, if it is that.

    The first call has many queries and a causal mask; a call with one query, which sees all keys, needs none.
    """
    past = counts[0][1] - counts[0][0]
    steps = itertools.pairwise(counts)
    if past < 0 or any(keys - before != queries for (_, before), (queries, keys) in steps):
        return None
    later_masks: list[list[Mask]] = []
    for mask, (queries, keys) in zip(masks, counts, strict=True):
        parts = [] if mask is None else factors(mask)
        causal_parts = [part_of for part_of in parts if isinstance(part_of, Causal)]
        hides = [part_of for part_of in causal_parts if part_of.align == "start" and part_of.offset == keys - queries]
        if len(hides) != len(causal_parts) or not (hides or queries == 1):
            return None
        later_masks.append([part_of for part_of in parts if part_of not in hides])
    spans = [_span(step_masks, keys) for step_masks, (_, keys) in zip(later_masks, counts, strict=True)]
    if any(span_of is None or span_of != spans[-1] for span_of in spans):
        return None
    first = spans[-1] or 0
    return causal(past) & span(first) if first else causal(past)


def _span(masks: Sequence[Mask], keys: int) -> int | None:
    """Return the first key that is seen, if masks hide no more than those before it."""
    first = 0
    for mask in masks:
        if not isinstance(mask, Span) or not (mask.last is None or int(mask.last) >= keys):
            return None
        first = max(first, int(mask.first))
    return first


def _as_table(mask: Mask | None, heads: int, queries: int, keys: int) -> Tensor:
    if mask is None:
        return torch.ones(heads, queries, keys, dtype=torch.bool, device="cpu")
    return matrix(mask, queries, keys, (heads,))


def _biases(name: str, items: Sequence[CallItem]) -> Tensor | Bias | None:
    biases = [item.options.get("bias") for item in items]
    if isinstance(biases[0], Bias):
        # A position bias counts from its first query, here that of the first call.
        return biases[0]
    if all(bias is None for bias in biases):
        return None
    sizes = [(item.query.shape[0], item.query.shape[1], item.key.shape[1]) for item in items]
    tables = [
        item.query.new_zeros(size) if bias is None else bias.expand(size)
        for bias, size, item in zip(biases, sizes, items, strict=True)
    ]
    return stacked(tables)


def stacked(tables: Sequence[Tensor]) -> Tensor:
    """Concatenate tables (..., Q, K) along the queries; keys that did not exist yet get 0.

    Example:
        >>> stacked([torch.ones(1, 1), torch.ones(1, 2)])
        tensor([[1., 0.],
                [1., 1.]])
    """
    keys = max(table.shape[-1] for table in tables)
    return torch.cat([F.pad(table, (0, keys - table.shape[-1])) for table in tables], -2)


def _states(states: Sequence[RowState | None]) -> RowState | None:
    present = [state for state in states if state is not None]
    if len(present) < len(states):
        return None
    # The rows of one scene; which key won among those of each call is of no use here.
    return RowState(present[0].kind, torch.cat([state.value for state in present], -1))


def _without_padding(item: CallItem, queries: int | None, keys: int | None) -> CallItem:
    """Drop the positions after the tokens: the padding of a batch, to which nothing attends."""
    (heads, all_queries, _), all_keys = item.query.shape, item.key.shape[1]
    queries = all_queries if queries is None else min(queries, all_queries)
    keys = all_keys if keys is None else min(keys, all_keys)
    if (queries, keys) == (all_queries, all_keys):
        return item
    options = dict(item.options)
    mask, bias = options.get("mask"), options.get("bias")
    visible = None if mask is None else matrix(mask, all_queries, all_keys, (heads,))[:, :queries]
    if keys < all_keys and (visible is None or bool(visible[..., keys:].any())):
        got, hint = f"{keys} for {all_keys} positions that receive attention", "Give one token per position."
        raise ShapeError("tokens", "one token per position", got, hint)
    if visible is not None and not isinstance(mask, Lengths):
        options["mask"] = dense(visible[..., :keys])
    if isinstance(bias, Tensor):
        options["bias"] = part(bias, slice(queries), slice(keys))
    state = None if item.state is None else item.state.map(lambda x: x[:, :queries])
    return CallItem(item.query[:, :queries], item.key[:, :keys], item.value[:, :keys], options, state)
