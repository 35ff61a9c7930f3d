"""Names and numbers as JSON, and nothing else: strict, bounded, deterministic."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from qkv.errors import CheckpointError
from qkv.strict_json import parse_json

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

_DEPTH = 32


def encode(value: JsonValue, what: str) -> bytes:
    """Serialize names and numbers as JSON, the same bytes for the same value.

    Args:
        value: mappings with string keys, sequences, strings, finite numbers, booleans, None; at most 32 levels.
        what: its name in messages.

    Returns:
        UTF-8 text with sorted keys, ended by a line feed.

    Raises:
        CheckpointError: it contains something else; the message says where.

    Example:
        >>> encode({"width": 256, "kind": "gru"}, "config")
        b'{\\n "kind": "gru",\\n "width": 256\\n}\\n'
        >>> encode({"rate": float("nan")}, "config")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: config.rate: expected a name or a finite number; got nan. ...
    """
    _check(value, what, 0)
    try:
        text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"
    except ValueError as error:
        raise CheckpointError(what, "text that is valid UTF-8", str(error), "Correct this text.") from error


def decode(data: bytes, what: str) -> JsonValue:
    """Parse the output of `encode`.

    Args:
        data: UTF-8 JSON; the caller must bound its size.
        what: its name in messages, as a path.

    Returns:
        Its value, built from dict, list, str, int, float, bool and None.

    Raises:
        CheckpointError: it is not JSON, repeats a key, is nested too deeply, or contains a number that is not finite.

    Example:
        >>> decode(b'{"width": 256}', "config.json")
        {'width': 256}
    """
    try:
        value = parse_json(data, finite=False)  # `_check` says where a number is not
        _check(value, what, 0)
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        hint = "The file was altered: copy the checkpoint again from its source."
        raise CheckpointError(what, "JSON of names and numbers", str(error), hint) from error
    return value  # type: ignore[no-any-return]


def decode_mapping(data: bytes, what: str) -> dict[str, JsonValue]:
    """Parse a JSON object written by `encode`.

    Args:
        data: UTF-8 JSON.
        what: its name in messages, as a path.

    Returns:
        The mapping.

    Raises:
        CheckpointError: as for `decode`, or it is not an object.
    """
    value = decode(data, what)
    if not isinstance(value, dict):
        hint = "The file was altered: copy the checkpoint again from its source."
        raise CheckpointError(what, "a JSON object", type(value).__name__, hint)
    return value


def is_version(value: object, version: int) -> bool:
    """Return whether a file's version is a given integer; `True` is refused, though it equals 1 in Python.

    Example:
        >>> is_version(1, 1), is_version(True, 1)
        (True, False)
    """
    return type(value) is int and value == version


def differences(stored: JsonValue, current: JsonValue, name: str = "") -> list[tuple[str, JsonValue, JsonValue]]:
    """List the fields in which two configurations differ.

    Args:
        stored: one of them; missing fields count as None.
        current: the other.
        name: the field that contains them, empty at the top.

    Returns:
        The dotted name and both values of each field, sorted by name.

    Example:
        >>> differences({"model": {"width": 256}, "seed": 1}, {"model": {"width": 512}, "seed": 1})
        [('model.width', 256, 512)]
    """
    if not (isinstance(stored, Mapping) and isinstance(current, Mapping)):
        same = encode(stored, name) == encode(current, name)
        return [] if same else [(name, stored, current)]
    changed = []
    for key in sorted(stored.keys() | current.keys()):
        changed += differences(stored.get(key), current.get(key), f"{name}.{key}" if name else key)
    return changed


def _check(value: object, where: str, depth: int) -> None:
    if depth > _DEPTH:
        raise CheckpointError(where, f"at most {_DEPTH} levels", "more", "Store a flatter structure.")
    match value:
        case None | bool() | int() | str():
            return
        case float() if math.isfinite(value):
            return
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    hint = "Convert the key to a string."
                    raise CheckpointError(where, "string keys", repr(key)[:80], hint)
                _check(item, f"{where}.{key[:80]}", depth + 1)
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, f"{where}[{index}]", depth + 1)
        case _:
            hint = "Only strings, finite numbers, booleans, None, and lists and mappings of these can be stored."
            raise CheckpointError(where, "a name or a finite number", repr(value)[:80], hint)
