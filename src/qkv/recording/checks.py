"""The checks before and after a recording: whether a model can be recorded, and whether it was."""

from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from typing import Any

from torch import nn

from qkv.errors import ArgumentError, ConfigError, UnsupportedError, nearest
from qkv.nn.attention import SEAM, Attention, attending

_EXCERPT = 80
_ATTACH = "Attach it first: qkv.hub.attach(model)."


def check_arguments(model: object, layers: object, heads: object) -> tuple[list[str] | None, list[int] | None]:
    """Check the types of what `record` is given.

    Returns:
        Layers and heads as lists, which can be read more than once; None for all.

    Raises:
        ArgumentError: the model is not a module.
        ConfigError: layers are no list of names, or heads no list of numbers.
    """
    if not isinstance(model, nn.Module):
        inner = isinstance(getattr(model, "model", None), nn.Module)
        hint = "Give its network: record(found.model)." if inner else "Record the module that runs."
        raise ArgumentError("record(model)", "a torch.nn.Module", _kind(model), hint)
    return (
        _listed("layers", layers, str, "names of attention layers", "None records all of them."),
        _listed("heads", heads, Integral, "numbers of heads", "None shows all of them."),
    )


def check_any(model: nn.Module, layer_names: Collection[str], layers: Sequence[str] | None) -> None:
    """Check that there is attention to record, and that all of it is attached.

    Args:
        model: the model.
        layer_names: the paths of its attentions.
        layers: paths of those to record, or of modules that contain them; None for all.

    Raises:
        UnsupportedError: the message says what to do.
    """
    theirs = any(cls.__module__.startswith("transformers.") for cls in type(model).__mro__)
    if not layer_names:
        hint = _ATTACH if theirs else "Its attention must run through qkv.nn.Attention or torch.nn.MultiheadAttention."
        got = f"{type(model).__name__} without any"
        raise UnsupportedError("model", "a model with attention that can be recorded", got, hint)
    for name, module in attending(model):
        matches = layers is None or any(inside(name, layer) for layer in layers)
        if matches and not isinstance(module._modules.get(SEAM), Attention):
            got = f"{type(module).__name__} at {name or 'the top'}, which is not attached"
            raise UnsupportedError("model", "a model whose attention can all be recorded", got, _ATTACH)


def check_all_ran(ran: bool, recorded: bool, layers: Sequence[str], missed: Collection[str]) -> None:
    """Check that the model did not run without its attention.

    Args:
        ran: whether the model ran to its end; if only methods of its own ran, or it failed, False.
        recorded: whether any layer was recorded.
        layers: the layers to record.
        missed: layers whose module ran to its end without calling their attention.

    Raises:
        UnsupportedError: a layer ran by other means, or none ran at all.
    """
    if missed:
        hint = "Its implementation was changed since it was attached: attach it again, qkv.hub.attach(model)."
        got = f"{next(layer for layer in layers if layer in missed)}, which ran without"
        raise UnsupportedError("record", "attention that runs through qkv", got, hint)
    if ran and not recorded:
        hint = "The model ran without any of these layers: choose others, or give it what makes it call them."
        got = f"no call of {', '.join(layers[:3])}" + (" or others" if len(layers) > 3 else "")
        raise UnsupportedError("record", "a call of a layer", got, hint)


def check_torch_layer(name: str, layer: nn.MultiheadAttention) -> None:
    """Check that a layer of PyTorch can be recorded.

    Raises:
        UnsupportedError: it attends to keys that belong to no position.
    """
    if layer.bias_k is not None or layer.add_zero_attn:
        hint = "Record a layer without bias_k, bias_v and add_zero_attn, or select others: layers=[...]."
        raise UnsupportedError(name, "keys that belong to positions", "an extra key", hint)


def inside(name: str, layer: str) -> bool:
    """Return whether an attention is a layer, or lies in it.

    Example:
        >>> inside("encoder.0.attention", "encoder"), inside("encoder.0", "enc")
        (True, False)
    """
    return name == layer or name.startswith(f"{layer}.")


def chosen(layer_names: Collection[str], layers: Sequence[str] | None) -> list[str]:
    """Return the attentions with these names, or inside modules with these names, in the order of the model.

    Raises:
        ConfigError: a name is none of these.
    """
    for layer in layers or ():
        if not any(inside(name, layer) for name in layer_names):
            raise ConfigError("layers", "names of attention layers", repr(layer), nearest(layer, layer_names))
    return [name for name in layer_names if layers is None or any(inside(name, layer) for layer in layers)]


def _listed(name: str, value: Any, kind: type, items: str, none: str) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, kind):
        got, hint = repr(value), f"Write {name}=[{value!r}]."
    elif isinstance(value, str | bytes) or not isinstance(value, Iterable):
        got, hint = repr(value), none
    elif not (members := list(value)):
        got, hint = "none", none
    elif wrong := [member for member in members if not isinstance(member, kind) or isinstance(member, bool)]:
        got, hint = repr(wrong[0]), none
    else:
        return members
    raise ConfigError(name, f"a list of {items}", got[:_EXCERPT], hint)


def _kind(value: object) -> str:
    return repr(value)[:_EXCERPT] if value is None or isinstance(value, str) else type(value).__name__
