"""Whether a module may be read as plain weights instead of being called.

Packed weights, fused steps and loops over time read the parameters of modules. That is right only for a module that
would compute what its class computes, unobserved: a hook, an adapter (LoRA), a parametrization, quantization or a
replaced `forward` can change what a call returns. Everything that reads the weights of a module asks here first, and
calls the module otherwise.
"""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize

from qkv.errors import UnsupportedError


def has_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module runs hooks, of its own or registered for all modules.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> handle = layer.register_forward_hook(print)
        >>> has_hooks(layer), has_hooks(nn.Linear(2, 3))
        (True, False)
    """
    return has_module_hooks(module) or has_global_hooks()


def has_global_hooks() -> bool:
    """Return whether hooks are registered for all modules.

    Example:
        >>> has_global_hooks()
        False
    """
    return bool(
        modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )


def is_plain(module: nn.Module | None, *classes: type[nn.Module]) -> bool:
    """Return whether a module may be read as the weights of one of some classes.

    Args:
        module: the module; None is not plain.
        classes: the classes whose computation the reader knows. Subclasses are not plain: an adapter, a quantized layer
            or a parametrized one is a subclass or another class.

    Example:
        >>> is_plain(nn.Linear(2, 3), nn.Linear)
        True
        >>> is_plain(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)), nn.Linear)
        False
    """
    return type(module) in classes and module is not None and not is_watched(module) and not has_global_hooks()


def are_plain_in_evaluation(modules: Iterable[nn.Module]) -> bool:
    """Return whether modules only evaluate, and calls without gradients run what their classes compute.

    Example:
        >>> are_plain_in_evaluation([nn.Linear(2, 3).eval()]), are_plain_in_evaluation([nn.Linear(2, 3)])
        (True, False)
    """
    if has_global_hooks():
        return False
    # A plain loop over the modules' tables: it runs for each block of each step of a decoding.
    for module in modules:
        table = module.__dict__
        if table["training"] or table["_forward_hooks"] or table["_forward_pre_hooks"]:
            return False
        if "forward" in table or table.get("_compiled_call_impl") is not None:
            return False
    return True


def is_watched(module: nn.Module) -> bool:
    """Return whether a module of parameters (a score, a normalizer, a bias) must be called, not read.

    Then it has hooks, or a call of it runs something else than its class's `forward`: replaced, or compiled. Hooks for
    all modules do not count: they watch calls, and such a module is not called.

    Example:
        >>> is_watched(nn.Linear(2, 3))
        False
    """
    return "forward" in module.__dict__ or module._compiled_call_impl is not None or has_module_hooks(module)


def plain_weights(layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of a linear layer for a copy in another form, such as an export.

    Args:
        layer: `nn.Linear`, parametrized or not.
        name: how an error names it.

    Returns:
        The weight (out, in) and the bias (out), or None.

    Raises:
        UnsupportedError: it is another layer, or a hook or a replaced `forward` decides what it returns.

    Example:
        >>> plain_weights(nn.Linear(2, 3), "output")[0].shape
        torch.Size([3, 2])
    """
    linear = type(layer) is nn.Linear or (isinstance(layer, nn.Linear) and parametrize.is_parametrized(layer))
    if not linear or is_watched(layer):
        got = type(layer).__name__ + (" with hooks" if has_module_hooks(layer) else "")
        hint = "Merge adapters, and remove hooks and quantization first."
        raise UnsupportedError(name, "a layer that is its weight and bias alone: nn.Linear", got, hint)
    assert isinstance(layer, nn.Linear)
    return layer.weight, layer.bias


def has_module_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks of its own that a call runs.

    Example:
        >>> has_module_hooks(nn.Linear(2, 3))
        False
    """
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )
