"""One pass of a recording, and questions about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.decode.protocol import Hypothesis
from qkv.errors import ConfigError, ShapeError, nearest
from qkv.introspect.lazy_map import AttentionMap, map_of
from qkv.introspect.statistics import Statistics
from qkv.recording.calls import RecordedCall
from qkv.recording.lineage import Lineage
from qkv.recording.position_names import position_names
from qkv.recording.projections import LayerProjections
from qkv.recording.scenes import CallRow, scene_of, sides_of, stacked
from qkv.view.scene import Scene


class TokenNames(Protocol):
    """What names token ids; the tokenizers of `transformers` do."""

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Return the tokens of some ids."""


@final
@dataclass(frozen=True, eq=False)
class Setup:
    """What is known of the recorded model.

    Attributes:
        layers: the names of the recorded layers, their paths in the model.
        heads: the heads to show; None for all.
        surroundings: the projections around each layer, if it has any.
        groups: for layers of `transformers`, the path of the innermost model that contains them.
        tokenizer: names token ids.
        configs: configurations of models, by their paths.
    """

    layers: list[str] = field(default_factory=list)
    heads: tuple[int, ...] | None = None
    surroundings: dict[str, LayerProjections] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    tokenizer: TokenNames | None = None
    configs: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Pass:
    """What a model ran over one batch from its first position on: one forward pass, or one generation with a cache.

    Args:
        calls: by the name of the layer, in order.
        lineage: where the rows of the batch came from.
        thread: the thread that ran it: 0 for the one that opened the recording, then 1, 2, … as they came.
        step: how many passes of the same generation came before; without a cache each step is a pass.
        setup: what is known of the model.
    """

    calls: dict[str, list[RecordedCall]] = field(default_factory=dict)
    lineage: Lineage = field(default_factory=Lineage)
    thread: int = 0
    step: int = 0
    setup: Setup = field(default_factory=Setup)

    def __repr__(self) -> str:
        """Return one line: how many layers ran how often, without their tensors."""
        calls = sum(map(len, self.calls.values()))
        return f"Pass({calls:,} calls of {len(self.calls):,} layers, thread {self.thread})"

    @property
    def layers(self) -> list[str]:
        """The names of the layers that ran."""
        return [layer for layer in self.setup.layers if self.calls.get(layer)]

    def weights(self, layer: str) -> Tensor:
        """Return the weights of a layer; see `Trace.weights`."""
        parts = [self._of_heads(call.weights(), layer) for call in self.calls_of(layer)]
        self._check_rows(layer, [part.shape[:-2] for part in parts])
        return stacked(parts)

    def statistics(
        self, layer: str, *names: Literal["received", "entropy", "peak", "total"], topk: int = 0
    ) -> Statistics:
        """Return statistics of the weights of a layer; see `Trace.statistics`."""
        calls = self.calls_of(layer)
        parts = [_map(call).statistics(*names, topk=topk) for call in calls]
        self._check_rows(layer, [call.query.shape[:-2] for call in calls])
        keys = max(call.key.shape[-2] for call in calls)
        statistics: dict[str, Tensor | None] = {}
        for name in ("received", "entropy", "peak", "total", "weights", "keys"):
            tensors = [x for x in (getattr(part, name) for part in parts) if x is not None]
            statistics[name] = (
                None if not tensors else self._rows_of_heads(_joined_statistic(name, tensors, keys), name, layer)
            )
        errors = [part.error for part in parts if part.error is not None]
        return Statistics(**statistics, error=max(errors) if errors else None)

    def alignment(self, layer: str, row: int = 0, *, hypothesis: Hypothesis | None = None) -> Tensor:
        """Return the weights of one row of the batch, step by step; see `Trace.alignment`."""
        parts = self._parts(layer, row, hypothesis)
        weights = stacked([self._of_heads(call.weights(), layer)[index] for call, index, _ in parts])
        return weights.flatten(0, -3).mean(0) if weights.ndim > 2 else weights

    def scene(
        self,
        row: int = 0,
        tokens: Mapping[str, Sequence[str]] | None = None,
        *,
        title: str = "attention",
        hypothesis: Hypothesis | None = None,
        notes: Mapping[str, Sequence[str]] | None = None,
    ) -> Scene:
        """Return everything recorded for one row, for the viewer; see `Trace.scene`."""
        parts = self.parts(row, hypothesis)
        sides = sides_of(parts, self.setup.groups)
        named = self.tokens(parts) if tokens is None else tokens
        return scene_of(parts, sides, self.setup.surroundings, named, notes or {}, title)

    def parts(self, row: int, hypothesis: Hypothesis | None = None) -> dict[str, list[CallRow]]:
        """Return the calls of each layer that include a row, and its index in each.

        Raises:
            ShapeError: there is no such row.
        """
        return {layer: self._parts(layer, row, hypothesis) for layer in self.layers}

    def tokens(self, parts: Mapping[str, Sequence[CallRow]]) -> dict[str, tuple[str, ...]]:
        """Return the tokens of the ids that the model was given, and the names of other positions, if known."""
        sides, tokens = sides_of(parts, self.setup.groups), dict[str, tuple[str, ...]]()
        tokenizer = self.setup.tokenizer
        for layer, call_rows in parts.items():
            name = sides[layer][0]
            if tokenizer is not None and name not in tokens and (ids := list(_ids(call_rows))):
                tokens[name] = tuple(map(str, tokenizer.convert_ids_to_tokens(ids)))
        for layer, call_rows in parts.items():
            name, config = sides[layer][0], self.setup.configs.get(self.setup.groups.get(layer, ""))
            if config is not None and name not in tokens and len(call_rows) == 1:
                names = position_names(config, call_rows[0].call.query.shape[-2])
                tokens |= {} if names is None else {name: names}
        return tokens

    def _parts(self, layer: str, row: int, hypothesis: Hypothesis | None) -> list[CallRow]:
        """Return the calls that include a row, and its index in each."""
        calls, path = self.calls_of(layer), None
        if hypothesis is not None and hypothesis.row is not None:
            steps = len(hypothesis.log_probabilities) - self.step
            # Modules that ran once, before the first step, have the rows of the source.
            path = self.lineage.path(calls[steps - 1].moment, hypothesis.row) if 0 < steps <= len(calls) else {}
            calls = calls[: max(steps, 1)]
        parts = []
        for call in calls:
            row_of_call = self._row(call.moment, row, path)
            if row_of_call is None:
                continue
            source = row_of_call if call.inputs is None else self._row(call.inputs.moment, row, path)
            one, item = _call_of_row(call, row_of_call, self.lineage.rows(call.moment))
            if item < call.query.shape[0]:
                parts.append(CallRow(one, item, item if one is not call and call.self_attention else source))
        if not parts:
            hint = "Rows count from 0, in the order of the batch."
            raise ShapeError("row", f"a row that ran through {layer}", str(row), hint)
        return parts

    def _row(self, moment: int, row: int, path: Mapping[int, int] | None) -> int | None:
        """Return the position of a row of the batch at a moment."""
        rows = self.lineage.rows(moment)
        if rows is None:
            return row if row >= 0 else None
        rows_of_root = [index for index, root in enumerate(rows) if root == row]
        if path is not None:
            on_path = path.get(moment, row)
            if on_path not in rows_of_root:
                hint = "Give the row of the batch to which the hypothesis belongs."
                raise ShapeError("hypothesis", f"one of row {row}", "one of a different row", hint)
            return on_path
        if len(rows_of_root) > 1:
            hint = "Select one hypothesis of the beam, or one sample: hypothesis=found."
            got = f"row {row}, {len(rows_of_root)} times"
            raise ShapeError("row", "a row that occurs once in the batch", got, hint)
        return rows_of_root[0] if rows_of_root else None

    def calls_of(self, layer: str) -> list[RecordedCall]:
        """Return the calls of a layer.

        Raises:
            ConfigError: the layer was not recorded or did not run.
        """
        if not self.calls.get(layer):
            ran = layer in self.setup.layers
            hint = "Run the model inside the `with` block." if ran else nearest(layer, self.setup.layers)
            if ran and self.calls:
                hint = "This pass did not run it; others may have: see trace.passes, and reading=."
            raise ConfigError("layer", "a recorded layer that ran", repr(layer), hint)
        return self.calls[layer]

    def _check_rows(self, layer: str, leading: Sequence[Sequence[int]]) -> None:
        if len(set(map(tuple, leading))) > 1:
            expected, got = "the same rows in all calls", "rows that left the batch"
            raise ShapeError(layer, expected, got, "Request one row: trace.alignment(layer, row).")

    def _of_heads(self, weights: Tensor, layer: str) -> Tensor:
        heads = self._heads(layer, weights.shape[-3] if weights.ndim > 3 else 0)
        return weights if heads is None else weights[..., heads, :, :]

    def _rows_of_heads(self, tensor: Tensor, name: str, layer: str) -> Tensor:
        dimension = 2 if name in ("weights", "keys") else 1
        heads = self._heads(layer, tensor.shape[-dimension - 1] if tensor.ndim > dimension + 1 else 0)
        return (
            tensor if heads is None else tensor.index_select(-dimension - 1, torch.tensor(heads, device=tensor.device))
        )

    def _heads(self, layer: str, count: int) -> list[int] | None:
        """Return the heads to show of a layer with so many; None for all."""
        heads = self.setup.heads
        if heads is None:
            return None
        if not all(0 <= head < count for head in heads):
            expected = f"heads from 0 to {count - 1} of {layer}" if count else f"None: {layer} has no heads"
            raise ConfigError("heads", expected, str(heads), "None shows all heads.")
        return list(heads)


