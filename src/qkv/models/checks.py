"""What every model checks: its sizes when it is made, its tokens when it runs."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.errors import ConfigError, ShapeError, error_message, nearest

_LAYERS = 10_000
"""Of any kind at most: nothing so deep was ever trained, and each takes milliseconds to be made."""


def check_config(config: Any) -> None:
    """Check the fields of a model's configuration by their types.

    Args:
        config: a dataclass; its texts are one of a few names, its whole numbers sizes, its other numbers shares that
            are dropped.

    Raises:
        ConfigError: an unknown name, with the nearest valid one; a size below one; more layers than anyone trains; a
            share outside [0, 1).

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
            raise ConfigError(error_message(name, f"at most {_LAYERS:,}", str(value), "Use fewer, and wider ones."))
        elif kind is float and not 0 <= value < 1:
            raise ConfigError(error_message(name, "a share in [0, 1)", str(value), "0 switches it off."))


def clean_source(source: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Check a batch of sources, and blot out what stands after each row's length.

    Args:
        source: token ids (B, S), int64.
        lengths: (B,), int64, from 0 to S.
        size: pieces in the vocabulary.

    Returns:
        The ids, 0 in the padding, at least one column; and which are real, (B, S) bool.

    Raises:
        ShapeError: shapes or types that are not these, a length beyond S, or an id beyond the vocabulary.

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
    _within("source", ids, size, "The ids come from the tokenizer that the model was made for.")
    return ids, real


def padding_of(lengths: Tensor, real: Tensor) -> Tensor | None:
    """The lengths where some row is padded, None where none is: attention that hides nothing is cheaper.

    Args:
        lengths: (B,).
        real: which positions are real (B, S).

    Returns:
        `lengths`, or None; on an accelerator always `lengths`, for asking would wait for the device.

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
        ShapeError: another shape or type, or an id beyond the vocabulary.

    Example:
        >>> check_target(torch.tensor([[1, 5]]), rows=1, size=8)
    """
    _expect("target", target, 2, "(B, T)")
    if target.shape[0] != rows or target.shape[1] == 0:
        hint = "Each row begins with the begin mark."
        raise ShapeError(error_message("target", f"{rows} rows of one token or more", f"{tuple(target.shape)}", hint))
    _within("target", target, size, "The ids come from the tokenizer that the model was made for.")


def _expect(argument: str, ids: Tensor, rank: int, shape: str) -> None:
    if ids.ndim != rank or ids.dtype != torch.int64:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise ShapeError(
            error_message(argument, f"int64 of shape {shape}", got, "Token ids and counts are whole numbers.")
        )


def _within(argument: str, ids: Tensor, end: int, hint: str) -> None:
    # On an accelerator this would wait for the device at every step: its own assertion must do there.
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and ids.numel():
        low, high = ids.aminmax()
        if low < 0 or high >= end:
            got = f"{int(low) if low < 0 else int(high)}"
            raise ShapeError(error_message(argument, f"numbers from 0 to {end - 1}", got, hint))
