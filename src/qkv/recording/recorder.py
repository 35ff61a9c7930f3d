"""Recording what a model attends to, by hooks on `nn.Attention`, while the fast kernels run."""

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.errors import UnsupportedError
from qkv.nn.attention import SEAM, Attention
from qkv.nn.blocks import TransformerBlock
from qkv.nn.decoding.cache import BatchRows, Memory
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers.row_state import RowState
from qkv.recording.calls import LastInputs, RecordedCall, call_of_torch_layer, over_all_processes
from qkv.recording.checks import check_all_ran, check_any, check_arguments, check_torch_layer, chosen
from qkv.recording.dividing import PassDivider
from qkv.recording.hooks import PerThread, first_time
from qkv.recording.origins import ProjectionHooks, model_above, position_of
from qkv.recording.passes import Setup, TokenNames
from qkv.recording.projections import projections_of
from qkv.recording.row_states import RowStates
from qkv.recording.trace import Trace
from qkv.values.hooks import is_step
from qkv.view.scene import OPTIONS


@contextmanager
def record(
    model: nn.Module,
    layers: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    tokenizer: TokenNames | None = None,
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
        end. Inside of `qkv.distributed.shard`, where every process must record, each gets the trace of the whole
        sequence, and with it the queries, keys and values of all.

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
    all_layers = layers_of(model)
    check_any(model, all_layers, layers)
    watched = {name: all_layers[name] for name in chosen(all_layers, layers)}
    refuse_compiled(model)
    setup = Setup(list(watched), None if heads is None else tuple(heads), tokenizer=tokenizer)
    recorder = _Recorder(setup)
    hooks: list[RemovableHandle] = []
    try:
        hooks += recorder.watch(model, watched)
        with without_fast_path(watched.values()):
            yield recorder.trace
    finally:
        recorder.open = False
        for hook in hooks:
            hook.remove()
        recorder.divider.close()
    _check_all(model, all_layers)
    check_all_ran(recorder.ran, bool(recorder.trace.passes), setup.layers, recorder.missed)


@final
class _Recorder:
    """The hooks on a model, and what each thread runs.

    Attributes:
        trace: the recording.
        open: whether its hooks are all in place.
        ran: whether the model ran to its end.
        missed: layers whose module ran without calling their attention.
    """

    def __init__(self, setup: Setup) -> None:
        self.trace = Trace([], setup)
        self.open, self.ran, self.missed = False, False, set[str]()
        self._lock, self._threads = threading.Lock(), itertools.count()
        self._dividers = PerThread(self._new_divider)
        self._dividers.get()  # the thread that opens the recording is the first

    @property
    def divider(self) -> PassDivider:
        """What divides the calls of the running thread into passes."""
        return self._dividers.get()

    def _new_divider(self) -> PassDivider:
        return PassDivider(next(self._threads), self.trace.setup, self.trace.passes, self._lock)

    def watch(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> list[RemovableHandle]:
        """Register the hooks that record some layers of a model."""
        hooks = [
            module.register_forward_hook(first_time(self._rows), with_kwargs=True)
            for module in model.modules()
            if isinstance(module, BatchRows)
        ]
        for name, module in layers.items():
            hooks += _watch(model, name, module, self)
        modules = dict(model.named_modules())
        for path in dict.fromkeys(["", *self.trace.setup.groups.values()]):
            hooks += self._watch_model(modules[path], path)
        hooks.append(model.register_forward_hook(first_time(self._done), with_kwargs=True))
        self.open = True
        return hooks

    def _watch_model(self, module: nn.Module, path: str) -> list[RemovableHandle]:
        """Register the hooks on the recorded model, or on a model of `transformers` inside.

        They divide calls of the model; the steps of a decoding are divided by their layers.
        """
        group = path in self.trace.setup.groups.values()

        def enter(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            if is_step(module, options):
                return
            self.divider.enter(module, not path)
            if group:
                self.divider.locate(path, position_of(module, arguments, options))

        def leave(module: nn.Module, arguments: object, options: dict[str, Any], output: object) -> None:
            if not is_step(module, options):
                self.divider.leave(not path)

        return [
            module.register_forward_pre_hook(first_time(enter), with_kwargs=True),
            module.register_forward_hook(first_time(leave), with_kwargs=True, always_call=True),
        ]

    def _rows(self, module: nn.Module, arguments: tuple[Tensor, ...], options: dict[str, Any], rows: Tensor) -> None:
        self.divider.follow(module, arguments, options, rows)

    def _done(self, module: nn.Module, arguments: object, options: dict[str, Any], output: object) -> None:
        self.ran = self.ran or not is_step(module, options)


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the attentions by path; one beneath the projections of another library's module has the module's."""
    layers: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention | nn.MultiheadAttention):
            above, _, last = name.rpartition(".")
            torch_root = not name and isinstance(module, nn.MultiheadAttention)
            layers[(above or "attention") if last == SEAM or torch_root else name] = module
    return layers


def _watch(model: nn.Module, name: str, module: nn.Module, recorder: _Recorder) -> list[RemovableHandle]:
    """Register the hooks that record one layer."""
    modules, setup = dict(model.named_modules()), recorder.trace.setup
    if isinstance(module, nn.MultiheadAttention):
        check_torch_layer(name, module)
        setup.surroundings[name] = projections_of(module)

        def attend(layer: nn.MultiheadAttention, arguments: Any, options: Any, output: Any) -> None:
            recorder.divider.add(name, call_of_torch_layer(layer, arguments, options, recorder.divider.moment))

        return [module.register_forward_hook(first_time(attend), with_kwargs=True)]
    watch = _LayerHooks(name, recorder)
    hooks = [
        module.register_forward_hook(watch.states.take, with_kwargs=True, prepend=True),
        module.register_forward_pre_hook(first_time(watch.states.ask), with_kwargs=True),
        module.register_forward_hook(first_time(watch.attend), with_kwargs=True),
    ]
    path = next(path for path, other in modules.items() if other is module)
    if path.rpartition(".")[2] == SEAM:
        parent_path = path.rpartition(".")[0]
        watch.origin = ProjectionHooks(modules[parent_path])
        hooks += watch.origin.hooks
        hooks.append(modules[parent_path].register_forward_pre_hook(first_time(watch.begin)))
        hooks.append(modules[parent_path].register_forward_hook(first_time(watch.end)))
        above = model_above(parent_path, modules)
        if above is not None:
            setup.groups[name] = above
            if (config := getattr(modules[above], "config", None)) is not None:
                setup.configs[above] = config
    elif (parent := parent_of(model, name)) is not None:
        if parent.extra_key is not None:
            hint = "Record a layer without extra_key, or select others: layers=[...]."
            raise UnsupportedError(name, "keys that belong to positions", "an extra key", hint)
        if (surrounding := projections_of(parent)) is not None:
            setup.surroundings[name] = surrounding
        hooks.append(parent.projections.inputs.register_forward_hook(first_time(watch.project)))
        block = modules.get(name.rpartition(".")[0].rpartition(".")[0])
        watch.windowed = (
            isinstance(block, TransformerBlock) and block.self_attention is parent and block.reach is not None
        )
        hooks.append(parent.register_forward_pre_hook(first_time(watch.locate)))
    return hooks


@contextmanager
def without_fast_path(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Turn off PyTorch's fast path, which replaces a layer by one operation without attention to record."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    if any(isinstance(layer, nn.MultiheadAttention) for layer in layers):
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _check_all(model: nn.Module, layer_names: Mapping[str, nn.Module]) -> None:
    """Check that no layer was attached while the model ran, too late to be recorded."""
    late = [name for name in layers_of(model) if name not in layer_names]
    if late:
        hint = "Record again: now it is known."
        raise UnsupportedError("record", "layers that attach found", f"a new one, {late[0]}", hint)


@dataclass
class _LayerInputs:
    """The inputs that one thread gave to a layer.

    Attributes:
        inputs: the last inputs of its projections.
        moment: index of the last change of the batch before the keys were given.
        missing: whether the module around the attention is running and has not called it yet.
        first: the position of the first key, if a cache has dropped earlier ones.
    """

    inputs: list[Tensor | None] = field(default_factory=lambda: [None, None, None])
    moment: int = -1
    missing: bool = False
    first: int = 0


@final
class _LayerHooks:
    """The hooks on one layer.

    Attributes:
        origin: tells whether keys come from another sequence, for layers of other libraries; None for ours.
        states: the hooks that collect row states of its calls.
        windowed: whether a cache drops the keys that its window has passed.
    """

    def __init__(self, name: str, recorder: _Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.origin: ProjectionHooks | None = None
        self.states = RowStates()
        self.windowed = False
        self.layer_inputs = PerThread(_LayerInputs)

    def begin(self, module: nn.Module, arguments: object) -> None:
        """Note that the module of another library around the layer begins to run."""
        self.layer_inputs.get().missing = self.recorder.open

    def end(self, module: nn.Module, arguments: object, output: object) -> None:
        """Note that it ran to its end."""
        if self.layer_inputs.get().missing and self.recorder.open:
            self.recorder.missed.add(self.name)

    def project(self, module: nn.Module, inputs: tuple[Tensor | None, ...], output: None) -> None:
        """Record the inputs of the projections: a query, a key and value, or all three."""
        recorded = self.layer_inputs.get()
        for index, tensor in enumerate(inputs):
            if tensor is not None:
                recorded.inputs[index] = tensor
                recorded.moment = self.recorder.divider.moment if index else recorded.moment

    def locate(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Note the position of the first key that the layer is about to be given."""
        memory = next((argument for argument in arguments if isinstance(argument, Memory)), None)
        self.layer_inputs.get().first = 0 if memory is None else memory.first

    def attend(self, module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any], output: Any) -> None:
        """Record a call."""
        self.layer_inputs.get().missing = False
        named = dict(zip(("query", "key", "value"), tensors, strict=False)) | options
        self_attention, arguments = self._of_call(named["query"] is named["key"])
        query, key, value = (named.pop(name).detach() for name in ("query", "key", "value"))
        named["score"], named["normalizer"] = module.mechanism(named.get("score"), named.get("normalizer"))
        options = {name: part for name, part in named.items() if name in OPTIONS and part is not None}
        if not options.get("enable_gqa", True):
            del options["enable_gqa"]
        with_state = isinstance(output, tuple) and isinstance(output[1], RowState)
        state = output[1] if with_state else self.states.last
        divider = self.recorder.divider
        start = self.layer_inputs.get().first + key.shape[-2] - query.shape[-2] if self.windowed else None
        call = RecordedCall(query, key, value, options, state, divider.moment, self_attention, arguments, start)
        if self.origin is not None and not self.origin.projected(key):
            divider.check_cache(self.name, call, self.origin.objects)
        divider.add(self.name, over_all_processes(call))

    def _of_call(self, same_tensor: bool) -> tuple[bool, LastInputs | None]:
        """Return whether queries and keys come from one sequence, and the inputs of the projections, if known."""
        if self.origin is not None:
            return self.origin.self_attention, None
        recorded = self.layer_inputs.get()
        q, k, v = recorded.inputs
        if q is None or k is None or v is None:
            return same_tensor, None
        detached = {id(x): x.detach() for x in (q, k, v)}
        query, key, value = (detached[id(x)] for x in (q, k, v))
        return q is k, LastInputs(query, key, value, recorded.moment)


def refuse_compiled(model: nn.Module, doing: str = "Record") -> None:
    """Refuse compiled modules, whose code was traced without the hooks.

    Args:
        model: the model.
        doing: what the caller would do with it, for the message.

    Raises:
        UnsupportedError: the model or a part of it is compiled.
    """
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            got = f"{name or 'a module'} compiled by torch.compile"
            hint = f"{doing} the original module, and compile it afterwards."
            raise UnsupportedError("model", "a module that is not compiled", got, hint)


def parent_of(model: nn.Module, name: str) -> MultiHeadAttention | None:
    """Return the layer with projections that contains an attention."""
    parent = model.get_submodule(name.rpartition(".")[0]) if name else None
    return parent if isinstance(parent, MultiHeadAttention) else None
