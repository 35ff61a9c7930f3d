"""Ways to corrupt a file: its bytes, or the structure that they encode."""

import json
from copy import deepcopy
from random import Random
from typing import Any

PIECES = (
    *(b"\0", b"\xff", b"\xff\xfe", b"\xc3", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\n\n", b"\t", b"\t\t"),
    *("\u2028".encode(), "\u0085".encode(), b"\xed\xa0\x80", b"\\ud800", b"\x1f\x8b\x08", b"%s%n", b"\x1b[2J"),
    *(b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 30, b"9" * 5000, b"0x10", b"true", b"null", b'""'),
    *(b"[" * 3000, b'{"a":' * 1500, b"(" * 200, b'"../../outside/secret"', b"/etc/passwd", b"__import__('os')"),
    *(b"\x80\x04\x95", b"cos\nsystem\n", b"!!python/object", b"=cmd|' /C'!A0", b"\xff" * 8, b"\x7f" + b"\xff" * 7),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31, 2**31 - 1, 2**32, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30),
    *(0.5, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *("", "a", "\0", "\ud800", "\u2028", "x" * 5000, "../outside/secret", "/etc/passwd", "..", "model.safetensors"),
    *("gru", "transformer", "none", "translate", "__class__", "0", "<pad>", "\ufffd"),
    *([], {}, [[]], [0], [None], {"": 0}, {"tensor": "0", "shape": [2**40]}, {"value": "Softmax", "fields": {}}),
)


def spoil_bytes(data: bytes, random: Random) -> bytes:
    """Change, cut, duplicate, move or insert bytes, one to four times."""
    spoilt = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(spoilt) + 1)
        to = min(len(spoilt), at + random.choice((1, 1, 2, 8, 64, 1000)))
        match random.randrange(8):
            case 0 if at < len(spoilt):
                spoilt[at] ^= 1 << random.randrange(8)
            case 1 if at < len(spoilt):
                spoilt[at] = random.randrange(256)
            case 2:
                del spoilt[at:to]
            case 3:
                spoilt[at:at] = spoilt[at:to]
            case 4:
                del spoilt[at:]
            case 5:
                spoilt[at:at] = random.randbytes(random.randint(1, 16))
            case 6:
                spoilt[at:to] = random.choice(PIECES)
            case _:
                spoilt[at:at] = random.choice(PIECES)
    return bytes(spoilt)


def spoil_plain(value: Any, random: Random) -> Any:
    """Replace, remove, rename or duplicate a part of a nested structure, one to three times."""
    copy = json.loads(json.dumps(value))
    for _ in range(random.randint(1, 3)):
        copy = _spoil_once(copy, random)
    return copy


def _spoil_once(value: Any, random: Random) -> Any:
    homes = _containers(value)
    if not homes or random.randrange(40) == 0:
        return _value(random)
    home = random.choice(homes)
    keys = list(home) if isinstance(home, dict) else list(range(len(home)))
    if not keys:
        _add(home, "new", _value(random))
        return value
    key = random.choice(keys)
    match random.randrange(6):
        case 0:
            del home[key]
        case 1:
            _add(home, str(_value(random))[:60], home[key])
        case 2 if isinstance(home[key], int | float) and not isinstance(home[key], bool):
            home[key] = random.choice((home[key] + 1, -home[key], home[key] * 1000, home[key] * 2, home[key] + 0.5))
        case 3:
            home[key] = home[random.choice(keys)]
        case _:
            home[key] = _value(random)
    return json.loads(json.dumps(value))


def _value(random: Random) -> Any:
    # A copy: changing one structure must not change another through shared parts.
    return deepcopy(random.choice(VALUES))


def _add(home: Any, name: str, value: Any) -> None:
    if isinstance(home, dict):
        home[name] = value
    else:
        home.append(value)


def _containers(value: Any) -> list[Any]:
    found = []
    if isinstance(value, dict | list):
        found.append(value)
        for part in value.values() if isinstance(value, dict) else value:
            found += _containers(part)
    return found
