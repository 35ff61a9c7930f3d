"""Where the tensors of another library's attention come from: its own sequence or another, and which tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple, final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.nn.attention import Attention
from qkv.recording.hooks import PerThread, first_time

_CACHES = ("past_key_values", "past_key_value", "cache_params")


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

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        named = {str(index): argument for index, argument in enumerate(arguments)} | options
        tensors = {name: x for name, x in named.items() if isinstance(x, Tensor) and x.is_floating_point()}
        first = "hidden_states" if "hidden_states" in tensors else next(iter(tensors), "")
        inputs = self._inputs.get()
        inputs.first = tensors.pop(first, None)
        inputs.others = list(tensors.values())

    def _project(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs, x = self._inputs.get(), arguments[0] if arguments and isinstance(arguments[0], Tensor) else None
        if x is None or (inputs.first is not None and _same(x, inputs.first)):
            return
        source = next((other for other in inputs.others if _same(x, other)), None)
        inputs.source = inputs.source if source is None else source


@dataclass
class _ModuleInputs:
    """The tensors that one thread gave to a module: its first argument, others, and the projected one of these."""

    first: Tensor | None = None
    others: list[Tensor] = field(default_factory=list)
    source: Tensor | None = None


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same numbers in memory, whatever their shape."""
    return one is other or (one.data_ptr() == other.data_ptr() != 0 and one.numel() == other.numel())


class Position(NamedTuple):
    """Where a forward pass of a model of `transformers` stands in its text.

    Attributes:
        start: the number of positions that its cache holds; 0 without a cache.
        ids: the token ids that it was given, (B, Q); None if it was given none.
        cache: its cache, if any.
    """

    start: int
    ids: Tensor | None = None
    cache: Any = None


def position_of(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> Position:
    """Return where a pass of a model of `transformers` begins, from its arguments."""
    names = tuple(signature(type(module).forward).parameters)[1:] if arguments else ()
    named = dict(zip(names, arguments, strict=False)) | options
    ids = named.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
        ids = None
    cache = next((named[name] for name in _CACHES if named.get(name) is not None), None)
    return Position(length_of(cache), None if ids is None else ids.clone(), cache)


def length_of(cache: Any) -> int:
    """Return how many positions a cache of `transformers` holds; earlier versions of it are tuples of layers."""
    if hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    if isinstance(cache, tuple) and cache and isinstance(cache[0], tuple) and isinstance(cache[0][0], Tensor):
        return int(cache[0][0].shape[-2])
    return 0


def model_above(name: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the path of the innermost model of `transformers` that contains a module; None if there is none."""
    while True:
        if hasattr(modules[name], "base_model_prefix"):
            return name
        if not name:
            return None
        name = name.rpartition(".")[0]
