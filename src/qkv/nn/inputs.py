"""Checks of the arguments with which layers are created and called."""

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from qkv.engine.describe import autocasts
from qkv.errors import ConfigError, DtypeError, ShapeError, UnsupportedError
from qkv.values.checked import is_whole_number
from qkv.values.execution import has_numbers, readable, sizes_vary
from qkv.values.parameters import expect_floats, is_dense
from qkv.values.plain_modules import is_plain

_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
_LARGEST_SIZE = 1 << 40
"""No machine has memory for more numbers than this."""


def expect_sizes(**sizes: int) -> None:
    """Check the sizes of a layer, by the names of its arguments.

    Raises:
        ConfigError: one is not a whole number from 1, or more than any memory holds.

    Example:
        >>> expect_sizes(width=8, hidden=0)
        Traceback (most recent call last):
        qkv.errors.ConfigError: hidden: expected a whole number from 1; got 0. It is a size of the layer.
    """
    for name, size in sizes.items():
        _expect_whole(name, size, 1, "It is a size of the layer.")


def expect_counts(**counts: int) -> None:
    """Check numbers that can be 0, by the names of their arguments.

    Raises:
        ConfigError: one is not a whole number from 0, or more than any memory holds.

    Example:
        >>> expect_counts(queries=3, keys=-1)
        Traceback (most recent call last):
        qkv.errors.ConfigError: keys: expected a whole number from 0; got -1. It counts something.
    """
    for name, count in counts.items():
        _expect_whole(name, count, 0, "It counts something.")


def _expect_whole(name: str, number: Any, least: int, hint: str) -> None:
    if not is_whole_number(number) or number < least:
        raise ConfigError(name, f"a whole number from {least}", repr(number), hint)
    if not sizes_vary() and number > _LARGEST_SIZE:
        raise ConfigError(name, f"at most {_LARGEST_SIZE:,}", f"{number}", hint)


def expect_integers(
    argument: str, x: Tensor, shape: tuple[int, ...], expected: str, within: tuple[int, int | None] | None = None
) -> None:
    """Check a tensor of positions, lengths or ids.

    Args:
        argument: its name.
        x: the tensor.
        shape: its shape; −1 for any size.
        expected: its shape in letters, for the message.
        within: the smallest and the largest number that it may hold, where it can be read; None for any.

    Raises:
        ShapeError: it has another shape, or holds another number.
        DtypeError: it is not a dense tensor of integers.

    Example:
        >>> expect_integers("lengths", torch.tensor([3, -1]), (2,), "(B,)", (0, None))
        Traceback (most recent call last):
        qkv.errors.ShapeError: lengths: expected numbers from 0; got -1. They count positions or ids.
    """
    if not isinstance(x, Tensor) or not is_dense(x) or x.dtype not in _INTEGERS:
        got = f"dtype {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise DtypeError(argument, "a dense tensor of integers", got, "Use torch.as_tensor, or .long().")
    fits = x.ndim == len(shape) and all(want in (-1, size) for size, want in zip(x.shape, shape, strict=True))
    if not fits:
        sizes = ", ".join(
            letter if want < 0 else f"{want}" for letter, want in zip(_letters(expected), shape, strict=True)
        )
        raise ShapeError(argument, f"shape {expected}, here ({sizes})", f"{tuple(x.shape)}", "Sizes must match.")
    if within is None or not readable(x) or not x.numel():
        return
    low, high = (int(number) for number in x.aminmax())
    least, most = within
    if low < least or (most is not None and high > most):
        numbers = f"numbers from {least}" + ("" if most is None else f" to {most}")
        raise ShapeError(argument, numbers, f"{low if low < least else high}", "They count positions or ids.")


def expect_numbers(argument: str, x: Tensor, why: str, hint: str) -> None:
    """Check that the numbers of a tensor can be read, where the size of a result depends on them.

    PyTorch's compiler decides itself: where it captures numbers, the size varies.

    Raises:
        UnsupportedError: a tracer or a transformation hides the numbers, or the tensor is on the device `meta`.

    Example:
        >>> expect_numbers("ids", torch.zeros(2, device="meta"), "the largest is a size", "Pass others.")
        Traceback (most recent call last):
        qkv.errors.UnsupportedError: ids: expected numbers that can be read, because the largest is a size; got ...
    """
    if not (torch.compiler.is_compiling() or has_numbers(x)):
        got = "a tensor on the device meta" if x.is_meta else "a tensor of a graph or a transformation, which has none"
        raise UnsupportedError(argument, f"numbers that can be read, because {why}", got, hint)


def _letters(shape: str) -> list[str]:
    return [letter for part in shape.strip("()").split(",") if (letter := part.strip())]


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


def expect_number(argument: str, number: float, *, least: float = -math.inf) -> None:
    """Check a number that is not a size.

    Raises:
        ConfigError: it is not finite, or less than the least one.

    Example:
        >>> expect_number("eps", -1.0, least=0)
        Traceback (most recent call last):
        qkv.errors.ConfigError: eps: expected a finite number from 0; got -1.0. It enters every result.
    """
    if not (isinstance(number, Real) and math.isfinite(number) and number >= least):
        expected = "a finite number" if least == -math.inf else f"a finite number from {least:g}"
        raise ConfigError(argument, expected, f"{number}", "It enters every result.")


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
        layer: the layer whose weight multiplies it; None to check neither device nor dtype.
        width: None for that of the layer, if it is a linear one.
        rank: the fewest dimensions that it may have.
        hint: how to correct a wrong width.

    Raises:
        ShapeError: it has another width, or too few dimensions.
        DtypeError: it is not a dense tensor of floating-point numbers, or the layer has another device or element
            type.

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
    # In a quantized layer, `weight` is a method.
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