def _map(call: RecordedCall) -> AttentionMap:
    call.check()
    return map_of(call.query, call.key, call.arguments, call.state)


def _ids(parts: Sequence[CallRow]) -> Iterator[int]:
    """Yield the token ids of one row over its calls; none if some are unknown."""
    rows = [None if call.ids is None or index >= len(call.ids) else call.ids[index] for call, index, _ in parts]
    if all(ids is not None and len(ids) == part.call.query.shape[-2] for ids, part in zip(rows, parts, strict=True)):
        for ids in rows:
            yield from () if ids is None else ids.tolist()


def _call_of_row(call: RecordedCall, index: int, rows: Sequence[int] | None) -> tuple[RecordedCall, int]:
    """Return the call of one row and its item: in a beam, W rows that share a source are W queries of one item."""
    items = call.query.shape[0]
    if rows is None or not 0 < items < len(rows) or len(rows) % items:
        return call, index
    width = len(rows) // items
    return call.of_query(index % width, index // width), index // width


def _joined_statistic(name: str, parts: Sequence[Tensor], keys: int) -> Tensor:
    """Join a statistic over calls: sums of each key are added, numbers of each query concatenated."""
    if name == "received":
        return torch.stack([F.pad(part, (0, keys - part.shape[-1])) for part in parts]).sum(0)
    return torch.cat(list(parts), -2 if name in ("weights", "keys") else -1)
