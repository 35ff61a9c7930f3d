"""Checks of what layers are created with, and of what they are called with."""

from numbers import Integral, Real

import torch
from torch import Tensor, nn

from qkv.engine.describe import autocasts, expect_floats
from qkv.errors import ConfigError, DtypeError, ShapeError
from qkv.values.plain import is_plain


def expect_sizes(**sizes: int) -> None:
    """Check the sizes of a layer, by the names of its arguments.

    Raises:
        ConfigError: one is not a whole number from 1.

    Example:
        >>> expect_sizes(width=8, hidden=0)
        Traceback (most recent call last):
        qkv.errors.ConfigError: hidden: expected a whole number from 1; got 0. It is a size of the layer.
    """
    for name, size in sizes.items():
        if not isinstance(size, Integral | torch.SymInt) or isinstance(size, bool) or size < 1:
            raise ConfigError(name, "a whole number from 1", repr(size), "It is a size of the layer.")


def expect_optional_sizes(**sizes: int | None) -> None:
    """Check those sizes of a layer that are not None, as `expect_sizes`."""
    expect_sizes(**{name: size for name, size in sizes.items() if size is not None})


def expect_fraction(argument: str, fraction: float) -> None:
    """Check the fraction that a layer drops.

    Raises:
        ConfigError: it is not in [0, 1).
    """
    if not (isinstance(fraction, Real) and 0.0 <= fraction < 1.0):
        raise ConfigError(argument, "a fraction in [0, 1)", f"{fraction}", "0 disables it.")


def expect_input(
    argument: str,
    x: Tensor,
    layer: nn.Module | None,
    width: int | None = None,
    *,
    rank: int = 2,
    hint: str = "The layer was created for that width.",
) -> None:
    """Check an input (..., width) of a layer.

    Args:
        argument: its name.
        x: the input.
        layer: what it is multiplied with; None if no weight tells the device.
        width: None for that of the layer, if it is a linear one.
        rank: the fewest dimensions that it may have.
        hint: how to mend another width.

    Raises:
        ShapeError: it has another width, or too few dimensions.
        DtypeError: it is no dense tensor of floating-point numbers, or the layer is on another device, or of another
            element type.

    Example:
        >>> expect_input("x", torch.zeros(2, 3), nn.Linear(4, 5))
        Traceback (most recent call last):
        qkv.errors.ShapeError: x: expected shape (..., 4); got (2, 3). The layer was created for that width.
    """
    expect_floats(argument, x, rank)
    width = getattr(layer, "in_features", None) if width is None else width
    if width is not None and x.shape[-1] != width:
        shape = ("...", "B, N")[rank > 1]
        raise ShapeError(argument, f"shape ({shape}, {width})", f"{tuple(x.shape)}", hint)
    # Of a quantized layer the weight is a method.
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if weight.device != x.device:
        hint = f"Move one of the two: {argument}.to(...), or the layer."
        raise DtypeError(argument, f"device {weight.device}, that of the layer", f"{x.device}", hint)
    # Other layers than PyTorch's own may cast their input, as autocast does.
    if weight.dtype != x.dtype and is_plain(layer, nn.Linear) and not autocasts(x.device.type):
        hint = f"Convert one of the two: {argument}.to(...), or the layer."
        raise DtypeError(argument, f"dtype {weight.dtype}, that of the layer", f"{x.dtype}", hint)
