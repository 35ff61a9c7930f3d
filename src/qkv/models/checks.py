"""Checks shared by all models: sizes at construction, tokens at run time."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import ConfigError, ShapeError, error_message, nearest

_LAYERS = 10_000
"""Maximum number of layers of any kind: nothing deeper was ever trained, and each takes milliseconds to create."""


def check_config(config: Any) -> None:
    """Check the fields of a model's configuration by their types.

    Args:
        config: a dataclass whose strings are names, integers are sizes, and other numbers are dropout fractions.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), a size is below one, there are too many
            layers, or a fraction is outside [0, 1).

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Sizes:
        ...     cell: Literal["gru", "lstm"]
        >>> check_config(Sizes("gur"))
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.cell: expected one of its names; got 'gur'. Did you mean "gru"?
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        kind, value, name = hints[field.name], getattr(config, field.name), f"model.{field.name}"
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                hint = nearest(str(value), get_args(kind))
                raise ConfigError(error_message(name, "one of its names", repr(value), hint))
        elif kind is int and value < 1:
            raise ConfigError(error_message(name, "at least 1", str(value), "Use more."))
        elif kind is int and name.endswith("layers") and value > _LAYERS:
            raise ConfigError(error_message(name, f"at most {_LAYERS:,}", str(value), "Use fewer, wider layers."))
        elif kind is float and not 0 <= value < 1:
            raise ConfigError(error_message(name, "a fraction in [0, 1)", str(value), "0 disables it."))


def clean_source(source: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Check a batch of sources, and zero the entries at or after each row's length.

    Args:
        source: token ids (B, S), int64.
        lengths: (B,), int64, from 0 to S.
        size: vocabulary size.

    Returns:
        The ids, 0 in the padding, at least one column; and which are real, (B, S) bool.

    Raises:
        ShapeError: a shape or dtype is wrong, a length exceeds S, or an id is not in the vocabulary.

    Example:
        >>> clean_source(torch.tensor([[5, 9]]), torch.tensor([1]), size=8)
        (tensor([[5, 0]]), tensor([[ True, False]]))
    """
    _expect("source", source, 2, "(B, S)")
    _expect("lengths", lengths, 1, "(B,)")
    if lengths.shape[0] != source.shape[0]:
        hint = "Give one length for each row."
        raise ShapeError(error_message("lengths", f"{source.shape[0]} numbers", f"{lengths.shape[0]}", hint))
    if source.shape[1] == 0:
        source = F.pad(source, (0, 1))
    real = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
    ids = torch.where(real, source, 0)
    _within("lengths", lengths, source.shape[1] + 1, "A length counts the tokens of its row.")
    _within("source", ids, size, "Use the tokenizer that the model was trained with.")
    return ids, real


def padding_of(lengths: Tensor, real: Tensor) -> Tensor | None:
    """Return the lengths if any row is padded, else None: attention without a mask is cheaper.

    Args:
        lengths: (B,).
        real: which positions are real (B, S).

    Returns:
        `lengths`, or None; on an accelerator always `lengths`, because checking would synchronize.

    Example:
        >>> padding_of(torch.tensor([2, 2]), torch.ones(2, 2, dtype=torch.bool)) is None
        True
    """
    if real.device.type == "cpu" and not torch.compiler.is_compiling() and bool(real.all()):
        return None
    return lengths


def check_target(target: Tensor, rows: int, size: int) -> None:
    """Check target tokens (rows, T), int64.

    Raises:
        ShapeError: the shape or dtype is wrong, or an id is not in the vocabulary.

    Example:
        >>> check_target(torch.tensor([[1, 5]]), rows=1, size=8)
    """
    _expect("target", target, 2, "(B, T)")
    if target.shape[0] != rows or target.shape[1] == 0:
        hint = "Each row starts with the begin token."
        raise ShapeError(error_message("target", f"{rows} rows of at least one token", f"{tuple(target.shape)}", hint))
    _within("target", target, size, "Use the tokenizer that the model was trained with.")


def _expect(argument: str, ids: Tensor, rank: int, shape: str) -> None:
    if ids.ndim != rank or ids.dtype != torch.int64:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise ShapeError(error_message(argument, f"int64 of shape {shape}", got, "Token ids and counts are integers."))


def _within(argument: str, ids: Tensor, end: int, hint: str) -> None:
    # On an accelerator this would synchronize at every step; the device's own assertion has to suffice.
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and ids.numel():
        low, high = ids.aminmax()
        if low < 0 or high >= end:
            got = f"{int(low) if low < 0 else int(high)}"
            raise ShapeError(error_message(argument, f"numbers from 0 to {end - 1}", got, hint))
