"""Parameters of scores and normalizers: how they align with heads, and which numbers they may be.

A parameter may be a number, a tensor, or a tensor per head: its head dimensions align from the right.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from qkv.errors import ConfigError, DtypeError, error_message
from qkv.shapes import Shape, align_right

T = TypeVar("T")


class Owner(ABC):
    """A module that owns the parameters of a score, a normalizer or a bias, and stands for its value."""

    @abstractmethod
    def value(self) -> object:
        """The value with the parameters as they are now."""


class Parameter(NamedTuple):
    """How a parameter is shaped: how many dimensions are its own, and whether it belongs to the keys."""

    name: str
    own: int
    of_key: bool = False


_TRACING = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)


def check_parameters(
    owner: object, parameters: Sequence[Parameter], leading: Shape, key_leading: Shape, device: torch.device
) -> None:
    """Raise where a parameter is no tensor, is on another device, or its heads do not fit the shape of its side."""
    for name, own, of_key in parameters:
        parameter = getattr(owner, name)
        if isinstance(parameter, Tensor):
            argument = f"{type(owner).__name__}({name})"
            align_right(parameter, own, key_leading if of_key else leading, argument)
            # As everywhere in PyTorch, a number in a tensor of the CPU goes with any device.
            if parameter.device != device and (parameter.ndim or parameter.device.type != "cpu"):
                hint = "Move it there with .to(query.device)."
                raise DtypeError(
                    error_message(argument, f"device {device}, that of query", f"{parameter.device}", hint)
                )
        elif own and parameter is not None:
            argument, got = f"{type(owner).__name__}({name})", type(parameter).__name__
            raise DtypeError(error_message(argument, "a torch.Tensor", got, "Use torch.as_tensor."))


def group(owner: T, parameters: Sequence[Parameter], groups: int, repeats: int) -> T:
    """The same value for query heads laid out as (groups, repeats), as grouped-query attention computes."""
    changes = {
        name: regroup(parameter, own, groups, repeats, of_key)
        for name, own, of_key in parameters
        if isinstance(parameter := getattr(owner, name), Tensor)
    }
    return replace(owner, **changes) if changes else owner  # type: ignore[type-var]


def regroup(parameter: Tensor, own: int, groups: int, repeats: int, of_key: bool = False) -> Tensor:
    """Split the head dimension of a tensor, where it has one, into (groups, repeats).

    Example:
        >>> regroup(torch.zeros(8, 16), 1, groups=2, repeats=4).shape
        torch.Size([2, 4, 16])
        >>> regroup(torch.zeros(2, 16, 16), 2, groups=2, repeats=4, of_key=True).shape
        torch.Size([2, 1, 16, 16])
    """
    head = parameter.ndim - own - 1
    if head < 0:
        return parameter
    if of_key or parameter.shape[head] == 1:
        return parameter.unsqueeze(head + 1)
    return parameter.reshape(*parameter.shape[:head], groups, repeats, *parameter.shape[head + 1 :])


def spread(parameter: float | Tensor, by: int = 2) -> float | Tensor:
    """Give a parameter per head, (H,) or a scalar, more dimensions, so that it stands beside (..., Q, K).

    Example:
        >>> spread(torch.ones(8)).shape
        torch.Size([8, 1, 1])
    """
    return parameter[(..., *(None,) * by)] if isinstance(parameter, Tensor) else parameter


def above(argument: str, number: object, limit: float, hint: str) -> None:
    """Raise ConfigError where a number, or any element of a tensor, is not above a limit.

    A tensor is read where that costs no waiting: on the CPU, outside tracing.

    Example:
        >>> above("bandwidth", -1.0, 0, "Widths are above 0.")
        Traceback (most recent call last):
        qkv.errors.ConfigError: bandwidth: expected a number above 0; got -1.0. Widths are above 0.
    """
    if isinstance(number, Tensor):
        good = not readable(number) or bool((number > limit).all())
    else:
        good = isinstance(number, (int, float, torch.SymFloat, torch.SymInt)) and number > limit
    if not good:
        got = f"a tensor with minimum {number.min().item():g}" if isinstance(number, Tensor) else repr(number)
        raise ConfigError(error_message(argument, f"a number above {limit:g}", got, hint))


def transformed() -> bool:
    """Whether calls of PyTorch are rewritten on their way, or followed: by vmap or grad, by derivatives taken forward,
    or where a graph is made of them.

    What is computed outside PyTorch's operators would be lost there.

    Example:
        >>> transformed()
        False
        >>> with torch.autograd.forward_ad.dual_level():
        ...     transformed()
        True
    """
    tracing = torch._C._get_tracing_state() is not None
    return tracing or _traced() or forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None


def forward_mode() -> bool:
    """Whether tangents may travel with tensors: derivatives taken forward, by `torch.autograd.forward_ad`."""
    return torch.autograd.forward_ad._current_level >= 0


def _traced() -> bool:
    """Whether `make_fx` or fake tensors are at work; who only looks on changes nothing."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING)


def finite(exponents: Tensor) -> Tensor:
    """The same, the largest numbers in place of infinite ones: for logs of terms of a sum, and of the sum.

    Nothing beside e^∞ counts, nor does e^−∞ beside anything, and so it is with these; but ∞ − ∞ is 0.

    Example:
        >>> finite(torch.tensor([torch.inf, -torch.inf, torch.nan, 2.0]))
        tensor([ 3.4028e+38, -3.4028e+38,         nan,  2.0000e+00])
    """
    # A wider type must not have larger ones: what comes after may compute in float32.
    largest = min(torch.finfo(exponents.dtype).max, torch.finfo(torch.float32).max)
    # Not clamp, which would hide NaN from gradients.
    above = torch.where(exponents > largest, largest, exponents)
    return torch.where(exponents < -largest, -largest, above)


def readable(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read without waiting: on the CPU, outside tracing and transformations.

    Example:
        >>> readable(torch.zeros(2)), readable(torch.zeros(2, device="meta"))
        (True, False)
    """
    if tensor.device.type != "cpu" or torch.compiler.is_compiling() or _traced():
        return False
    return type(tensor) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def numbers(tensor: Tensor) -> bool:
    """Whether a kernel may read and write a tensor's numbers where they lie, and nothing that follows them is lost.

    Example:
        >>> numbers(torch.ones(2)), numbers(torch._neg_view(torch.ones(2)))
        (True, False)
    """
    plain = readable(tensor) and not tensor.is_neg() and not tensor._is_zerotensor()
    return plain and not transformed() and torch._C._get_tracing_state() is None
