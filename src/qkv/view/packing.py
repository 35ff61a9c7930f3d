"""Many answers as one short text: what repeats is written once, then compressed; `static/packed.js` reads it."""

import base64
import json
import zlib
from typing import Any, final

SHARED = 6
"""Lists from this length on are written once."""
SHARED_TEXT = 64
"""Texts from this length on too."""
_MEASURED = 16
"""Answers between two measurements of the size; each costs a few bytes."""
_document = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` would make an encoder for each value


def multiple(factors: list[float], matrix: list[float]) -> dict[str, Any]:
    """Return what stands for a matrix, row by row, whose row i is factor i times row i of another matrix.

    Example:
        >>> multiple([0.5, 0.5], [1.0, 2.0, 3.0, 4.0])
        {'x': [[0.5, 0.5], [1.0, 2.0, 3.0, 4.0]]}
    """
    return {"x": [factors, matrix]}


@final
class Packing:
    """Answers that are compressed as they come.

    Every list of at least `SHARED` items, and every text of `SHARED_TEXT` UTF-16 units, has a number, in the order in
    which they end; where it occurs again, it is `{"$": number}`. A matrix of which each row is a multiple of the same
    row of another one is `{"x": [factors, matrix]}`; `multiple` makes it. The text is a JSON object, compressed (RFC
    1951), in base64.

    Example:
        >>> packing = Packing()
        >>> packing.add("api/one", {"keys": [1, 2, 3, 4, 5, 6]})
        >>> packing.add("api/two", {"keys": [1, 2, 3, 4, 5, 6]})
        >>> packing.count, zlib.decompress(base64.b64decode(packing.text()), -15)
        (2, b'{"api/one":{"keys":[1,2,3,4,5,6]},"api/two":{"keys":{"$":0}}}')
    """

    def __init__(self) -> None:
        """Start with no answers."""
        self.count = 0
        self._numbers: dict[str, int] = {}
        self._compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of the text so far."""
        return -(-self._size // 3) * 4

    def add(self, name: str, answer: Any) -> None:
        """Add an answer under a name."""
        before = "," if self.count else "{"
        text = f"{before}{json.dumps(name)}:{self._shared(answer)}"
        self._append(self._compressor.compress(text.encode()))
        self._append(self._compressor.flush(zlib.Z_SYNC_FLUSH) if self.count % _MEASURED == 0 else b"")
        self.count += 1

    def text(self) -> str:
        """Return the whole text; nothing can be added afterwards."""
        self._append(self._compressor.compress(b"}" if self.count else b"{}") + self._compressor.flush())
        return base64.b64encode(b"".join(self._parts)).decode()

    def _append(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def _shared(self, item: Any) -> str:
        """Return JSON for a value, with lists that occurred before as numbers."""
        if isinstance(item, dict):
            return "{" + ",".join([f"{_document(name)}:{self._shared(value)}" for name, value in item.items()]) + "}"
        document = _document(item)
        if not isinstance(item, (list, tuple, str)):
            return document
        if document in self._numbers:
            return f'{{"$":{self._numbers[document]}}}'
        nested = not isinstance(item, str) and any(isinstance(value, (dict, list, tuple, str)) for value in item)
        text = "[" + ",".join([self._shared(value) for value in item]) + "]" if nested else document
        if _length(item) >= (SHARED_TEXT if isinstance(item, str) else SHARED):
            self._numbers[document] = len(self._numbers)
        return text


def _length(item: list[Any] | tuple[Any, ...] | str) -> int:
    """Return how many items, or how many characters as JavaScript counts them."""
    return len(item.encode("utf-16-le", "surrogatepass")) // 2 if isinstance(item, str) else len(item)
