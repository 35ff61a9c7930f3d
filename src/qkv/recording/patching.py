"""Changing what single heads of a model compute, by hooks on `nn.Attention`, while the fast kernels run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from qkv.errors import ConfigError, ShapeError, UnsupportedError, expect_name, nearest
from qkv.functional import attention, attention_with_weights
from qkv.masks.base import Grid, Mask, as_mask
from qkv.nn.attention import SEAM, Attention
from qkv.nn.projections import projections_of_torch
from qkv.normalizers.row_state import RowState
from qkv.recording.calls import RecordedCall, inputs_of_torch_layer
from qkv.recording.checks import check_any, check_arguments, check_torch_layer
from qkv.recording.hooks import PerThread
from qkv.recording.key_value_buffer import same_numbers
from qkv.recording.origins import position_of
from qkv.recording.passes import Pass
from qkv.recording.recorder import layers_of, parent_of, refuse_compiled, without_fast_path
from qkv.recording.row_states import ROUNDED
from qkv.recording.trace import Trace
from qkv.shapes import show
from qkv.values.hooks import is_step
from qkv.view.scene import OPTIONS

Source: TypeAlias = Trace | Pass | Tensor | Callable[[Tensor], Tensor]
Mechanism: TypeAlias = Mapping[str, Any]
"""Some of score, normalizer, mask and bias, by name."""
Change: TypeAlias = (
    Literal["zero"]
    | Mask
    | Tensor
    | tuple[Literal["mean", "output", "weights"], Source]
    | tuple[Literal["mechanism"], Mechanism | Callable[[Mechanism], Mechanism]]
)
"""What happens to a head: see `patch`."""
Changes: TypeAlias = Mapping[str, Change | Mapping[int, Change]]
_FORMS = '"zero", ("mean", trace), ("output", …), ("weights", …), ("mechanism", …) or a mask'
_PARTS = ("score", "normalizer", "mask", "bias")
_STRIPE = 256
"""Rows of a mask that are read at a time."""


@contextmanager
def patch(model: nn.Module, changes: Changes) -> Iterator[None]:
    """Change what single heads compute, until the block ends.

    The other heads keep their bits, the fast kernels stay on, and gradients are those of the changed model. Blocks can
    be nested: the inner change of a head acts on what the outer one left. The model is as before when the block ends,
    also after an error. A backward pass that repeats forward passes (gradient checkpointing) belongs inside the block.

    Args:
        model: any module that `qkv.record` can record: one whose attentions are `qkv.nn.Attention` or
            `torch.nn.MultiheadAttention`, or a model of `transformers` after `qkv.hub.attach`.
        changes: by the name of a layer, its path in the model as `trace.layers` lists it, what happens to its heads: a
            change for each head by its number, or one change for all. A change is

            - `"zero"`: the head's output is 0;
            - `("mean", trace)`: its output is one vector, the mean over the texts and positions of that pass. Positions
              that see no key, or in self-attention are seen by no query, are padding and left out;
            - `("output", trace)`, `("weights", trace)`: its output or its weights are those of that pass, for a text of
              the same length. A pass of several calls, such as a generation, is followed call by call, and begins again
              with the next run of the model;
            - `("output", function)`, `("weights", function)`: the function takes and returns the output (..., Q, V) or
              the weights (..., Q, K) of the head; a tensor that broadcasts to it may stand for the function;
            - a mask, of `qkv.masks` or a bool tensor that broadcasts to (..., Q, K): the head attends only where its
              own mask and this one allow it;
            - `("mechanism", {"score": …})`: another score, normalizer, mask or bias than its own; or a function from
              its own to those that differ. Parameters for each head are those of the whole layer.

            A mask counts the queries and keys of each call: a step of a generation with a cache has one query.

            A trace stands for the pass that it shows, see `Trace.choose`. New weights have no dropout. A layer that
            runs several times with the same parameters has the names that a trace gives it: `layer`, `layer#2`, …

    Returns:
        A context manager. A recording inside shows what each head would have attended to, from its changed inputs.

    Raises:
        ArgumentError: the model is not a module.
        ConfigError: the model does not have one of the layers, a layer does not have one of the heads, or a change is
            none of these.
        ShapeError: what replaces an output or weights has another shape.
        UnsupportedError: the model cannot be recorded, or a head is merged with an extra key; at the end, the model ran
            without a layer that was to change.

    Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?" (zero); Wang et al. 2022, "Interpretability
        in the Wild" (mean); Vig et al. 2020, "Investigating Gender Bias in Language Models Using Causal Mediation
        Analysis" (output of another pass).

    Example:
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> model, x = MultiHeadAttention(8, 2).eval(), torch.randn(1, 3, 8)
        >>> before = model(x)
        >>> with patch(model, {"attention": {0: "zero", 1: "zero"}}):
        ...     silent = model(x)
        >>> bool((silent == model.output.bias).all()), bool((model(x) == before).all())
        (True, True)
    """
    check_arguments(model, None, None)
    layers = layers_of(model)
    check_any(model, layers, [_path(name) for name in changes])
    refuse_compiled(model, "Patch")
    rules = {name: _rules_of_layer(model, name, layers, changes[name]) for name in changes}
    watched = {path: layers[path] for path in dict.fromkeys(map(_path, rules))}
    seams = {module for path, module in model.named_modules() if path.rpartition(".")[2] == SEAM}
    watch, handles = _Watch(), list[RemovableHandle]()
    try:
        handles.append(model.register_forward_pre_hook(watch.begin, with_kwargs=True))
        handles.append(model.register_forward_hook(watch.end, with_kwargs=True, always_call=True))
        for path, module in watched.items():
            hook = partial(_hook, path, rules, watch, parent_of(model, path) is not None, module in seams)
            handles.append(module.register_forward_hook(hook, with_kwargs=True))
        with without_fast_path(watched.values()):
            yield
    finally:
        for handle in handles:
            handle.remove()
    missed = [name for name in rules if name not in watch.called]
    if watch.ran and missed:
        hint = "Choose layers that this input runs through; if the model's attention was replaced, attach it again."
        raise UnsupportedError("patch", "a call of every layer that is to change", f"no call of {missed[0]}", hint)


@final
@dataclass(frozen=True, eq=False)
class HeadCall:
    """One call of an attention, as the change of one of its heads sees it.

    Attributes:
        where: layer and head, for messages.
        module: the attention.
        tensors: query, key and value of all heads.
        options: the other arguments of the call.
        head: the number of the head.
        by_head: whether tensors have a dimension of heads; without it there is head 0 alone.
        outputs: what all heads return, (..., H, Q, V) or (..., Q, V).
        number: how many calls of the layer came before in this run of the model.
    """

    where: str
    module: Attention
    tensors: tuple[Tensor, Tensor, Tensor]
    options: Mapping[str, Any]
    head: int
    by_head: bool
    outputs: Tensor
    number: int

    def of_head(self, x: Tensor) -> Tensor:
        """Select the head from a tensor of all heads (..., H, N, width), or of the G heads of keys and values."""
        return x.select(-3, self.head * x.shape[-3] // self.outputs.shape[-3]) if self.by_head else x

    @property
    def output(self) -> Tensor:
        """What the head returns, (..., Q, V)."""
        return self.of_head(self.outputs)

    @property
    def mechanism(self) -> dict[str, Any]:
        """Score, normalizer, mask and bias of the layer in this call, and enable_gqa; None for no mask or bias."""
        options = {name: self.options.get(name) for name in OPTIONS}
        score, normalizer = self.module.mechanism(options["score"], options["normalizer"])
        return options | {"score": score, "normalizer": normalizer, "enable_gqa": bool(options["enable_gqa"])}

    def weights(self) -> Tensor:
        """Return the weights of the head (..., Q, K), without dropout."""
        query, key, value = self.tensors
        options = self.mechanism
        return self.of_head(attention_with_weights(query, key, value[..., :1], **options)[1])


@final
@dataclass(frozen=True, eq=False)
class Replacement:
    """What takes the place of what a head returns.

    Attributes:
        output: (..., Q, V).
        also: the weights (..., Q, K) or the row state beside it; None if they stay.
    """

    output: Tensor
    also: Tensor | RowState | None = None


Rule: TypeAlias = Callable[[HeadCall], Replacement]
Rules: TypeAlias = Mapping[int, Rule] | Rule
"""The changes of a layer: by the number of the head, or one for all heads."""


def _path(name: str) -> str:
    """Return the path of a layer's module: its name without the number of a repeated layer."""
    path, mark, number = str(name).rpartition("#")
    return path if mark and number.isdigit() else str(name)


