"""Where the tensors of another library's attention come from: its own sequence or another, and which tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import chain, count
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.errors import UnsupportedError
from qkv.nn.attention import Attention
from qkv.recording.hooks import PerThread, first_time

_PLAIN = (Tensor, bool, int, float, str, torch.dtype, torch.device, type(None))
"""What arguments of models hold apart from caches."""
_WITHOUT = "Record without a cache: use_cache=False; then each step is a pass of its own."


@final
class ProjectionHooks:
    """Hooks on a module that has an `Attention` beneath its projections; they note which arguments are projected.

    Keys come from another sequence if a projection takes an argument of the module other than the first. A cache keeps
    them from then on, as long as the module is given the same argument.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._inputs = PerThread(_ModuleInputs)
        self.hooks: list[RemovableHandle] = [
            module.register_forward_pre_hook(first_time(self._enter), with_kwargs=True)
        ]
        for part in module.modules():
            weight = getattr(part, "weight", None)
            if (
                part is not module
                and not isinstance(part, Attention)
                and isinstance(weight, Tensor)
                and weight.ndim > 1
            ):
                self.hooks.append(part.register_forward_pre_hook(first_time(self._project)))

    @property
    def self_attention(self) -> bool:
        """Whether queries and keys come from one sequence."""
        inputs = self._inputs.get()
        return inputs.source is None or not any(_same(inputs.source, other) for other in inputs.others)

    @property
    def objects(self) -> list[str]:
        """The arguments of the module that can hold a cache, as `name=type`."""
        return self._inputs.get().objects

    def projected(self, key: Tensor) -> bool:
        """Return whether the module projected so many positions in this pass as it has keys (B, H, K, D)."""
        return self._inputs.get().positions >= key.shape[0] * key.shape[-2]

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        named = {str(index): argument for index, argument in enumerate(arguments)} | options
        tensors = {name: x for name, x in named.items() if isinstance(x, Tensor) and x.is_floating_point()}
        first = "hidden_states" if "hidden_states" in tensors else next(iter(tensors), "")
        inputs = self._inputs.get()
        inputs.first = tensors.pop(first, None)
        inputs.others = list(tensors.values())
        inputs.objects, inputs.positions = _objects(named), 0

    def _project(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs, x = self._inputs.get(), arguments[0] if arguments and isinstance(arguments[0], Tensor) else None
        if x is None:
            return
        inputs.positions = max(inputs.positions, _positions(module, x))
        if inputs.first is not None and _same(x, inputs.first):
            return
        source = next((other for other in inputs.others if _same(x, other)), None)
        inputs.source = inputs.source if source is None else source


@dataclass
class _ModuleInputs:
    """What one thread gave to a module: its first tensor, others, and the projected one of these.

    Attributes:
        objects: the arguments that can hold a cache.
        positions: the most positions that one of its projections was given, over the batch.
    """

    first: Tensor | None = None
    others: list[Tensor] = field(default_factory=list)
    source: Tensor | None = None
    objects: list[str] = field(default_factory=list)
    positions: int = 0


def _positions(projection: nn.Module, x: Tensor) -> int:
    """Return the number of positions in the input of a projection: (…, N, M), or (B, M, N, …) of a convolution."""
    weight = projection.weight
    assert isinstance(weight, Tensor)
    channels = -1 if x.ndim < 3 or x.shape[-1] in weight.shape else 1
    return x.numel() // max(x.shape[channels], 1)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same numbers in memory, whatever their shape."""
    return one is other or (one.data_ptr() == other.data_ptr() != 0 and one.numel() == other.numel())


class Position(NamedTuple):
    """Where a forward pass of a model of `transformers` stands in its text.

    Attributes:
        start: the number of positions that its cache holds; 0 without a cache.
        ids: the token ids that it was given, (B, Q); None if it was given none.
        cache: its cache, if any.
        objects: the arguments that can hold a cache, as `name=type`.
        names: the names of all arguments that it was given.
    """

    start: int
    ids: Tensor | None = None
    cache: Any = None
    objects: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def position_of(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Position:
    """Return where a pass of a model of `transformers` begins, from its arguments.

    Raises:
        UnsupportedError: it was given several caches, which hold different numbers of positions.
    """
    parameters = [*signature(type(module).forward).parameters.values()][1:] if arguments else []
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    further = (f"argument {index}" for index in count(len(names)))
    named = dict(zip(chain(names, further), arguments, strict=False)) | options
    named = {name: x for name, x in named.items() if x is not None}
    ids = named.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        ids = None
    caches = [(name, cache, length_of(cache)) for name, x in named.items() for cache in _caches(x)]
    if len({length for *_, length in caches}) > 1:
        got = ", ".join(f"{name} with {length} positions" for name, _, length in caches)
        raise UnsupportedError("record", "one cache for each model", got, _WITHOUT)
    _, cache, start = caches[0] if caches else ("", None, 0)
    return Position(start, None if ids is None else ids.clone(), cache, tuple(_objects(named)), tuple(named))


def _caches(x: Any) -> Iterator[Any]:
    """Yield the caches in an argument: objects that count their positions, or tuples of (key, value) for each layer."""
    if callable(getattr(x, "get_seq_length", None)) or _is_legacy(x):
        yield x
    elif isinstance(x, (list, tuple, Mapping)):
        for part in x.values() if isinstance(x, Mapping) else x:
            yield from _caches(part)


def _is_legacy(x: Any) -> bool:
    """Return whether this is a cache as it was before it had a class: for each layer a key (B, H, N, D) and others."""
    first = x[0] if isinstance(x, (list, tuple)) and x else None
    key = first[0] if isinstance(first, (list, tuple)) and first else None
    return isinstance(key, Tensor) and key.ndim == 4


def _objects(named: Mapping[str, Any]) -> list[str]:
    """Return the arguments that hold more than tensors and settings, as `name=type`."""
    return [f"{name}={type(x).__name__}" for name, x in named.items() if not _is_plain(x)]


def _is_plain(x: Any) -> bool:
    if isinstance(x, (list, tuple, Mapping)):
        return all(map(_is_plain, x.values() if isinstance(x, Mapping) else x))
    return isinstance(x, _PLAIN)


def length_of(cache: Any) -> int:
    """Return how many positions a cache of `transformers` holds."""
    return int(cache[0][0].shape[-2] if _is_legacy(cache) else cache.get_seq_length())


def unknown_cache(layer: str, queries: int, keys: int, names: Sequence[str]) -> UnsupportedError:
    """Return the error about a layer whose keys come from a cache that was not recognized.

    Args:
        layer: its path.
        queries, keys: how many it has.
        names: the arguments that may hold the cache.
    """
    expected = "a cache that counts its positions (get_seq_length), as those of transformers do, given to the model"
    got = f"{', '.join(names)}: {layer} has more keys ({keys}) than queries ({queries})"
    return UnsupportedError("record", expected, got, _WITHOUT)


def model_above(name: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the path of the innermost model of `transformers` that contains a module; None if there is none."""
    while True:
        if hasattr(modules[name], "base_model_prefix"):
            return name
        if not name:
            return None
        name = name.rpartition(".")[0]
