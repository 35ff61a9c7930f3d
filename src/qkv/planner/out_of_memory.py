"""The errors for attention that runs out of memory or is given unknown arguments, with advice."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch

from qkv.argument_names import ATTENTION, unknown_argument
from qkv.engine.describe import Arguments, describe
from qkv.errors import MEMORY_ERRORS, OutOfMemoryError, QkvError, out_of_memory_text, setting
from qkv.planner.plan import Plan, plan_for
from qkv.values.checked import expect_kinds

P = ParamSpec("P")
R = TypeVar("R")

_FEWER = (
    "take fewer at once: a smaller batch (" + setting("batch_tokens") + "), a smaller " + setting("beam") + ", "
    "or shorter texts (" + setting("longest") + ", " + setting("context") + ")."
)


def explain_out_of_memory(attend: Callable[P, R]) -> Callable[P, R]:
    """Decorate an attention function so that running out of memory raises an error that says what needs less.

    Args:
        attend: takes query, key and value, and the other arguments of `qkv.attention` by name.

    Returns:
        The function, which raises an `OutOfMemoryError` if memory is exhausted, and an `ArgumentError` for an argument
        that it does not have or that does not match its annotation; other errors pass unchanged.
    """

    valid = inspect.signature(attend).parameters

    @functools.wraps(attend)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return attend(*args, **kwargs)
        except QkvError as error:
            if torch.compiler.is_dynamo_compiling():  # torch.export runs the function itself
                _stop_tracing(type(error), error.args)
            raise
        except Exception as error:
            if torch.compiler.is_compiling():
                raise
            unknown = unknown_argument(kwargs, valid, ATTENTION) if isinstance(error, TypeError) else None
            if unknown is not None:
                raise unknown from None
            text = out_of_memory_text(error) if isinstance(error, MEMORY_ERRORS) else None
            if text is None:
                expect_kinds(attend, args, kwargs)
                raise
            bound = inspect.signature(attend).bind(*args, **kwargs)
            bound.apply_defaults()
            raise _out_of_memory(text, bound.arguments) from error

    return run


def _stop_tracing(kind: type[QkvError], arguments: tuple[Any, ...]) -> NoReturn:
    """Tell PyTorch's compiler that a call cannot be traced, and why.

    With `fullgraph=True` it shows that to the user, where it would explain exceptions in general at length. Otherwise
    it runs the call as it stands, which raises the error.
    """
    from torch._dynamo.exc import Unsupported

    error = kind(*arguments)
    raise Unsupported(f"{kind.__name__}: {error}") from error


# It runs while the compiler traces, outside what is traced.
_stop_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _out_of_memory(text: str, arguments: Mapping[str, Any]) -> OutOfMemoryError:
    """Return the error, which names the call, what `explain` would choose, and what needs less memory."""
    backend = arguments["backend"]
    got = f"{text} (backend {backend!r})"
    try:
        plan = _plan(arguments)
    except QkvError:
        hint = f"No backend serves it in linear memory: {_FEWER}"
    except MEMORY_ERRORS as error:
        if out_of_memory_text(error) is None:
            raise
        hint = f"Its masks alone do not fit in memory: {_FEWER}"
    else:
        got = f"{text} (backend {backend!r}, {plan.problem})"
        hint = f"explain chooses {plan.backend}, with {plan.bytes:,} bytes beyond inputs and output; {_FEWER}"
        if backend not in ("auto", plan.backend):
            hint = f'backend="auto" takes less: {hint}'
    return OutOfMemoryError("memory", "room for one attention", got, hint)


def _plan(arguments: Mapping[str, Any]) -> Plan:
    """Return the plan that `explain` would choose, without advancing the caller's random generator."""
    with_generator = {**arguments, "generator": torch.Generator()}
    call_arguments = Arguments(*(with_generator[name] for name in Arguments._fields))
    return plan_for(describe(arguments["query"], arguments["key"], arguments["value"], call_arguments).problem)