def _rules_of_layer(model: nn.Module, name: str, layers: Mapping[str, nn.Module], changes: Any) -> Rules:
    """Check the changes of a layer."""
    path = _path(name)
    if path not in layers:
        raise ConfigError("patch(changes)", "names of attention layers", repr(name)[:80], nearest(path, layers))
    module, parent = layers[path], parent_of(model, path)
    if isinstance(module, nn.MultiheadAttention):
        check_torch_layer(name, module)
    elif parent is not None and parent.extra_key is not None:
        hint = "Patch other layers: this one merges the output of a head with that of a key that has no position."
        raise UnsupportedError(name, "keys that belong to positions", "an extra key", hint)
    if not isinstance(changes, Mapping):
        return _rule(name, changes)
    for head in changes:
        if not isinstance(head, int) or isinstance(head, bool) or head < 0:
            raise ConfigError(f"patch({name})", "numbers of heads, from 0", repr(head)[:80], _FORMS)
    built: dict[int, Rule] = {}  # one for each change, as heads may share a long pass
    return {head: built.setdefault(id(change), _rule(name, change)) for head, change in changes.items()}


def _rule(layer: str, change: Any) -> Rule:
    """Check a change.

    Raises:
        ConfigError: it is not one, or a pass does not have the layer.
    """
    if isinstance(change, Mask) or (isinstance(change, Tensor) and change.dtype == torch.bool):
        return partial(_recomputed, partial(_restricted, change))
    if isinstance(change, str) and change == "zero":
        return _zero
    if isinstance(change, tuple) and len(change) == 2 and change[0] == "mechanism":
        if callable(change[1]):
            return partial(_recomputed, lambda call: change[1](call.mechanism))
        if isinstance(change[1], Mapping):
            for name in change[1]:
                expect_name(f"patch({layer})", name, _PARTS, "a part of a mechanism")
            return partial(_recomputed, lambda _: change[1])
    if isinstance(change, tuple) and len(change) == 2 and change[0] in ("mean", "output", "weights"):
        what, source = change
        source = source.choose() if isinstance(source, Trace) else source
        if isinstance(source, Pass):
            calls = source.calls_of(layer)
            return (
                _MeanOutput(calls)
                if what == "mean"
                else partial(_output_of_pass if what == "output" else _weights_of_pass, calls)
            )
        if what != "mean" and (isinstance(source, Tensor) or callable(source)):
            return partial(_new_output if what == "output" else _new_weights, source)
    raise ConfigError(f"patch({layer})", f"a change: {_FORMS}", repr(change)[:80], "See qkv.patch.")


