"""Mechanisms as names, numbers and tensors, the form in which a trace is saved."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any, final

import torch
from torch import Tensor

from qkv.biases import Alibi, Relative
from qkv.errors import DataError, QkvError, UnsupportedError, nearest
from qkv.masks.patterns import MASKS
from qkv.normalizers.catalog import NORMALIZERS
from qkv.normalizers.row_state import RowState
from qkv.scores.catalog import SCORES
from qkv.scores.free import Learned

_CLASSES: tuple[type, ...] = (
    *(cls for cls in SCORES.classes if cls is not Learned),
    *NORMALIZERS.classes,
    *MASKS,
    *(Alibi, Relative, RowState),
)
_NAMES = {cls.__name__: cls for cls in _CLASSES}
_TEXTS = ("align", "activation", "kind")
_LATER = {"RowState": {"winner", "keys"}}
"""Fields that files of earlier versions lack."""
SPREAD, COPIED = (1 << 27, 1024), (1 << 20, 64)
"""Limits on the size of tensors that repeat stored numbers, as (numbers, times the stored numbers), of which the larger
counts: SPREAD for masks and biases, COPIED for others, which are copied when they are checked.
"""


@final
class Writer:
    """Converts values to JSON, and collects their tensors; tensors that share memory are stored once.

    Attributes:
        tensors: by the names that the JSON uses.

    Example:
        >>> from qkv.normalizers.dense import Softmax
        >>> writer = Writer()
        >>> writer.plain(Softmax(torch.zeros(1).expand(8)))
        {'value': 'Softmax', 'fields': {'sink': {'tensor': '0', 'shape': [8]}}}
        >>> writer.tensors["0"].shape
        torch.Size([1])
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[object, str] = {}

    def plain(self, value: Any) -> Any:
        """Convert a number, string, tensor, or value of qkv to JSON.

        Raises:
            UnsupportedError: a user-defined function, which a file of names and numbers cannot store.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            return {str(name): self.plain(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(part) for part in value]
        if is_dataclass(value) and _NAMES.get(type(value).__name__) is type(value):
            values = {part.name: self.plain(getattr(value, part.name)) for part in fields(value)}
            return {"value": type(value).__name__, "fields": values}
        hint = "Display it with trace.show(), or save a page: trace.save('trace.html')."
        raise UnsupportedError("trace", "names, numbers and tensors", type(value).__name__, hint)

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        values = tensor.detach()
        # A dimension of stride 0 repeats one entry.
        for dimension, step in enumerate(values.stride()):
            if step == 0 and values.shape[dimension] > 1:
                values = values.narrow(dimension, 0, 1)
        key = (values.data_ptr(), tuple(values.shape), values.stride(), values.dtype, values.device)
        name = self._names.setdefault(key, str(len(self.tensors)))
        if name not in self.tensors:
            self.tensors[name] = values.cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name, "shape": list(tensor.shape)}


@final
class ValueReader:
    """Parses and validates the output of a `Writer`.

    Args:
        tensors: the tensors by name.
        path: file name for messages.
    """

    def __init__(self, tensors: Mapping[str, Tensor], path: str) -> None:
        self._tensors = tensors
        self.path = path

    def value(self, plain: Any) -> Any:
        """Convert JSON to a value.

        Raises:
            DataError: a `Writer` could not have written it.
        """
        match plain:
            case None | bool() | int() | float() | str():
                return plain
            case list():
                return [self.value(part) for part in plain]
            case {"tensor": str(name), "shape": list(shape), **rest} if not rest:
                return self._tensor(name, shape)
            case {"value": str(name), "fields": dict(parts), **rest} if not rest:
                return self._built(name, {field: self.value(part) for field, part in parts.items()})
            case dict():
                return {name: self.value(part) for name, part in plain.items()}
        raise self.wrong("names, numbers and tensors", type(plain).__name__)

    def bias(self, plain: Any) -> Any:
        """Convert JSON to a bias, which can repeat stored data more often.

        Raises:
            DataError: a `Writer` could not have written it.
        """
        match plain:
            case {"tensor": str(name), "shape": list(shape), **rest} if not rest:
                return self._tensor(name, shape, spread=True)
        return self.value(plain)

    def wrong(self, expected: str, got: str) -> DataError:
        """Build an error that names the file."""
        hint = "The file was altered: save the trace again."
        return DataError(self.path, expected, got[:200], hint)

    def _tensor(self, name: str, shape: list[Any], spread: bool = False) -> Tensor:
        if name not in self._tensors:
            raise self.wrong("the tensors that it names", f"no tensor {name!r}")
        stored, wide = self._tensors[name], all(type(size) is int and size >= 0 for size in shape)
        pairs = zip(stored.shape, shape, strict=False)
        if len(shape) != stored.ndim or not wide or not all(have in (1, want) for have, want in pairs):
            raise self.wrong(f"a shape that {tuple(stored.shape)} expands to", str(shape))
        most, times = SPREAD if spread or stored.dtype == torch.bool else COPIED
        if prod(shape) > max(most, times * stored.numel()):
            raise self.wrong(f"at most {times} times the stored size", f"shape {shape}")
        return stored.expand(shape)

    def _built(self, name: str, parts: dict[str, Any]) -> Any:
        cls = _NAMES.get(name)
        if cls is None:
            raise self.wrong("the names of mechanisms", f"{name!r}. {nearest(name, _NAMES)}")
        names = {part.name for part in fields(cls)}
        if not names - _LATER.get(name, set()) <= set(parts) <= names:
            raise self.wrong(f"the fields of {name}", ", ".join(parts))
        text = next((field for field, part in parts.items() if isinstance(part, str) and field not in _TEXTS), None)
        if text is not None:
            raise self.wrong(f"a number or tensor as {name}({text})", repr(parts[text]))
        try:
            return cls(**parts)
        except (QkvError, TypeError, ValueError) as error:
            raise self.wrong(f"a {name}", str(error)) from error


def brief(value: Any) -> str:
    """Describe a value from a file, at any claimed size: of a tensor only the shape.

    Example:
        >>> brief([None, "a", torch.zeros(1).expand(1 << 40)])
        "[None, 'a', a tensor of shape (1099511627776,)]"
    """
    match value:
        case Tensor():
            return f"a tensor of shape {tuple(value.shape)}"
        case list() | tuple() | set():
            return f"[{', '.join(brief(part) for part in list(value)[:4])}{', ...' if len(value) > 4 else ''}]"
        case None | bool() | int() | float() | str():
            return repr(value)[:60]
    return type(value).__name__
