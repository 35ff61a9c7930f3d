"""Checks shared by all models: sizes at construction, tokens at run time, and where features of a source begin."""

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.errors import ConfigError, ShapeError, UnsupportedError, expect_name, setting
from qkv.nn.mechanism import MechanismConfig
from qkv.shapes import nearest_divisors
from qkv.values.catalog import as_flag
from qkv.values.rows import real_positions

Part = TypeVar("Part", bound=nn.Module)
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
        qkv.errors.ConfigError: model.cell: expected one of its names; got "gur". Did you mean "gru"?
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        kind, value, name = hints[field.name], getattr(config, field.name), f"model.{field.name}"
        if get_origin(kind) is Literal:
            expect_name(name, value, get_args(kind), "one of its names")
        elif kind is int and value < 1:
            raise ConfigError(name, "at least 1", str(value), "Use more.")
        elif kind is int and name.endswith("layers") and value > _LAYERS:
            raise ConfigError(name, f"at most {_LAYERS:,}", str(value), "Use fewer, wider layers.")
        elif kind is float and not 0 <= value < 1:
            raise ConfigError(name, "a fraction in [0, 1)", str(value), "0 disables it.")
        elif value is not None and get_origin(kind) in (Union, UnionType):
            _check_optional(name, kind, value)


def _check_optional(name: str, kind: Any, value: Any) -> None:
    """Check a setting that can be None: a name or a size."""
    choices = [part for part in get_args(kind) if part is not NoneType]
    names = [choice for part in choices if get_origin(part) is Literal for choice in get_args(part)]
    if int in choices and value < 1:
        raise ConfigError(name, "at least 1", str(value), "Omit it for the default.")
    if names and len(choices) == 1:
        expect_name(name, value, names, "one of its names")


def expect_attention(score: str) -> None:
    """Refuse "none" for a model that consists of attention.

    Raises:
        ConfigError: the score is "none".

    Example:
        >>> expect_attention("dot")
    """
    if score == "none":
        hint = f"Only a recurrent decoder can do without: choose another score, or {setting('model', 'gru')}."
        raise ConfigError("model.score", "a score, because a Transformer is attention", '"none"', hint)


def expect_attention_for_features(score: str) -> None:
    """Refuse features as a second source in a model that does not attend to its first source.

    Raises:
        ConfigError: the score is "none".
    """
    if score == "none":
        hint = f"Choose a score, or {setting('features', 'front')}."
        raise ConfigError("model.score", "an attention beside that over features", '"none"', hint)


def separate_attention(usual: MechanismConfig, part: str, score: str | None, normalizer: str | None) -> MechanismConfig:
    """Return the mechanism of one attention of a model, which differs from the usual one in its own settings.

    Args:
        usual: the mechanism that it has otherwise.
        part: the prefix of its settings.
        score, normalizer: the settings; None for the usual ones.

    Raises:
        ConfigError: a setting is unknown or does not apply; the message names it with its prefix.

    Example:
        >>> separate_attention(MechanismConfig(), "cross", "none", None)
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.cross_score: expected a score, because a Transformer is attention; got "none". ...
    """
    try:
        replaced = usual.replaced(score, normalizer)
        expect_attention(replaced.score)
    except ConfigError as error:
        name = error.argument.removeprefix("model.")
        if {"score": score, "normalizer": normalizer}.get(name) is None:
            raise
        raise error.about(f"model.{part}_{name}") from None
    return replaced


def check_heads(name: str, width: int, heads: int, heads_name: str = "heads") -> None:
    """Check that heads divide a width.

    Args:
        name: the name of the width's setting.
        width: the width.
        heads: the number of heads.
        heads_name: the name of the heads' setting.

    Raises:
        ConfigError: they do not.

    Example:
        >>> check_heads("width", 256, 3)
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.heads: expected a divisor of model.width; got 3 for width 256. Try 2 or 4.
    """
    if width % heads:
        got = f"{heads} for width {width}"
        raise ConfigError(
            f"model.{heads_name}", f"a divisor of {setting(f'model.{name}')}", got, nearest_divisors(width, heads)
        )


def check_positions(positions: str, mechanism: MechanismConfig, width: int, *, bounded: bool = False) -> None:
    """Check that positions suit an attention.

    Args:
        positions: their name.
        mechanism: score and normalizer.
        width: the width of a head.
        bounded: whether texts have a largest length, so that positions can be learned.

    Raises:
        ConfigError: rotary positions with a score that is neither a product nor a distance, or with an odd width; or a
            position bias with scores that must not be negative.

    Example:
        >>> check_positions("rotary", MechanismConfig(score="additive"), 8)
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.positions: expected sinusoidal, alibi, relative or none with additive ...
    """
    biases = ("alibi", "relative")
    if positions == "rotary" and mechanism.rotates and width % 2:
        hint = "Rotary positions rotate pairs: choose another number of heads."
        raise ConfigError("model.heads", "an even width per head", f"{width}", hint)
    misfits: tuple[str, ...] = () if mechanism.rotates else ("rotary",)
    misfits += biases if mechanism.normalizer == "sum" else ()
    if positions in misfits:
        names = ("sinusoidal", "learned", "rotary", *biases) if bounded else ("sinusoidal", "rotary", *biases)
        fitting = ", ".join(name for name in names if name not in misfits)
        expected = f"{fitting} or none with {as_flag(mechanism.score)} under {mechanism.normalizer}"
        hint = (
            "They add to the scores, which a sum needs above 0: use "
            f"{setting('normalizer', 'softmax')}, or {setting('score', 'squared-distance')}."
            if positions in biases
            else "Of rotated vectors, only dot products and distances depend just on the difference of positions."
        )
        raise ConfigError("model.positions", expected, f'"{positions}"', hint)


