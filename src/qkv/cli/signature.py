"""Build a command's signature from a table of its flags."""

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def keywords(flags: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters of flags.

    Args:
        flags: the annotation of each by name.
        defaults: the default of each flag; None for the others.
    """
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=flag)
        for name, flag in flags.items()
    ]


def signed(function: Callable[P, R], parameters: Sequence[Parameter]) -> Callable[P, R]:
    """Set the parameters that Python and typer see, and return the function."""
    function.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def flagged(
    flags: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of a table. It receives every flag; those not given have their defaults.

    Args:
        flags: the annotation of each by name, in the order of the help.
        defaults: the default of each flag; None for the others.

    Example:
        >>> @flagged({"steps": int | None, "device": str}, {"device": "cpu"})
        ... def train(**settings: Any) -> None:
        ...     print(settings)
        >>> train(steps=3)
        {'steps': 3, 'device': 'cpu'}
    """
    parameters = keywords(flags, defaults)
    signature = Signature(parameters)

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            bound = signature.bind(**arguments)
            bound.apply_defaults()
            command(**bound.arguments)

        return signed(run, parameters)

    return give
