"""Registration of small frozen values with PyTorch, so that compiled and exported functions accept them."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.utils import _pytree

T = TypeVar("T")
_FIELDS: dict[type, list[str]] = {}
"""The fields of each registered value."""


def value(cls: type[T]) -> type[T]:
    """Register a frozen dataclass whose fields are tensors, numbers, strings or other such values.

    All its fields are children of the pytree node, numbers and strings included; there is no context.

    Example:
        >>> from dataclasses import dataclass
        >>> @value
        ... @dataclass(frozen=True)
        ... class Pair:
        ...     left: object
        ...     right: object
        >>> _pytree.tree_map(lambda leaf: leaf + 1, Pair(1, 2))
        Pair(left=2, right=3)
    """
    names = _FIELDS[cls] = [field.name for field in fields(cls)]  # type: ignore[arg-type]

    def flatten(instance: T) -> tuple[list[Any], None]:
        return [getattr(instance, name) for name in names], None

    def unflatten(leaves: Any, context: None) -> T:
        # The fields were checked at construction; here they can be a tracer's placeholders.
        instance = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(instance, name, leaf)
        return instance

    def flatten_with_keys(instance: T) -> tuple[list[tuple[_pytree.KeyEntry, Any]], None]:
        return [(_pytree.GetAttrKey(name), getattr(instance, name)) for name in names], None

    _pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    return cls


_NUMBERS = frozenset({int, float, bool, str, type(None)})


def tensors_in(instance: object) -> list[Tensor]:
    """Return the tensors of a score, normalizer or mask; user-defined ones too, but not what a function closes over.

    Example:
        >>> import torch
        >>> from qkv.masks.patterns import causal, lengths
        >>> tensors_in(causal() | lengths(torch.tensor([3, 5])))
        [tensor([3, 5])]
    """
    tensors = []
    for part in parts_of(instance):
        if isinstance(part, Tensor):
            tensors.append(part)
        elif type(part) in _NUMBERS:
            continue
        elif isinstance(part, (list, tuple)) or is_dataclass(part) or hasattr(part, "visible"):
            tensors += tensors_in(part)
    return tensors


def parts_of(instance: object) -> Iterable[object]:
    """Return what a list or a value holds: of a value of ours its fields, of another object its attributes.

    PyTorch 2.11 and older trace neither `vars` nor `fields` of a frozen dataclass.

    Example:
        >>> from qkv.masks.patterns import window
        >>> parts_of(window(3, 0))
        [3, 0, 0]
    """
    if isinstance(instance, (list, tuple)):
        return instance
    names = _FIELDS.get(type(instance))
    return getattr(instance, "__dict__", {}).values() if names is None else [getattr(instance, name) for name in names]