def _zero(call: HeadCall) -> Replacement:
    return Replacement(torch.zeros_like(call.output))


def _restricted(mask: Mask | Tensor, call: HeadCall) -> Mechanism:
    """Return the mask of a call and another one together."""
    if isinstance(mask, Tensor) and call.by_head and mask.ndim > 2:
        mask = mask.unsqueeze(-3)
    own = call.options.get("mask")
    return {"mask": as_mask(mask) if own is None else as_mask(own) & as_mask(mask)}


def _recomputed(changed: Callable[[HeadCall], Mechanism], call: HeadCall) -> Replacement:
    """Compute the layer again with parts of another mechanism."""
    options = dict(call.options) | dict(changed(call))
    if options.get("also") == ROUNDED:  # a recorder's
        del options["also"]
    result = call.module.forward(*call.tensors, **options)
    if not isinstance(result, tuple):
        return Replacement(call.of_head(result))
    output, also = result
    return Replacement(call.of_head(output), call.of_head(also) if isinstance(also, Tensor) else also)


def _new_output(source: Tensor | Callable[[Tensor], Tensor], call: HeadCall) -> Replacement:
    old = call.output
    new = source if isinstance(source, Tensor) else source(old)
    return Replacement(_fitting(call.where, "output", new, old))


def _new_weights(source: Tensor | Callable[[Tensor], Tensor], call: HeadCall) -> Replacement:
    _, key, value = call.tensors
    old = call.output.new_empty(()).expand(*call.output.shape[:-1], key.shape[-2])
    new = source if isinstance(source, Tensor) else source(call.weights())
    weights = _fitting(call.where, "weights", new, old)
    output = weights.to(value.dtype) @ call.of_head(value)
    return Replacement(output.to(call.output.dtype), weights)


