"""Dividing the forward passes of a model into recorded passes, thread by thread.

A forward pass is one run of the model. A recorded pass (`Pass`) joins those that continue one text with a cache.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

from torch import Tensor, nn
from torch.nn import functional as F

from qkv.recording.calls import RecordedCall
from qkv.recording.key_value_buffer import KeyValueBuffer, same_numbers, with_hidden_keys
from qkv.recording.lineage import Lineage, Moment
from qkv.recording.origins import Position, length_of, unknown_cache
from qkv.recording.passes import Pass, Setup

_MOST_OPEN = 8
"""Passes that a thread may continue in turn, as a program does that extends several texts, each with its cache."""


class LayerCall(NamedTuple):
    """A call of a layer."""

    layer: str
    call: RecordedCall


@final
@dataclass(eq=False)
class ForwardPass:
    """The calls of one forward pass of the recorded model, or of a part of it that runs alone.

    Attributes:
        root: identifies the forward pass of the whole model; None if only a part of it ran.
        layer_calls: the calls, in order.
    """

    root: object | None
    layer_calls: list[LayerCall] = field(default_factory=list)

    def calls(self, layer: str) -> list[RecordedCall]:
        """Return the calls of one layer."""
        return [call for name, call in self.layer_calls if name == layer]


@final
class OpenPass:
    """A recorded pass that later forward passes may continue.

    A forward pass continues it if its cache holds the positions recorded so far, if it attends to the same keys with
    further queries, or if its layers are not in it yet, nor a forward pass of the whole model.

    Args:
        recorded: the pass.
    """

    def __init__(self, recorded: Pass) -> None:
        self.recorded = recorded
        self.root: object | None = None
        self._buffers: dict[str, KeyValueBuffer] = {}
        for layer, calls in recorded.calls.items():
            if calls[-1].start is not None:
                self._buffers[layer] = KeyValueBuffer()
                self._buffers[layer].keep(calls[-1].key, calls[-1].value, calls[-1].query.shape[-2])

    @property
    def calls(self) -> dict[str, list[RecordedCall]]:
        """The calls so far."""
        return self.recorded.calls

    def select(self, rows: Tensor) -> None:
        """Select rows of the batch, as a beam search does with its cache."""
        for buffer in self._buffers.values():
            buffer.select(rows)

    def add(self, forward: ForwardPass) -> None:
        """Append the calls of a forward pass."""
        self.root = forward.root or self.root
        for layer, call in forward.layer_calls:
            self.calls.setdefault(layer, []).append(self._sharing_memory(layer, call))

    def accepts(self, forward: ForwardPass) -> bool:
        """Return whether a forward pass is of another part of the model: none of its layers is recorded yet."""
        both_whole_model = forward.root is not None and self.root is not None and forward.root is not self.root
        return not both_whole_model and not any(layer in self.calls for layer, _ in forward.layer_calls)

    def continued_at(self, forward: ForwardPass, generation: bool) -> int | None:
        """Return the position at which a forward pass continues this one; −1 for new queries only; None for neither.

        Args:
            forward: the forward pass.
            generation: whether both belong to one generation, whose cache is known to be its own.
        """
        firsts: dict[str, RecordedCall] = dict(reversed(forward.layer_calls))
        repeated = {layer: call for layer, call in firsts.items() if layer in self.calls}
        later = {layer: call for layer, call in repeated.items() if call.start != 0} or repeated
        if not later or not all(self._follows(layer, call, generation) for layer, call in later.items()):
            return None
        return min((call.start for call in later.values() if call.start is not None), default=-1)

    def restarted(self, forward: ForwardPass) -> set[str]:
        """Return the layers that begin again in a forward pass, such as those that read another image."""
        return {layer for layer, call in forward.layer_calls if call.start == 0 and layer in self.calls}

    def end(self, layer: str) -> int:
        """Return the position after the last query of a layer."""
        last = self.calls[layer][-1]
        return (last.start or 0) + last.query.shape[-2]

    def grows_into(self, layer: str, call: RecordedCall) -> bool:
        """Return whether a call has the keys of this pass, and further queries: what a cache gives."""
        calls = self.calls.get(layer)
        return calls is not None and not _repeats(calls[0], call) and grows(calls[-1], call)

    def _follows(self, layer: str, call: RecordedCall, generation: bool) -> bool:
        last, (queries, keys) = self.calls[layer][-1], _lengths(call)
        if call.start is None:
            return not (call.self_attention and queries == keys) and self.grows_into(layer, call)
        if last.start is None:
            return False
        longest = max(self.end(name) for name, calls in self.calls.items() if calls[-1].start is not None)
        if not 0 < call.start <= (longest if generation else self.end(layer)):
            return False
        if generation:
            return True
        if call.self_attention and keys <= call.start + queries:
            return layer in self._buffers and self._buffers[layer].continues(call.key, queries, call.start)
        return call.self_attention or same_numbers(call.key, last.key)

    def cut(self, position: int, layers: Collection[str]) -> None:
        """Drop the queries from a position on, which a cache has dropped: drafts that were rejected.

        Args:
            position: the position.
            layers: those that count positions by this cache.
        """
        for layer in [layer for layer in self.calls if layer in layers]:
            self.calls[layer] = first_positions(self.calls[layer], position)
            if layer in self._buffers and self.calls[layer] and self.calls[layer][-1].self_attention:
                self._buffers[layer].crop(position)
            if not self.calls[layer]:
                del self.calls[layer]

    def _sharing_memory(self, layer: str, call: RecordedCall) -> RecordedCall:
        """Return a call whose keys and values are in memory shared with earlier calls that they continue."""
        if layer not in self._buffers:
            call = _from_first_key(call)
        queries, keys = _lengths(call)
        if call.start is None or (call.self_attention and keys > call.start + queries) or not call.unchanged:
            return call  # a cache of fixed size is written in place
        buffer = self._buffers.setdefault(layer, KeyValueBuffer())
        stored = buffer.keep(call.key, call.value, queries, call.start if call.self_attention else None)
        options = with_hidden_keys(dict(call.options), stored.dropped, queries, keys)
        # Keys that do not continue those that are stored keep their positions too.
        return _from_first_key(replace(call, key=stored.key, value=stored.value, options=options))


def _from_first_key(call: RecordedCall) -> RecordedCall:
    """Return a call with hidden keys of 0 in place of those that a window dropped, before or in the recording."""
    queries, keys = _lengths(call)
    missing = 0 if call.start is None else call.start + queries - keys
    if not call.self_attention or missing <= 0:
        return call
    options = with_hidden_keys(dict(call.options), missing, queries, keys)
    key, value = (F.pad(x, (0, 0, missing, 0)) for x in (call.key, call.value))
    return replace(call, key=key, value=value, options=options)


def _lengths(call: RecordedCall) -> tuple[int, int]:
    """Return the number of queries and of keys."""
    return call.query.shape[-2], call.key.shape[-2]


def first_positions(calls: Sequence[RecordedCall], position: int) -> list[RecordedCall]:
    """Return calls without the queries from a position on."""
    first = []
    for call in calls:
        count = call.query.shape[-2] if call.start is None else min(position - call.start, call.query.shape[-2])
        if count > 0:
            first.append(call if count == call.query.shape[-2] else call.first(count))
    return first


def grows(last: RecordedCall, call: RecordedCall) -> bool:
    """Return whether a call sees the keys of another one, and maybe more after them."""
    count = last.key.shape[-2]
    if call.key is last.key:
        return True
    return call.key.shape[-2] >= count and same_numbers(call.key[..., :count, :], last.key)


def _repeats(first: RecordedCall, call: RecordedCall) -> bool:
    """Return whether a call begins with the queries of another one, as a decoder without a cache does."""
    count = min(first.query.shape[-2], call.query.shape[-2])
    return same_numbers(first.query[..., :count, :], call.query[..., :count, :])


@final
@dataclass(eq=False)
class _Context:
    """A generation, or the forward passes outside of any.

    Attributes:
        generation: whether it is a generation of another library.
        lineage: the rows of its batch.
        open: its passes that can still be continued, the latest one at the end.
        caches: by the path of a model, its cache.
        steps: how many passes it has.
    """

    generation: bool = False
    lineage: Lineage = field(default_factory=Lineage)
    open: deque[OpenPass] = field(default_factory=lambda: deque(maxlen=_MOST_OPEN))
    caches: dict[str, Any] = field(default_factory=dict)
    steps: int = 0


@final
class PassDivider:
    """Divides the forward passes of one thread into recorded passes.

    Args:
        number: the number of the thread.
        setup: what is known of the model.
        passes: collects the passes of all threads, the one continued last at the end.
        lock: guards them.
    """

    def __init__(self, number: int, setup: Setup, passes: list[Pass], lock: threading.Lock) -> None:
        self.number, self._setup, self._passes, self._lock = number, setup, passes, lock
        self._contexts = [_Context()]
        self._running: list[nn.Module] = []
        self._forward: ForwardPass | None = None
        self._positions: dict[str, Position] = {}

    @property
    def moment(self) -> int:
        """Index of the last change of the batch."""
        return self._contexts[-1].lineage.now

    def enter(self, module: nn.Module, root: bool) -> None:
        """Note that the model, or a model of `transformers` inside, begins to run."""
        if root:
            self.close()  # if its last pass was interrupted
            self._running.clear()
        if not self._running:
            self._forward = ForwardPass(object() if root else None)
            self._positions.clear()
        self._running.append(module)

    def locate(self, group: str, position: Position) -> None:
        """Note the position at which a model of `transformers` begins; the second time, a new forward pass begins."""
        self._positions[group] = position
        self._contexts[-1].caches[group] = position.cache
        if self._forward is not None and any(
            self._setup.groups.get(layer) == group for layer, _ in self._forward.layer_calls
        ):
            self._reopen()

    def leave(self, root: bool) -> None:
        """Note the end of a run that `enter` noted, even if it failed."""
        if self._running:
            self._running.pop()
        if not self._running:
            self.close()
            context = self._contexts[-1]
            if root and not context.generation and context.lineage.moments:
                context.lineage = Lineage()  # a later part that runs alone has a batch of its own

    def check_cache(self, layer: str, call: RecordedCall, objects: Sequence[str]) -> None:
        """Check a call whose module did not project all of its keys: they come from a cache, which must be known.

        Args:
            layer: the layer.
            call: the call.
            objects: the arguments of its module that can hold a cache.

        Raises:
            UnsupportedError: no argument of the model is known as a cache, but one of them can be one, or the keys
                continue those of an earlier pass.
        """
        position, (queries, keys) = self._positions.get(self._setup.groups.get(layer, "")), _lengths(call)
        if position is None or position.cache is not None or not call.self_attention or keys <= queries:
            return
        if position.objects or any(earlier.grows_into(layer, call) for earlier in self._contexts[-1].open):
            inner = [f"{name} in {layer}" for name in objects]
            raise unknown_cache(layer, queries, keys, position.objects or [*inner, *position.names])

    def add(self, layer: str, call: RecordedCall) -> None:
        """Note a call of a layer."""
        position = self._positions.get(self._setup.groups.get(layer, ""))
        if position is not None and self._running:
            call = replace(call, start=position.start, ids=position.ids)
        is_single_call = self._forward is None
        forward = self._forward = self._forward or ForwardPass(None)
        forward.layer_calls.append(LayerCall(self._numbered(layer, call, forward), call))
        if is_single_call:
            self.close()

    def follow(self, module: nn.Module, arguments: tuple[Tensor, ...], options: dict[str, Any], rows: Tensor) -> None:
        """Note what happens to the rows of the batch: a forward hook of `BatchRows`."""
        if options.get("end", False):
            self._reopen()
            self._finish()
        elif options.get("start", False):
            self._reopen()
            if not rows.numel():
                self._contexts.append(_Context(generation=True))
                return
            context = self._contexts[-1]
            context.lineage, context.steps = Lineage([Moment(rows, True)]), 0
            context.open.clear()
            context.caches.clear()
        elif (context := self._contexts[-1]).lineage.moments:
            context.lineage.moments.append(Moment(rows, False))
            for open_pass in context.open:
                open_pass.select(rows)

    def close(self) -> None:
        """Add the calls of the forward pass to the recorded pass that it continues, or to a new one."""
        forward, self._forward = self._forward, None
        if forward is None or not forward.layer_calls:
            return
        context = self._contexts[-1]
        current = self._continued(context, forward) or self._new_pass(context, forward)
        current.add(forward)
        context.open.remove(current)
        context.open.append(current)
        with self._lock:
            if not self._passes or self._passes[-1] is not current.recorded:
                if current.recorded in self._passes:
                    self._passes.remove(current.recorded)
                self._passes.append(current.recorded)

    def _reopen(self) -> None:
        """Close this part of a forward pass, and record the rest as if it were another one."""
        root = None if self._forward is None else self._forward.root
        self.close()
        self._forward = ForwardPass(root) if self._running else None

    def _finish(self) -> None:
        """End a generation, whose cache may have dropped the drafts of its last step."""
        if len(self._contexts) == 1:
            return  # it began before the recording
        context = self._contexts.pop()
        for group, cache in context.caches.items():
            if context.open and cache is not None and (length := length_of(cache)):
                layers = {layer for layer, path in self._setup.groups.items() if path == group}
                context.open[-1].cut(length, layers)

    def _numbered(self, layer: str, call: RecordedCall, forward: ForwardPass) -> str:
        """Return the name of a layer, with #2, #3, … if it is called again without continuing its earlier calls."""
        count, name = 1, layer
        while True:
            earlier = forward.calls(name)
            if not earlier:
                break
            of_transformers = layer in self._setup.groups
            if (
                not of_transformers
                and not (call.self_attention and call.query.shape[-2] == call.key.shape[-2])
                and grows(earlier[-1], call)
            ):
                break
            count += 1
            name = f"{layer}#{count}"
        if name not in self._setup.layers:
            with self._lock:
                self._setup.layers.append(name)
                if layer in self._setup.groups:
                    self._setup.groups[name] = self._setup.groups[layer]
        return name

    def _continued(self, context: _Context, forward: ForwardPass) -> OpenPass | None:
        """Return the pass to continue, without the positions that are replaced; None if a new one begins."""
        last = context.open[-1] if context.open else None
        if last is not None and context.lineage.moments and not context.generation:
            return last  # our own models say themselves where a batch begins
        for candidate in reversed(context.open):
            position = candidate.continued_at(forward, context.generation)
            if position is not None:
                return self._branch(context, candidate, forward, position)
        return last if last is not None and last.accepts(forward) else None

    def _branch(self, context: _Context, candidate: OpenPass, forward: ForwardPass, position: int) -> OpenPass:
        """Return the pass to continue at a position: the candidate, or a new one with its first calls."""
        groups = {self._setup.groups.get(layer) for layer, call in forward.layer_calls if call.start == position}

        def in_group(layer: str) -> bool:
            return self._setup.groups.get(layer) in groups

        restarted = candidate.restarted(forward)
        goes_back = position >= 0 and any(
            candidate.end(layer) > position for layer in filter(in_group, candidate.calls)
        )
        if context.generation and goes_back:
            candidate.cut(position, set(filter(in_group, candidate.calls)))
        elif goes_back or restarted:
            # Another continuation of the same first positions: both passes stay.
            calls = {
                layer: first_positions(calls, position) if in_group(layer) else list(calls)
                for layer, calls in candidate.calls.items()
                if layer not in restarted
            }
            shared = {layer: calls for layer, calls in calls.items() if calls}
            return self._opened(context, shared, candidate.recorded.lineage)
        return candidate

    def _new_pass(self, context: _Context, forward: ForwardPass) -> OpenPass:
        """Return a new pass; it shares the calls of modules that run once for several passes, such as an encoder."""
        calls: dict[str, list[RecordedCall]] = {}
        last = context.open[-1] if context.open else None
        if last is not None and last.recorded.lineage is context.lineage:
            crossing = [
                (layer, call) for layer, call in forward.layer_calls if not call.self_attention and layer in last.calls
            ]
            same_keys = crossing and all(same_numbers(call.key, last.calls[layer][-1].key) for layer, call in crossing)
            if context.generation or same_keys:
                run_groups = {self._setup.groups.get(layer) for layer, _ in forward.layer_calls}
                calls = {
                    layer: list(recorded)
                    for layer, recorded in last.calls.items()
                    if self._setup.groups.get(layer) not in run_groups and layer in self._setup.groups
                }
        return self._opened(context, calls, context.lineage)

    def _opened(self, context: _Context, calls: Mapping[str, list[RecordedCall]], lineage: Lineage) -> OpenPass:
        """Open a pass with the calls that it shares with others."""
        recorded = Pass(dict(calls), lineage, self.number, context.steps, self._setup)
        context.steps += 1 if context.generation else 0
        opened = OpenPass(recorded)
        context.open.append(opened)
        return opened
