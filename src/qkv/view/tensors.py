"""Numbers of a page as bytes: float32, float16, or int8 with a scale for each row; `static/network.js` reads them.

Bytes of the same significance follow each other, as in the shuffle filter of HDF5.
"""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from qkv.normalizers.base import Normalizer
from qkv.scores.base import Score
from qkv.values.catalog import Catalog
from qkv.view.answers.head import HeadIndex, part_of

_LEVELS = 127


def deflated(data: bytes) -> str:
    """Return bytes, compressed (RFC 1951), as base64.

    Example:
        >>> deflated(b"")
        'AwA='
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode()


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 (..., columns) and scales (..., 1)."""
    scales = (weight.detach().float().abs().amax(-1, keepdim=True) / _LEVELS).clamp(min=1e-12)
    return (weight.detach().float() / scales).round().to(torch.int8), scales


@final
class Tensors:
    """Tensors one after the other, as bytes; equal ones are stored once.

    Args:
        matrices: how tensors of two or more dimensions are stored: float32, float16, or int8 with a scale for each
            row. Vectors are float32, as are numbers that float16 cannot hold.
        prefix: the beginning of all names.

    Attributes:
        listed: where in the bytes each tensor is, by name.

    Example:
        >>> tensors = Tensors(torch.float16)
        >>> tensors.add("one", torch.eye(2)), tensors.add("two", torch.eye(2)), tensors.listed["one"]
        ({'tensor': 'one'}, {'tensor': 'one'}, {'shape': [2, 2], 'at': 0, 'half': True})
    """

    def __init__(self, matrices: torch.dtype, prefix: str = "") -> None:
        self.listed: dict[str, dict[str, Any]] = {}
        self._prefix = prefix
        self._matrices = matrices
        self._bytes = bytearray()
        self._known: list[tuple[str, Tensor]] = []

    def packed(self) -> str:
        """Return all bytes, compressed, as base64."""
        return deflated(bytes(self._bytes))

    def add(self, name: str, tensor: Tensor) -> dict[str, str]:
        """Append a tensor; return what stands for it elsewhere."""
        x, name = tensor.detach(), f"{self._prefix}{name}"
        for known, other in self._known:
            if x is other or (x.shape == other.shape and torch.equal(x, other)):
                return {"tensor": known}
        self._known.append((name, x))
        stored: dict[str, Any] = {"shape": list(x.shape)}
        if x.ndim > 1 and self._matrices == torch.int8:
            steps, scales = quantized(x)
            stored |= {"at": self._append(steps), "scale": self._append(scales)}
        elif x.ndim > 1 and self._matrices == torch.float16 and torch.equal(x.half().isfinite(), x.isfinite()):
            stored |= {"at": self._append(x.half()), "half": True}
        else:
            stored["at"] = self._append(x.float())
        self.listed[name] = stored
        return {"tensor": name}

    def part(
        self, name: str, catalog: Catalog[Any], value: Score | Normalizer, heads: int, groups: int
    ) -> dict[str, Any] | None:
        """Describe a score or normalizer: its name, and its numbers by head; None if a page has no formula for it."""
        entry = catalog.of(value)
        if entry is None or entry.name == "learned":
            return None
        parts: list[Any] = [part_of(value, HeadIndex(heads, groups, head)) for head in range(heads)]  # type: ignore[type-var]
        fields_of = [{part.name: getattr(of_head, part.name) for part in fields(of_head)} for of_head in parts]
        return {"name": entry.name, "heads": [self.numbers(f"{name}.{h}", of) for h, of in enumerate(fields_of)]}

    def numbers(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a score or normalizer as JSON: numbers as they are, tensors as references."""
        return {field: self._number(f"{name}.{field}", value) for field, value in values.items()}

    def _number(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return float(value) if value.ndim == 0 else self.add(name, value)

    def _append(self, tensor: Tensor) -> int:
        at = len(self._bytes)
        array = tensor.contiguous().cpu().numpy()
        numbers = np.frombuffer(array.astype(array.dtype.newbyteorder("<")).tobytes(), np.uint8)
        # Group bytes by significance: the exponents of neighboring numbers are alike, so they compress well.
        self._bytes += numbers.reshape(-1, array.itemsize).T.tobytes()
        return at