def _fitting(where: str, name: str, new: object, old: Tensor) -> Tensor:
    """Return what replaces an output or weights in their shape and type."""
    if not isinstance(new, Tensor):
        raise ConfigError(f"{where}: {name}", "a tensor", type(new).__name__, "Return what replaces it.")
    try:
        return new.to(device=old.device, dtype=old.dtype).expand(old.shape)
    except RuntimeError:
        hint = "Of another pass: give both texts of the same length, one after the other, or padded to the same batch."
        raise ShapeError(f"{where}: {name}", show(tuple(old.shape)), show(tuple(new.shape)), hint) from None


def _output_of_pass(calls: Sequence[RecordedCall], call: HeadCall) -> Replacement:
    recorded = _counterpart(calls, call)
    output = call.of_head(_outputs(recorded))
    return Replacement(_fitting(call.where, "output", output, call.output))


def _weights_of_pass(calls: Sequence[RecordedCall], call: HeadCall) -> Replacement:
    return _new_weights(call.of_head(_counterpart(calls, call).weights()), call)


def _counterpart(calls: Sequence[RecordedCall], call: HeadCall) -> RecordedCall:
    """Return the recorded call that a call follows.

    Raises:
        UnsupportedError: a backward pass repeats one of several calls, whose number is not known then.
    """
    if len(calls) > 1 and torch._C._current_graph_task_id() != -1:
        hint = "Switch gradient checkpointing off, or record a pass of one call."
        raise UnsupportedError(call.where, "a pass of one call under gradient checkpointing", f"{len(calls)}", hint)
    return calls[call.number % len(calls)]


@torch.no_grad()
def _outputs(recorded: RecordedCall) -> Tensor:
    """Return what all heads returned in a recorded call, without dropout: (..., Q, V)."""
    recorded.check()
    return attention(recorded.query, recorded.key, recorded.value, **recorded.options)


