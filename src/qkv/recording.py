"""What a running model attends to, kept by hooks on its one seam while it runs on its fast path."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ConfigError, ShapeError, complaint, nearest
from qkv.functional import attention_with_weights
from qkv.nn.attention import Attention
from qkv.nn.cache import Rows


@final
@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attention: what it was given, detached.

    Args:
        query, key, value: as the layer was given them.
        options: score, normalizer, mask, bias and enable_gqa, where given.
        rows: for each row of the call its row in the batch that was read last (B,); None where the model says nothing
            of rows.
        reading: how many batches had been read before that one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]
    rows: Tensor | None = None
    reading: int = 0

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The weights (..., Q, K) that this call applied, dropout aside.

        Parameters of the score are not copied: read the weights before an optimizer changes them.
        """
        # Weights do not depend on values: one column is enough to ask for them.
        column = self.value[..., :1] if self.value.shape[-1] else self.value
        return attention_with_weights(self.query, self.key, column, **self.options)[1]


@final
@dataclass(frozen=True, eq=False)
class Trace:
    """What was recorded: for each layer its calls, in order.

    Args:
        calls: by the name of the layer, its path in the model.
        heads: the heads to show; None for all.
    """

    calls: dict[str, list[Call]] = field(default_factory=dict)
    heads: tuple[int, ...] | None = None

    @property
    def layers(self) -> list[str]:
        """The names of the recorded layers."""
        return list(self.calls)

    def weights(self, layer: str) -> Tensor:
        """The weights of a layer, queries of all its calls one after another.

        A decoder that attends once per step has called the layer once per target token: the steps are gathered. Where
        keys grew from step to step, as in self-attention with a cache, keys that were not there yet have weight 0.

        Args:
            layer: its path in the model.

        Returns:
            (..., Q, K), Q counted over the calls; of the heads asked for.

        Raises:
            ConfigError: the layer was not recorded, or was not run; or it lacks a head.
            ShapeError: rows left the batch between calls.
        """
        parts = [self._of_heads(call.weights(), layer) for call in self._calls(layer)]
        if len({part.shape[:-2] for part in parts}) > 1:
            expected, got = "the same rows in all calls", "rows that left the batch"
            raise ShapeError(complaint(layer, expected, got, "Ask for one row: trace.alignment(layer, row)."))
        return _joined(parts)

    def alignment(self, layer: str, row: int = 0, *, reading: int = -1) -> Tensor:
        """What one row of a batch attended to, step by step, also while other rows leave or are reordered.

        Args:
            layer: its path in the model.
            row: counted in the batch as it was read.
            reading: which batch, where several were read one after another; the last by default.

        Returns:
            (T, S): the mean over the heads asked for.

        Raises:
            ConfigError: the layer was not recorded, or was not run; or it lacks a head.
            ShapeError: there is no such row, or it was there more than once, as in a beam.
        """
        calls = self._calls(layer)
        wanted = calls[-1].reading + 1 + reading if reading < 0 else reading
        places = [(call, _place(call, row)) for call in calls if call.reading == wanted]
        parts = [self._of_heads(call.weights(), layer)[place] for call, place in places if place is not None]
        if not parts:
            mend = "Rows count from 0, in the order of the batch."
            raise ShapeError(complaint("row", f"a row that ran through {layer}", str(row), mend))
        weights = _joined(parts)
        return weights.flatten(0, -3).mean(0) if weights.ndim > 2 else weights

    def _calls(self, layer: str) -> list[Call]:
        if not self.calls.get(layer):
            mend = "Run the model inside the `with` block." if layer in self.calls else nearest(layer, self.calls)
            raise ConfigError(complaint("layer", "a recorded layer that was run", repr(layer), mend))
        return self.calls[layer]

    def _of_heads(self, weights: Tensor, layer: str) -> Tensor:
        if self.heads is None:
            return weights
        count = weights.shape[-3] if weights.ndim > 3 else 0
        if not all(0 <= head < count for head in self.heads):
            expected = f"heads from 0 to {count - 1} of {layer}" if count else f"None: {layer} has no heads"
            raise ConfigError(complaint("heads", expected, str(self.heads), "None shows all there are."))
        return weights[..., list(self.heads), :, :]


@contextmanager
def record(
    model: nn.Module, layers: Sequence[str] | None = None, heads: Sequence[int] | None = None
) -> Iterator[Trace]:
    """Record what a model attends to.

    Args:
        model: any module whose attentions are `qkv.nn.Attention`.
        layers: paths of the attentions to record, or of modules that hold some; None for all.
        heads: which heads to show; None for all.

    Returns:
        A context that gives the trace; no bit of the model's output changes, and nothing of it stays behind.

    Raises:
        ConfigError: a layer that the model does not have.

    Example:
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> model = MultiHeadAttention(8, 2)
        >>> with record(model) as trace:
        ...     output = model(torch.randn(1, 3, 8))
        >>> trace.layers, trace.weights("attention").shape, trace.alignment("attention").shape
        (['attention'], torch.Size([1, 2, 3, 3]), torch.Size([3, 3]))
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    chosen = {name: found[name] for name in _chosen(found, layers)}
    trace = Trace({name: [] for name in chosen}, None if heads is None else tuple(heads))
    follower = _Follower()
    hooks = [
        module.register_forward_hook(_keeper(trace.calls[name], follower), with_kwargs=True)
        for name, module in chosen.items()
    ]
    hooks += [
        module.register_forward_hook(follower.follow, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, Rows)
    ]
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


@final
class _Follower:
    """Where the rows of the batch being decoded come from."""

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.reading = 0

    def follow(self, module: nn.Module, given: tuple[Tensor, ...], options: dict[str, Any], rows: Tensor) -> None:
        """A batch is read, or loses or reorders rows."""
        if options.get("start", False):
            self.reading += self.rows is not None
            self.rows = rows
        elif self.rows is not None:
            self.rows = self.rows[rows]


def _keeper(calls: list[Call], follower: _Follower) -> Any:
    def hook(module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any], output: Tensor) -> None:
        named = dict(zip(("query", "key", "value"), tensors, strict=False)) | options
        query, key, value = (named.pop(name).detach() for name in ("query", "key", "value"))
        given = {name: option for name, option in named.items() if name != "generator" and option is not None}
        own = {"score": module.score, "normalizer": module.normalizer}
        given = {name: option for name, option in own.items() if option is not None} | given
        calls.append(Call(query, key, value, given, follower.rows, follower.reading))

    return hook


def _chosen(found: dict[str, Attention], layers: Sequence[str] | None) -> list[str]:
    """The attentions that are named, or that lie inside a module that is named; in the order of the model."""
    for layer in layers or ():
        if not any(_inside(name, layer) for name in found):
            raise ConfigError(complaint("layers", "names of attention layers", repr(layer), nearest(layer, found)))
    return [name for name in found if layers is None or any(_inside(name, layer) for layer in layers)]


def _inside(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _place(call: Call, row: int) -> int | None:
    """Where a row of the batch stands in a call."""
    if call.rows is None:
        return row if 0 <= row < call.query.shape[0] else None
    places = (call.rows == row).nonzero().flatten().tolist()
    if len(places) > 1:
        mend = "Decode the chosen sequence once more by itself, for example with `forced`, and record that."
        raise ShapeError(complaint("row", "a row that is in the batch once", f"row {row}, {len(places)} times", mend))
    return int(places[0]) if places else None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after another along the queries, keys that were not there yet with weight 0."""
    keys = max(part.shape[-1] for part in parts)
    return torch.cat([F.pad(part, (0, keys - part.shape[-1])) for part in parts], -2)
