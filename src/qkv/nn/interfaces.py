"""Which modules of other libraries call an attention that can be exchanged."""

from collections.abc import Callable, Iterator
from types import CodeType

from torch import nn

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_BASES = ("torch.nn.modules.module", "transformers.modeling_utils")


def attending(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of `transformers` whose code calls its `AttentionInterface`, with their paths.

    Example:
        >>> list(attending(nn.TransformerEncoderLayer(8, 2)))
        []
    """
    return ((name, module) for name, module in model.named_modules() if _calls_interface(type(module)))


def _calls_interface(cls: type) -> bool:
    members = [vars(base).values() for base in cls.__mro__ if base.__module__ not in _BASES]
    return any(_INTERFACE in names for each in members for function in each for names in _names_in(function))


def _names_in(function: object) -> Iterator[tuple[str, ...]]:
    """Return the global names that a function reads, beneath its decorators."""
    while isinstance(function, Callable) and hasattr(function, "__wrapped__"):  # type: ignore[arg-type]
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    pending = [code] if isinstance(code, CodeType) else []
    while pending:
        code = pending.pop()
        yield code.co_names
        pending += [part for part in code.co_consts if isinstance(part, CodeType)]