@final
class _MeanOutput:
    """The change of a head's output to its mean over a pass.

    Args:
        calls: of the layer in the pass.
    """

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._calls, self._means = calls, dict[bool, Tensor]()

    def __call__(self, call: HeadCall) -> Replacement:
        if call.by_head not in self._means:
            self._means[call.by_head] = self._mean(call)
        mean = call.of_head(self._means[call.by_head])
        return Replacement(_fitting(call.where, "output", mean, call.output))

    def _mean(self, call: HeadCall) -> Tensor:
        """Return the mean outputs of the heads, (H, 1, V), or (1, V) without a dimension of heads."""
        sums, count = (torch.zeros((), device=call.outputs.device) for _ in range(2))
        for recorded in self._calls:
            outputs = _outputs(recorded).double()
            real = _real(recorded).expand(outputs.shape[:-1])[..., None]
            over = [d for d in range(outputs.ndim - 1) if not call.by_head or d != outputs.ndim - 3]
            sums = sums + torch.where(real, outputs, 0).sum(over)
            count = count + real.sum(over)
        if not bool(count.all()):
            hint = "Record a text of which the layer sees some positions."
            raise ConfigError(call.where, "a pass with positions that see keys", "none", hint)
        return (sums / count).unsqueeze(-2)


@torch.no_grad()
def _real(recorded: RecordedCall) -> Tensor:
    """Return which positions of a call are no padding, as far as its mask tells: bool, broadcasts to (..., Q)."""
    queries, keys = recorded.query.shape[-2], recorded.key.shape[-2]
    mask, device = recorded.options.get("mask"), recorded.query.device
    if mask is None:
        return torch.ones(queries, dtype=torch.bool, device=device)
    grid, columns = Grid.of(recorded.query, recorded.key), torch.arange(keys, device=device)
    seeing, seen = [], torch.zeros(keys, dtype=torch.bool, device=device)
    for start in range(0, queries, _STRIPE):
        rows = torch.arange(start, min(start + _STRIPE, queries), device=device)
        visible = as_mask(mask).visible(grid, rows[:, None], columns).expand(*grid.leading, len(rows), keys)
        seeing.append(visible.any(-1))
        seen = seen | visible.any(-2)
    real = torch.cat(seeing, -1)
    # The queries are the last of the keys: earlier ones are in a cache.
    return real & seen[..., keys - queries :] if recorded.self_attention and keys >= queries else real


