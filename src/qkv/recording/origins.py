"""Where the tensors of another library's attention come from: its own sequence or another, and which tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qkv.nn.attention import Attention
from qkv.recording.repeated_passes import first_time


@final
class Origin:
    """Hooks on a module that has an `Attention` beneath its projections; they see which arguments are projected.

    Keys come from another sequence if a projection takes an argument of the module other than the first. A cache keeps
    them from then on, as long as the module is given the same argument.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._first: Tensor | None = None
        self._others: list[Tensor] = []
        self._source: Tensor | None = None
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
    def own(self) -> bool:
        """Whether queries and keys come from one sequence."""
        return self._source is None or not any(_same(self._source, other) for other in self._others)

    def _enter(self, module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        named = {str(place): argument for place, argument in enumerate(given)} | options
        tensors = {name: x for name, x in named.items() if isinstance(x, Tensor) and x.is_floating_point()}
        first = "hidden_states" if "hidden_states" in tensors else next(iter(tensors), "")
        self._first = tensors.pop(first, None)
        self._others = list(tensors.values())

    def _project(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        x = given[0] if given and isinstance(given[0], Tensor) else None
        if x is None or (self._first is not None and _same(x, self._first)):
            return
        source = next((other for other in self._others if _same(x, other)), None)
        self._source = self._source if source is None else source


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same numbers in memory, whatever their shape."""
    return one is other or (one.data_ptr() == other.data_ptr() != 0 and one.numel() == other.numel())


@final
@dataclass
class Reading:
    """The token ids that a model was given, one tensor (B, N) per forward pass; None for a pass without any."""

    passes: list[Tensor | None] = field(default_factory=list)

    def follow(self, module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note the ids: a forward hook with keywords, before the pass."""
        ids = options.get("input_ids", given[0] if given else None)
        good = isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()
        self.passes.append(ids if good else None)

    def ids(self, passes: Sequence[int], rows: Sequence[int]) -> list[int] | None:
        """Return the ids of one row over some passes; None if some pass had none."""
        found: list[int] = []
        for at, row in zip(passes, rows, strict=True):
            ids = self.passes[at] if at < len(self.passes) else None
            if ids is None or row >= ids.shape[0]:
                return None
            found += ids[row].tolist()
        return found


def model_above(name: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the path of the innermost model of `transformers` that contains a module; None if there is none."""
    while True:
        if hasattr(modules[name], "base_model_prefix"):
            return name
        if not name:
            return None
        name = name.rpartition(".")[0]
