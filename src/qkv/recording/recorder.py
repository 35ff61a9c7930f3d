"""Recording what a model attends to, by hooks on `nn.Attention`, while the fast kernels run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from torch import Tensor, nn

from qkv.errors import ConfigError, UnsupportedError, error_message, nearest
from qkv.nn.attention import Attention
from qkv.nn.decoding.cache import Rows
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers.row_state import RowState
from qkv.recording.around import around
from qkv.recording.calls import Call, Given
from qkv.recording.lineage import Lineage
from qkv.recording.trace import Trace


@contextmanager
def record(
    model: nn.Module, layers: Sequence[str] | None = None, heads: Sequence[int] | None = None
) -> Iterator[Trace]:
    """Record what a model attends to.

    Args:
        model: any module whose attentions are `qkv.nn.Attention`.
        layers: paths of the attentions to record, or of modules that contain some; None for all.
        heads: the heads to show; None for all.

    Returns:
        A context manager that yields the trace; it changes no bit of the model's output, and removes its hooks at the
        end.

    Raises:
        ConfigError: the model does not have one of the layers.
        UnsupportedError: a module is compiled.

    Example:
        >>> import torch
        >>> from qkv.nn.multihead import MultiHeadAttention
        >>> model = MultiHeadAttention(8, 2)
        >>> with record(model) as trace:
        ...     output = model(torch.randn(1, 3, 8))
        >>> trace.layers, trace.weights("attention").shape, trace.alignment("attention").shape
        (['attention'], torch.Size([1, 2, 3, 3]), torch.Size([3, 3]))
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, Attention)}
    chosen = {name: found[name] for name in _chosen(found, layers)}
    _refuse_compiled(model)
    parents = {name: layer for name in chosen if (layer := _parent(model, name)) is not None}
    surroundings = {name: around(layer) for name, layer in parents.items()}
    trace = Trace({name: [] for name in chosen}, None if heads is None else tuple(heads), surroundings=surroundings)
    hooks = [
        module.register_forward_hook(trace.lineage.follow, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, Rows)
    ]
    for name, module in chosen.items():
        watch = _Watch(trace.calls[name], trace.lineage)
        hooks.append(module.register_forward_hook(watch.attend, with_kwargs=True))
        if name in parents:
            hooks.append(parents[name].projections.given.register_forward_hook(watch.project))
    try:
        yield trace
    finally:
        for hook in hooks:
            hook.remove()


@final
class _Watch:
    """The hooks on one layer."""

    def __init__(self, calls: list[Call], lineage: Lineage) -> None:
        self.calls = calls
        self.lineage = lineage
        self.inputs: list[Tensor | None] = [None, None, None]
        self.moment = -1

    def project(self, module: nn.Module, inputs: tuple[Tensor | None, ...], output: None) -> None:
        """Record the inputs of the projections: a query, a key and value, or all three."""
        for place, tensor in enumerate(inputs):
            if tensor is not None:
                self.inputs[place] = tensor
                self.moment = self.lineage.now if place else self.moment

    def attend(self, module: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any], output: Any) -> None:
        """Record a call."""
        named = dict(zip(("query", "key", "value"), tensors, strict=False)) | options
        query, key, value = (named.pop(name) for name in ("query", "key", "value"))
        own = {"score": module.score, "normalizer": module.normalizer}
        options = {name: option for name, option in (own | named).items() if name != "generator" and option is not None}
        q, k, v = self.inputs
        if q is None or k is None or v is None:
            same, given = query is key, None
        else:
            same, given = q is k, Given(q.detach(), k.detach(), v.detach(), self.moment)
        detached = query.detach(), key.detach(), value.detach()
        state = output[1] if isinstance(output, tuple) and isinstance(output[1], RowState) else None
        self.calls.append(Call(*detached, options, state, self.lineage.now, same, given))


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


def _chosen(found: dict[str, Attention], layers: Sequence[str] | None) -> list[str]:
    """Return the attentions with these names, or inside modules with these names, in the order of the model."""
    for layer in layers or ():
        if not any(_inside(name, layer) for name in found):
            raise ConfigError(error_message("layers", "names of attention layers", repr(layer), nearest(layer, found)))
    return [name for name in found if layers is None or any(_inside(name, layer) for layer in layers)]


def _inside(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")