@dataclass(eq=False)
class _Running:
    """What one thread runs.

    Attributes:
        inside: whether the whole model is running.
        keys: by the path of a layer, the keys of each name that it has had in this forward pass.
        calls: by the name of a layer, how often it was called in this run: a forward pass and what continues it with a
            cache.
    """

    inside: bool = False
    keys: dict[str, list[Tensor]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


@final
class _Watch:
    """What ran while heads are changed.

    Attributes:
        ran: whether the model ran to its end.
        called: the layers that ran.
    """

    def __init__(self) -> None:
        self.ran, self.called = False, set[str]()
        self._running = PerThread(_Running)

    def begin(self, module: nn.Module, *rest: Any) -> None:
        """Note that the model begins to run; with a cache it continues the run before."""
        if len(rest) == 2 and not is_step(module, rest[1]):
            running = self._running.get()
            running.inside = True
            running.keys.clear()
            if not position_of(module, *rest).start:
                running.calls.clear()

    def end(self, module: nn.Module, *rest: Any) -> None:
        """Note that the model ran, to its end if it has an output."""
        if len(rest) == 3 and not is_step(module, rest[1]):
            running = self._running.get()
            running.inside = False
            running.keys.clear()
            self.ran = self.ran or rest[2] is not None

    def next_call(self, path: str, tensors: Sequence[Tensor], numbered: bool) -> tuple[str, int]:
        """Name a call as a recorder does, and count it.

        Args:
            path: the layer.
            tensors: query and key, and others.
            numbered: whether each call in a forward pass has a name of its own, even one that continues earlier calls.

        Returns:
            The name of the layer, and how often it was called before in this run.
        """
        running, (query, key, *_) = self._running.get(), tensors
        earlier = running.keys.setdefault(path, []) if running.inside else []
        at = len(earlier) if numbered else _continued(earlier, query, key)
        earlier[at : at + 1] = [key]
        name = path if at == 0 else f"{path}#{at + 1}"
        self.called.add(name)
        before = running.calls.get(name, 0)
        running.calls[name] = before + 1
        return name, before


def _continued(earlier: Sequence[Tensor], query: Tensor, key: Tensor) -> int:
    """Return which of several layers of the same module a call continues: its keys are theirs, or more after them."""
    for at, keys in enumerate(earlier):
        count = keys.shape[-2]
        longer = key.shape[-2] >= count and query.shape[-2] != key.shape[-2]
        if key is keys or (longer and same_numbers(key[..., :count, :], keys)):
            return at
    return len(earlier)


def _hook(
    path: str, rules: Mapping[str, Rules], watch: _Watch, by_head: bool, numbered: bool, module: nn.Module, *rest: Any
) -> Any:
    """Return what a layer returns, with the changed heads.

    PyTorch registers and removes a hook in two steps. A thread that runs the module between them calls the hook without
    keywords: it then does nothing.
    """
    if len(rest) != 3:
        return None
    arguments, options, output = rest
    if isinstance(module, nn.MultiheadAttention):
        inputs = inputs_of_torch_layer(module, arguments, options)
        name, number = watch.next_call(path, inputs[:2], numbered)
        if name not in rules:
            return None
        seam = Attention(dropout=module.dropout).train(module.training)
        heads = seam(*inputs[:3], **inputs.options)
        heads = _changed(name, rules[name], seam, inputs[:3], inputs.options, heads, number, by_head=True)
        weight, bias = projections_of_torch(module)[3]
        joined = F.linear(heads.transpose(-3, -2).flatten(-2), weight, bias)
        if output[0].ndim == 2:
            joined = joined.squeeze(0)
        elif not module.batch_first:
            joined = joined.transpose(0, 1)
        return joined, output[1]
    assert isinstance(module, Attention)
    named = dict(zip(("query", "key", "value"), arguments, strict=False)) | options
    tensors = named.pop("query"), named.pop("key"), named.pop("value")
    name, number = watch.next_call(path, tensors, numbered)
    if name not in rules:
        return None
    by_head = by_head or tensors[0].ndim > 3
    return _changed(name, rules[name], module, tensors, named, output, number, by_head=by_head)


def _changed(
    name: str,
    rules: Rules,
    module: Attention,
    tensors: tuple[Tensor, Tensor, Tensor],
    options: Mapping[str, Any],
    output: Any,
    number: int,
    *,
    by_head: bool,
) -> Any:
    """Return the output of an attention, or the pair that it returns, with the changed heads."""
    outputs, also = output if isinstance(output, tuple) else (output, None)
    heads = list(outputs.unbind(-3)) if by_head else [outputs]
    replaced: dict[int, Tensor | RowState] = {}
    for head, rule in rules.items() if isinstance(rules, Mapping) else [(head, rules) for head in range(len(heads))]:
        if head >= len(heads):
            raise ConfigError(f"patch({name})", f"heads from 0 to {len(heads) - 1}", f"{head}", "Heads count from 0.")
        new = rule(HeadCall(f"{name}, head {head}", module, tensors, options, head, by_head, outputs, number))
        heads[head] = new.output
        if new.also is not None:
            replaced[head] = new.also
    changed = torch.stack(heads, -3) if by_head else heads[0]
    return (changed, _changed_beside(name, also, replaced, by_head)) if isinstance(output, tuple) else changed


def _changed_beside(name: str, also: Any, replaced: Mapping[int, Tensor | RowState], by_head: bool) -> Any:
    """Return the weights or the row state beside an output, with those of the changed heads."""
    if not replaced or not by_head:
        return replaced.get(0, also)
    if isinstance(also, Tensor):
        return torch.stack([replaced.get(head, old) for head, old in enumerate(also.unbind(-3))], -3)  # type: ignore[misc]
    hint = 'Change outputs: "zero", ("mean", trace) or ("output", …).'
    raise UnsupportedError(f"patch({name})", "an attention that returns no row state, for new weights", "one", hint)
