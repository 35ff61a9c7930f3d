"""Settings from a TOML file and flags, as nested frozen dataclasses of names and numbers; unknown keys are errors."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from qkv.errors import ConfigError, nearest, setting
from qkv.files import read_file

T = TypeVar("T")
Plain = dict[str, Any]
_LARGEST = 1 << 20
_SHOWN = 200
"""How much of a value or a name a message quotes."""


def read_toml(path: Path) -> Plain:
    """Read a configuration file.

    Args:
        path: the file.

    Returns:
        Its tables.

    Raises:
        ConfigError: it cannot be read, or is not TOML; the message gives file and line.
    """
    try:
        data = read_file(path, _LARGEST)
        tables = tomllib.loads(data.decode("utf-8"))
        _expect_brief(tables)
    except OSError as error:
        raise ConfigError(
            setting("config"), "a readable file", f"{path}: {error.strerror}", "Check the name."
        ) from None
    except ValueError as error:
        raise ConfigError(
            setting("config"), "TOML in UTF-8", f"{path}: {str(error)[:_SHOWN]}", "Correct that line."
        ) from None
    except RecursionError:
        raise ConfigError(
            setting("config"), "flat tables of settings", f"{path}: nested too deeply", "Use flat tables."
        ) from None
    return tables


def _expect_brief(item: Any) -> None:
    """Check that integers fit 64 bits and names have a sensible length; Python's TOML parser accepts any.

    Raises:
        ValueError: an integer or a name is too long.
    """
    if isinstance(item, int) and not -(2**63) <= item < 2**63:
        raise ValueError("an integer of more than 64 bits")
    for name in item if isinstance(item, dict) else ():
        if len(name) > _SHOWN:
            raise ValueError(f"a name of {len(name):,} characters")
    for part in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        _expect_brief(part)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Plain:
    """Merge two nested mappings; the second wins.

    Example:
        >>> merge({"model": {"width": 256, "kind": "gru"}}, {"model": {"width": 512}})
        {'model': {'width': 512, 'kind': 'gru'}}
    """
    result = dict(below)
    for key, item in above.items():
        old = result.get(key)
        result[key] = merge(old, item) if isinstance(item, Mapping) and isinstance(old, Mapping) else item
    return result


def check_tables(tables: Mapping[str, Any], known: Sequence[str]) -> None:
    """Check that all names are known tables.

    Args:
        tables: the tables by name.
        known: the known names.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one), or is not a table.

    Example:
        >>> check_tables({"model": {}}, ("data", "model"))
    """
    for name, table in tables.items():
        if name not in known:
            expected = f"one of the tables {', '.join(known)}"
            raise ConfigError(name, expected, "an unknown name", nearest(name, known))
        if not isinstance(table, Mapping):
            got = json.dumps(table, default=str)[:_SHOWN]
            raise ConfigError(name, "a table of settings", got, f"Write [{name}] and its settings below.")


def build(cls: type[T], mapping: Mapping[str, Any], where: str = "") -> T:
    """Build a frozen dataclass from a mapping, checking every name and type.

    Args:
        cls: the dataclass; its fields can be dataclasses themselves.
        mapping: names and values.
        where: the dotted name of the table, for errors.

    Returns:
        The settings.

    Raises:
        ConfigError: a name is unknown (the message suggests the closest one) or missing, or a value has a wrong type.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Model:
        ...     width: int = 256
        >>> build(Model, {"width": 512})
        Model(width=512)
        >>> build(Model, {"widht": 512}, "model")
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.widht: expected a known setting; got an unknown one. Did you mean "width"?
    """
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for name in mapping:
        if name not in known:
            hint = nearest(str(name), known)
            raise ConfigError(_dotted(where, str(name)), "a known setting", "an unknown one", hint)
    values = {
        name: _value(hints[name], mapping[name], _dotted(where, name))
        if name in mapping
        else _default(field, hints, where)
        for name, field in known.items()
    }
    return cls(**values)


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _default(field: "Field[Any]", hints: Mapping[str, Any], where: str) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    hint = hints[field.name]
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, {}, _dotted(where, field.name))
    raise ConfigError(_dotted(where, field.name), "a value", "none", "It has no default: set it.")


def _value(hint: Any, item: Any, name: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(item, Mapping):
            raise ConfigError(name, "a table", repr(item)[:_SHOWN], f"Write [{name}] and its settings below.")
        return build(hint, item, name)
    for choice in _choices(hint):
        fits, converted = _converted(choice, item)
        if fits:
            return converted
    expected, names = _expected(hint), [str(x) for x in _choices(hint) if isinstance(x, str)]
    hint = nearest(item, names) if names and isinstance(item, str) else "Give a value of that type."
    raise ConfigError(name, expected, json.dumps(item, default=str)[:_SHOWN], hint)


def _choices(hint: Any) -> list[Any]:
    """Return the alternatives of a type hint: types, and the strings of a Literal."""
    if get_origin(hint) in (Union, UnionType, Literal):
        return [choice for part in get_args(hint) for choice in _choices(part)]
    return [hint]


def _converted(choice: Any, item: Any) -> tuple[bool, Any]:
    if choice in (NoneType, None):
        return item is None, None
    if choice is float:
        good = isinstance(item, (int, float)) and not isinstance(item, bool)
        return good, float(item) if good else None
    if choice is Path:
        return isinstance(item, (str, Path)), Path(item) if isinstance(item, (str, Path)) else None
    if get_origin(choice) is tuple:
        return isinstance(item, (list, tuple)), tuple(item) if isinstance(item, (list, tuple)) else None
    if isinstance(choice, type):
        return isinstance(item, choice) and not (choice is int and isinstance(item, bool)), item
    return item == choice, item


def _expected(hint: Any) -> str:
    words = {int: "an integer", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
    parts = [
        words.get(choice, json.dumps(choice) if isinstance(choice, str) else str(choice)) for choice in _choices(hint)
    ]
    return " or ".join(part for part in parts if "NoneType" not in part)


def plain(settings: Any) -> Plain:
    """Convert settings to a nested dict; None is omitted, paths become strings.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Data:
        ...     source: Path | None = None
        ...     size: int = 8
        >>> plain(Data())
        {'size': 8}
    """
    result: Plain = {}
    for field in fields(settings):
        item = getattr(settings, field.name)
        if is_dataclass(item) and not isinstance(item, type):
            result[field.name] = plain(item)
        elif item is not None:
            result[field.name] = (
                str(item) if isinstance(item, Path) else list(item) if isinstance(item, tuple) else item
            )
    return result


def to_toml(settings: Mapping[str, Any], where: str = "") -> str:
    """Format nested settings as TOML, so that `--print-config > run.toml` can be passed to `--config`.

    Example:
        >>> print(to_toml({"seed": 1, "model": {"kind": "gru"}}))
        seed = 1
        <BLANKLINE>
        [model]
        kind = "gru"
    """
    # A TOML string cannot contain DEL; a JSON string can.
    lines = [
        f"{key} = {json.dumps(item, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for key, item in settings.items()
        if not _table(item)
    ]
    for key, item in settings.items():
        if _table(item):
            name = _dotted(where, key)
            lines += ["", f"[{name}]", to_toml(item, name)]
    return "\n".join(lines).strip("\n")


def _table(item: Any) -> bool:
    return isinstance(item, Mapping)
