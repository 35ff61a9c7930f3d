"""Recording what a model attends to, by hooks on `nn.Attention`, while the fast kernels run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.errors import UnsupportedError, error_message
from qkv.nn.attention import SEAM, Attention
from qkv.nn.decoding.cache import Rows
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers.row_state import RowState
from qkv.recording.around import around
from qkv.recording.calls import Call, Given
from qkv.recording.checks import check_all_ran, check_any, check_arguments, chosen
from qkv.recording.origins import Origin, Reading, model_above
from qkv.recording.repeated_passes import first_time
from qkv.recording.rooms import Room, moved
from qkv.recording.row_states import RowStates
from qkv.recording.torch_layers import call_of, check_layer, projections
from qkv.recording.trace import Tokenizer, Trace


@contextmanager
def record(
    model: nn.Module,
    layers: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Iterator[Trace]:
    """Record what a model attends to.

    Args:
        model: any module whose attentions are `qkv.nn.Attention` or `torch.nn.MultiheadAttention`, or a model of
            `transformers` after `qkv.hub.attach`. PyTorch's own fast path, which has no attention to record, is off
            meanwhile.
        layers: paths of the attentions to record, or of modules that contain some; None for all.
        heads: the heads to show; None for all.
        tokenizer: names the token ids that a model of `transformers` was given, as one of its tokenizers does by
            `convert_ids_to_tokens`; None to number positions.

    Returns:
        A context manager that yields the trace; it changes no bit of the model's output, and removes its hooks at the
        end.

    Raises:
        ArgumentError: the model is not a module.
        ConfigError: the model does not have one of the layers, or an argument is no list.
        UnsupportedError: the model has no attention that can be recorded, some that is not attached, or a compiled
            module; at the end, the model ran without its layers.

    Example:
        >>> import torch
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> model = MultiHeadAttention(8, 2)
        >>> with record(model) as trace:
        ...     output = model(torch.randn(1, 3, 8))
        >>> trace.layers, trace.weights("attention").shape, trace.alignment("attention").shape
        (['attention'], torch.Size([1, 2, 3, 3]), torch.Size([3, 3]))
    """
    layers, heads = check_arguments(model, layers, heads)
    found = _layers(model)
    check_any(model, found, layers)
    wanted = {name: found[name] for name in chosen(found, layers)}
    _refuse_compiled(model)
    trace = Trace({name: [] for name in wanted}, None if heads is None else tuple(heads), tokenizer=tokenizer)
    hooks = [
        module.register_forward_hook(first_time(trace.lineage.follow), with_kwargs=True)
        for module in model.modules()
        if isinstance(module, Rows)
    ]
    root, runs = _Ran(), dict[str, _Ran]()
    try:
        hooks.append(model.register_forward_hook(first_time(root.follow)))
        for name, module in wanted.items():
            hooks += _watch(model, name, module, trace, runs)
        with _without_fast_path(wanted.values()):
            yield trace
    finally:
        for hook in hooks:
            hook.remove()
    _check_all(model, found)
    check_all_ran(root.ran, trace.calls, [name for name, run in runs.items() if run.ran])


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attentions by path; one beneath the projections of another library's module has the module's."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention | nn.MultiheadAttention):
            above, _, last = name.rpartition(".")
            torch_root = not name and isinstance(module, nn.MultiheadAttention)
            found[(above or "attention") if last == SEAM or torch_root else name] = module
    return found


@final
class _Ran:
    """A hook on a module that tells whether it ran to its end."""

    def __init__(self) -> None:
        self.ran = False

    def follow(self, module: nn.Module, inputs: object, output: object) -> None:
        """Note a forward pass that came to its end."""
        self.ran = True


def _watch(
    model: nn.Module, name: str, module: nn.Module, trace: Trace, runs: dict[str, _Ran]
) -> list[RemovableHandle]:
    """Register the hooks that record one layer, and that tell whether the module of another library around it ran."""
    modules = dict(model.named_modules())
    if isinstance(module, nn.MultiheadAttention):
        check_layer(name, module)
        trace.surroundings[name] = projections(module)

        def attend(layer: nn.MultiheadAttention, given: Any, options: Any, output: Any) -> None:
            trace.calls[name].append(call_of(layer, given, options, trace.lineage.now))

        return [module.register_forward_hook(first_time(attend), with_kwargs=True)]
    watch = _Watch(name, trace)
    hooks = [
        module.register_forward_hook(watch.states.take, with_kwargs=True, prepend=True, always_call=True),
        module.register_forward_pre_hook(first_time(watch.states.ask), with_kwargs=True),
        module.register_forward_hook(first_time(watch.attend), with_kwargs=True),
    ]
    path = next(path for path, other in modules.items() if other is module)
    if path.rpartition(".")[2] == SEAM:
        place = path.rpartition(".")[0]
        watch.origin, runs[name] = Origin(modules[place]), _Ran()
        hooks += watch.origin.hooks
        hooks.append(modules[place].register_forward_hook(first_time(runs[name].follow)))
        above = model_above(place, modules)
        if above is not None:
            trace.groups[name] = above
            hooks.append(modules[above].register_forward_pre_hook(first_time(watch.begin)))
            if above not in trace.readings:
                trace.readings[above] = Reading()
                follow = first_time(trace.readings[above].follow)
                hooks.append(modules[above].register_forward_pre_hook(follow, with_kwargs=True))
    elif (parent := _parent(model, name)) is not None:
        if (surrounding := around(parent)) is not None:
            trace.surroundings[name] = surrounding
        hooks.append(parent.projections.given.register_forward_hook(first_time(watch.project)))
    return hooks


@contextmanager
def _without_fast_path(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Keep PyTorch from replacing whole layers by one operation, which has no attention to record."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    if any(isinstance(layer, nn.MultiheadAttention) for layer in layers):
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _check_all(model: nn.Module, found: Mapping[str, nn.Module]) -> None:
    """Check that no layer was attached while the model ran, too late to be recorded."""
    late = [name for name in _layers(model) if name not in found]
    if late:
        hint = "Record again: now it is known."
        raise UnsupportedError(error_message("record", "layers that attach found", f"a new one, {late[0]}", hint))


@final
class _Watch:
    """The hooks on one layer.

    Attributes:
        origin: tells whether keys come from another sequence, for layers of other libraries; None for ours.
        states: the row states that the layer's own calls give.
    """

    def __init__(self, name: str, trace: Trace) -> None:
        self.name, self.trace = name, trace
        self.origin: Origin | None = None
        self.states = RowStates()
        self.inputs: list[Tensor | None] = [None, None, None]
        self.moment = -1
        self.turn = 0
        self.rooms: dict[str, Room] = {}
        self.followed: dict[str, int] = {}

    def begin(self, module: nn.Module, inputs: object) -> None:
        """Note a forward pass of the model around the layer: a layer that runs again within it is another layer."""
        self.turn = 0

    def project(self, module: nn.Module, inputs: tuple[Tensor | None, ...], output: None) -> None:
        """Record the inputs of the projections: a query, a key and value, or all three."""
        for place, tensor in enumerate(inputs):
            if tensor is not None:
                self.inputs[place] = tensor
                self.moment = self.trace.lineage.now if place else self.moment

    def attend(self, module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any], output: Any) -> None:
        """Record a call."""
        named = dict(zip(("query", "key", "value"), tensors, strict=False)) | options
        same, given = self._given(named["query"] is named["key"])
        query, key, value = (named.pop(name).detach() for name in ("query", "key", "value"))
        own = {"score": module.score, "normalizer": module.normalizer}
        options = {name: option for name, option in (own | named).items() if name != "generator" and option is not None}
        if not options.get("enable_gqa", True):
            del options["enable_gqa"]
        own_state = isinstance(output, tuple) and isinstance(output[1], RowState)
        state = output[1] if own_state else self.states.last
        name = self._name()
        if self.origin is not None:
            key, value, options = self._kept(name, key, value, options, query.shape[-2])
        call = Call(query, key, value, options, state, self.trace.lineage.now, same, given)
        self.trace.calls.setdefault(name, []).append(call)

    def _kept(
        self, name: str, key: Tensor, value: Tensor, options: dict[str, Any], queries: int
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return keys and values in memory shared with earlier calls."""
        moments, room = self.trace.lineage.moments, self.rooms.setdefault(name, Room())
        for moment in moments[self.followed.get(name, len(moments)) :]:
            if moment.start:
                self.rooms[name] = room = Room()
            else:
                room.select(moment.rows)
        self.followed[name] = len(moments)
        kept = room.keep(key, value, queries)
        placed = moved(options, kept.dropped)
        return (key, value, options) if placed is None else (kept.key, kept.value, placed)

    def _name(self) -> str:
        """Return the name of the layer, with the number of its turn if the module runs several times in one pass."""
        self.turn += 1
        name = self.name if self.turn == 1 or self.origin is None else f"{self.name}#{self.turn}"
        if name != self.name and self.name in self.trace.groups:
            self.trace.groups[name] = self.trace.groups[self.name]
        return name

    def _given(self, same: bool) -> tuple[bool, Given | None]:
        """Return whether queries and keys come from one sequence, and the inputs of the projections, if known."""
        if self.origin is not None:
            return self.origin.own, None
        q, k, v = self.inputs
        if q is None or k is None or v is None:
            return same, None
        return q is k, Given(q.detach(), k.detach(), v.detach(), self.moment)


def _refuse_compiled(model: nn.Module) -> None:
    """Refuse compiled modules, whose code was traced without the hooks."""
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            got = f"{name or 'a module'} compiled by torch.compile"
            hint = "Record the original module; compile after recording."
            raise UnsupportedError(error_message("model", "a module that is not compiled", got, hint))


def _parent(model: nn.Module, name: str) -> MultiHeadAttention | None:
    """Return the layer with projections that contains an attention."""
    parent = model.get_submodule(name.rpartition(".")[0]) if name else None
    return parent if isinstance(parent, MultiHeadAttention) else None
