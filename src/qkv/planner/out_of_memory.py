"""What to say where the memory does not hold an attention."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

from qkv.engine.describe import Arguments, describe
from qkv.errors import OutOfMemoryError, QkvError, error_message, out_of_memory_text
from qkv.planner.plan import Plan, plan_for

P = ParamSpec("P")
R = TypeVar("R")

_FEWER = (
    "take fewer at once: a smaller batch ([training] tokens in --config), a smaller --beam, "
    "or shorter texts (--longest, --context)."
)


def explain_out_of_memory(attend: Callable[P, R]) -> Callable[P, R]:
    """Let a function of attention say, where the memory does not hold what was asked, what would take less.

    Args:
        attend: takes query, key and value, and the other arguments of `qkv.attention` by name.

    Returns:
        The same function; an exhausted memory is a `OutOfMemoryError`, any other fault passes unchanged.
    """

    @functools.wraps(attend)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return attend(*args, **kwargs)
        try:
            return attend(*args, **kwargs)
        except (MemoryError, RuntimeError) as error:
            said = None if isinstance(error, QkvError) else out_of_memory_text(error)
            if said is None:
                raise
            asked = inspect.signature(attend).bind(*args, **kwargs)
            asked.apply_defaults()
            raise _no_room(said, asked.arguments) from error

    return run


def _no_room(said: str, asked: Mapping[str, Any]) -> OutOfMemoryError:
    """Say what was asked, what `explain` would choose, and what lowers the need."""
    backend = asked["backend"]
    got = f"{said} (backend {backend!r})"
    try:
        found = _chosen(asked)
    except QkvError:
        hint = f"No backend serves it in linear memory: {_FEWER}"
    except (MemoryError, RuntimeError) as error:
        if out_of_memory_text(error) is None:
            raise
        hint = f"Not even its masks find room: {_FEWER}"
    else:
        got = f"{said} (backend {backend!r}, {found.problem})"
        hint = f"explain chooses {found.backend}, with {found.bytes:,} bytes beyond inputs and output; {_FEWER}"
        if backend not in ("auto", found.backend):
            hint = f'backend="auto" takes less: {hint}'
    return OutOfMemoryError(error_message("memory", "room for one attention", got, hint))


def _chosen(asked: Mapping[str, Any]) -> Plan:
    """What `explain` would choose. The caller's generator must not move on for the sake of a message."""
    own = {**asked, "generator": torch.Generator()}
    given = Arguments(*(own[name] for name in Arguments._fields))
    return plan_for(describe(asked["query"], asked["key"], asked["value"], given).problem)
