"""The one way in which qkv parses JSON from outside: standard JSON in UTF-8 whose every name means one thing."""

import json
import math
from typing import Any

_MOST = 1 << 21
"""Lists and objects; each takes 20 to 80 times its two bytes. The largest published tokenizers have a million."""


def parse_json(data: str | bytes, *, finite: bool = True) -> Any:
    """Parse JSON that another program, or nobody trusted, may have written.

    Args:
        data: the text, or its bytes in UTF-8.
        finite: whether numbers must be finite; no for what qkv itself writes with Python's names for the others.

    Returns:
        Its value, built from dict, list, str, int, float, bool and None.

    Raises:
        ValueError: it is not JSON in UTF-8, repeats a key, contains half of a surrogate pair, a number that is not
            finite, or more than 2,097,152 opening brackets and braces.
        RecursionError: it is nested too deeply.

    Example:
        >>> parse_json(b'{"width": 256}')
        {'width': 256}
        >>> parse_json('{"width": 256, "width": 512}')
        Traceback (most recent call last):
        ValueError: the same key twice
    """
    text = data if isinstance(data, str) else data.decode()
    if text.count("[") + text.count("{") > _MOST:
        raise ValueError(f"more than {_MOST:,} lists and objects")
    if finite:
        value = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse)
    else:
        value = json.loads(text, object_pairs_hook=_unique)
    if "\\u" in text:
        # Text that no file can hold could not be written, nor printed, where it is used.
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ascii(error.object[error.start])[1:-1]
            raise ValueError(f"{half}, half of a surrogate pair, which is no character") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("the same key twice")
    return mapping


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")