def expect_unbounded(positions: str | None) -> None:
    """Refuse learned positions for a model of texts of any length.

    Raises:
        ConfigError: the positions are "learned".

    Example:
        >>> expect_unbounded("relative")
    """
    if positions == "learned":
        hint = "A text can be longer than any in training: use relative, whose distances are learned too."
        expected = "sinusoidal, rotary, alibi, relative or none"
        raise ConfigError("model.positions", expected, '"learned"', hint)


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
        raise ShapeError("lengths", f"{source.shape[0]} numbers", f"{lengths.shape[0]}", hint)
    if source.shape[1] == 0:
        source = F.pad(source, (0, 1))
    real = real_positions(lengths, source.shape[1])
    ids = torch.where(real, source, 0)
    _within("lengths", lengths, source.shape[1] + 1, "A length counts the tokens of its row.")
    _within("source", ids, size, "Use the tokenizer that the model was trained with.")
    return ids, real


def padding_of(lengths: Tensor, longest: int) -> Tensor | None:
    """Return the lengths if any row is padded, else None: attention without a mask is cheaper.

    Args:
        lengths: (B,).
        longest: S, the positions of each row.

    Returns:
        `lengths`, or None; on an accelerator always `lengths`, because checking would synchronize.

    Example:
        >>> padding_of(torch.tensor([2, 2]), 2) is None
        True
    """
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling() and bool((lengths >= longest).all()):
        return None
    return lengths


class Sides(NamedTuple):
    """A batch of sources whose features, symbols after a mark, are a second source with an attention of its own.

    Attributes:
        lengths: symbols before the mark, (B,).
        features: which positions hold features, bool (B, S).
    """

    lengths: Tensor
    features: Tensor


def split_source(ids_BS: Tensor, lengths: Tensor, mark: int) -> Sides:
    """Split sources at the last mark of each row; a row without one has no features.

    Args:
        ids_BS: (B, S), int64.
        lengths: real positions, (B,).
        mark: the id between a source and its features.

    Example:
        >>> sides = split_source(torch.tensor([[5, 6, 4, 7], [5, 6, 7, 0]]), torch.tensor([4, 3]), mark=4)
        >>> sides.lengths.tolist(), sides.features.int().tolist()
        ([2, 3], [[0, 0, 0, 1], [0, 0, 0, 0]])
    """
    indices = torch.arange(ids_BS.shape[1], device=ids_BS.device)
    real = indices < lengths[:, None]
    last = torch.where((ids_BS == mark) & real, indices, -1).amax(1)
    before = torch.where(last < 0, lengths, last)
    return Sides(before, (indices > before[:, None]) & real)


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
        raise ShapeError("target", f"{rows} rows of at least one token", f"{tuple(target.shape)}", hint)
    _within("target", target, size, "Use the tokenizer that the model was trained with.")


def _expect(argument: str, ids: Tensor, rank: int, shape: str) -> None:
    if ids.ndim != rank or ids.dtype != torch.int64:
        got = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise ShapeError(argument, f"int64 of shape {shape}", got, "Token ids and counts are integers.")


def _within(argument: str, ids: Tensor, end: int, hint: str) -> None:
    # On an accelerator this would synchronize at every step; the device's own assertion has to suffice.
    if ids.device.type == "cpu" and not torch.compiler.is_compiling() and ids.numel():
        low, high = ids.aminmax()
        if low < 0 or high >= end:
            got = f"{int(low) if low < 0 else int(high)}"
            raise ShapeError(argument, f"numbers from 0 to {end - 1}", got, hint)


def parts_of(stack: nn.ModuleList, kind: type[Part], name: str) -> list[Part]:
    """Return the parts of a stack, all of which must have the methods of one class.

    Args:
        stack: the list.
        kind: the class; a subclass will do.
        name: how an error names the list.

    Raises:
        UnsupportedError: a part was replaced by a module of another class.

    Example:
        >>> parts_of(nn.ModuleList([nn.Linear(2, 3)]), nn.GRU, "layers")
        Traceback (most recent call last):
        qkv.errors.UnsupportedError: layers.0: expected a GRU; got Linear. Replace a part inside of it, or subclass it.
    """
    parts: list[Part] = []
    for index, part in enumerate(stack):
        if not isinstance(part, kind):
            hint = "Replace a part inside of it, or subclass it."
            raise UnsupportedError(f"{name}.{index}", f"a {kind.__name__}", type(part).__name__, hint)
        parts.append(part)
    return parts
