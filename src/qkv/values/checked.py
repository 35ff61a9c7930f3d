"""Typed errors for arguments that do not match the annotations of a function.

This is the one place that compares arguments with type hints: constructors are checked before they run, methods after
they failed, so that a good call costs nothing but the call. Methods that work for so long that a check costs nothing
have their numbers checked before they run (`answering`), as a number of another kind can pass unnoticed.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from qkv.argument_names import unknown_argument
from qkv.errors import ArgumentError, ConfigError, DtypeError, OutOfMemoryError, QkvError, out_of_memory_text
from qkv.values.parameters import DENSE, is_dense, layout_of

T = TypeVar("T")
K = TypeVar("K")
_Run = Callable[..., Any]
_NUMBERS: Mapping[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool, np.bool_), "True or False"),
    int: ((Integral, torch.SymInt), "a whole number"),
    float: ((Real, torch.SymInt, torch.SymFloat), "a number"),
}
"""What stands for a number, and its name in errors."""
_LARGEST = 1 << 62


class _Signature(NamedTuple):
    """The parameters of a function, and their type hints."""

    parameters: inspect.Signature
    hints: Mapping[str, Any]


def checked(target: T) -> T:
    """Decorate a class or a function, so that an argument of another kind than its annotation is named.

    The constructor of a class is checked before it runs; other public methods, and functions, are checked after they
    failed. Arguments annotated with an abstract class, such as a score or a mask, are checked by the function itself,
    because other values convert to them.

    Args:
        target: a class, whose public methods are replaced, or a function.

    Returns:
        The class, or a function that calls the given one.

    Example:
        >>> @checked
        ... def half(count: int) -> int:
        ...     return count // 2
        >>> half("nonsense")
        Traceback (most recent call last):
        qkv.errors.ArgumentError: count: expected a whole number; got 'nonsense', a str. See help(half).
    """
    if not isinstance(target, type):
        return cast(T, _explained(cast(_Run, target)))
    explained(target)
    init = vars(target).get("__init__")
    if inspect.isfunction(init):
        setattr(target, "__init__", _expected(init, target.__name__))  # noqa: B010 - a method
    return target


def explained(target: type[K]) -> type[K]:
    """Decorate a class as `checked` does, except its constructor: for values that every call makes.

    Example:
        >>> @explained
        ... class Share:
        ...     def of(self, count: int) -> int:
        ...         return count // 2
        >>> Share().of("nonsense")
        Traceback (most recent call last):
        qkv.errors.ArgumentError: count: expected a whole number; got 'nonsense', a str. See help(Share.of).
    """
    return _replaced(target, _explained)


def answering(target: type[K]) -> type[K]:
    """Decorate a class as `explained` does, and check the numbers that its methods are given before they run.

    It is for methods that run a whole model, in which a number of another kind would fail late or pass unnoticed.

    Example:
        >>> @answering
        ... class Model:
        ...     def answer(self, best: int = 1) -> int:
        ...         return max(1, best)
        >>> Model().answer(best=2.5)
        Traceback (most recent call last):
        qkv.errors.ArgumentError: best: expected a whole number; got 2.5, a float. See help(Model.answer).
    """
    return _replaced(target, lambda function: _explained(_with_numbers(function)))


def _replaced(target: type[K], decorate: Callable[[_Run], _Run]) -> type[K]:
    """Decorate the public methods of a class."""
    for name, member in list(vars(target).items()):
        kind = type(member) if isinstance(member, (classmethod, staticmethod)) else None
        function = member.__func__ if kind is not None else member
        if not name.startswith("_") and inspect.isfunction(function):
            wrapped = decorate(function)
            setattr(target, name, wrapped if kind is None else kind(wrapped))
    return target


def _with_numbers(function: _Run) -> _Run:
    """Return a function that checks its numbers before it runs."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        signature = _signature(function)
        bound = _bound(signature, args, kwargs)
        for argument, x in {} if bound is None else bound.arguments.items():
            annotated = signature.hints.get(argument, Any)
            if _is_number(annotated):
                _expect_kind(argument, annotated, x, function.__qualname__, ArgumentError, strict=True)
        return function(*args, **kwargs)

    return run


def explained_by(expect: Callable[..., None]) -> Callable[[_Run], _Run]:
    """Decorate a function, so that its arguments are checked after it failed with an error that is not ours.

    Args:
        expect: takes the arguments of the function, and raises an error that names one of them; it may return.

    Example:
        >>> import math
        >>> from qkv.values.parameters import above
        >>> @explained_by(lambda x: above("x", x, 0, "Logarithms need it."))
        ... def logarithm(x: float) -> float:
        ...     return math.log(x)
        >>> logarithm(-1.0)
        Traceback (most recent call last):
        qkv.errors.ConfigError: x: expected a number above 0; got -1.0. Logarithms need it.
    """

    def decorate(function: _Run) -> _Run:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except QkvError:
                raise
            except Exception as error:
                if not torch.compiler.is_compiling() and out_of_memory_text(error) is None:
                    expect(*args, **kwargs)
                raise

        return run

    return decorate


def _expected(init: _Run, name: str) -> _Run:
    """Return a constructor that checks its arguments before it runs."""

    @functools.wraps(init)
    def run(*args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            init(*args, **kwargs)
            return
        signature = _signature(init)
        _expect(signature, name, ConfigError, args, kwargs, strict=False)
        try:
            init(*args, **kwargs)
        except QkvError:
            raise
        except Exception as error:
            if (text := out_of_memory_text(error)) is not None:
                hint = f"Make a smaller {name}."
                raise OutOfMemoryError("memory", f"room for the parameters of {name}", text, hint) from error
            _expect(signature, name, ConfigError, args, kwargs, strict=True)
            raise

    return run


def _explained(function: _Run) -> _Run:
    """Return a function that checks its arguments after it failed."""

    return explained_by(lambda *args, **kwargs: expect_kinds(function, args, kwargs))(function)


def expect_kinds(function: _Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of a function that failed with an error that is not ours.

    Args:
        function: its annotations say what they are.
        args, kwargs: the arguments that it was called with.

    Raises:
        ArgumentError, DtypeError: an argument is of another kind; nothing is raised if all are as annotated.

    Example:
        >>> def half(count: int) -> int:
        ...     return count // 2
        >>> expect_kinds(half, (4,), {})
    """
    _expect(_signature(function), function.__qualname__, ArgumentError, args, kwargs, strict=True)


@functools.cache
def _signature(function: _Run) -> _Signature:
    try:
        hints = get_type_hints(function)
    except NameError:  # a class that is imported for type checkers only
        hints = {name: hint for name, hint in function.__annotations__.items() if not isinstance(hint, str)}
    return _Signature(inspect.signature(function), hints)


def _expect(
    signature: _Signature, name: str, kind: type[QkvError], args: Any, kwargs: Mapping[str, Any], *, strict: bool
) -> None:
    """Raise if the arguments are not those of a function, or one is not of the kind of its annotation."""
    bound = _bound(signature, args, kwargs)
    if bound is None:
        # Python itself names a missing argument; constructors report unknown ones themselves.
        unknown = unknown_argument(kwargs, signature.parameters.parameters, {}) if strict else None
        if unknown is not None:
            raise unknown from None
        return
    for argument, x in bound.arguments.items():
        _expect_kind(argument, signature.hints.get(argument, Any), x, name, kind, strict=strict)
    if strict and isinstance(sys.exception(), RuntimeError) and not torch.is_autocast_enabled("cpu"):
        _expect_one_kind(bound.arguments)


def _bound(signature: _Signature, args: Any, kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
    """Return the arguments by name; None if they are not those of the function."""
    try:
        return signature.parameters.bind(*args, **kwargs)
    except TypeError:
        return None


def _expect_kind(argument: str, annotated: Any, x: object, name: str, kind: type[QkvError], *, strict: bool) -> None:
    """Raise if an argument is not of the kind of its annotation."""
    error_kind = DtypeError if Tensor in (annotated, *get_args(annotated)) else kind
    if not _fits(annotated, x, strict):
        raise error_kind(argument, _described(annotated), _excerpt(x), f"See help({name}).") from None
    element = _element(annotated)
    if strict and element is not None and isinstance(x, (list, tuple)):
        for index, item in enumerate(x):
            _expect_kind(f"{argument}[{index}]", element, item, name, kind, strict=True)
    if strict and isinstance(x, Tensor) and not is_dense(x):
        raise DtypeError(argument, DENSE, layout_of(x), "Use .to_dense(), or .dequantize().") from None
    if strict and isinstance(x, int) and abs(x) > _LARGEST:
        raise error_kind(argument, f"at most {_LARGEST:,}", f"{x:.3g}", "PyTorch counts in 64 bits.") from None


def _element(hint: Any) -> Any:
    """Return the annotation of the elements of a sequence, which may be left out; None for any other annotation."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    (sequence, *others) = [part for part in parts if part is not NoneType] or [None]
    return get_args(sequence)[0] if not others and get_origin(sequence) in (Sequence, Iterable, list) else None


def is_whole_number(x: object) -> bool:
    """Return whether x is an integer, of any library; True and False are not.

    Example:
        >>> is_whole_number(np.int64(3)), is_whole_number(True), is_whole_number(3.0)
        (True, False, False)
    """
    return isinstance(x, _NUMBERS[int][0]) and not isinstance(x, bool)


def _is_number(hint: Any) -> bool:
    """Return whether an annotation is that of a number, or of one that may be left out."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return any(part in _NUMBERS for part in parts) and all(part in _NUMBERS or part is NoneType for part in parts)


def _expect_one_kind(arguments: Mapping[str, Any]) -> None:
    """Raise if tensors are complex, or on another device or of another floating-point type than the others.

    The first tensor is compared with the parameters of the layer whose method it is given to.
    """
    layer = arguments.get("self")
    first: Tensor | None = next(layer.parameters(), None) if isinstance(layer, nn.Module) else None
    for argument, x in arguments.items():
        if not isinstance(x, Tensor):
            continue
        if x.is_complex():
            raise DtypeError(argument, "real numbers", f"{x.dtype}", "Use .real or .abs().")
        whose = "that of the layer" if first is not None and isinstance(first, nn.Parameter) else "that of the others"
        if first is not None and x.device != first.device:
            hint = f"Move one of the two: {argument}.to(...), or the layer."
            raise DtypeError(argument, f"device {first.device}, {whose}", f"{x.device}", hint)
        floats = first is not None and x.is_floating_point() and first.is_floating_point()
        if first is not None and floats and x.dtype != first.dtype:
            hint = f"Convert one of the two: {argument}.to(...), or the layer."
            raise DtypeError(argument, f"dtype {first.dtype}, {whose}", f"{x.dtype}", hint)
        first = x if first is None else first


def _fits(hint: Any, x: object, strict: bool) -> bool:
    """Return whether a value is of the kind of an annotation.

    Args:
        hint: the annotation.
        x: the value.
        strict: whether modules must be of the annotated class, and abstract classes are what they say.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(part, x, strict) for part in parts)
    if origin is Literal:
        # Constructors list the valid names themselves.
        return any(type(x) is type(name) and (x == name or (not strict and isinstance(x, str))) for name in parts)
    if origin is tuple:
        return _fits_tuple(parts, x, strict)
    if hint in _NUMBERS:
        return isinstance(x, _NUMBERS[hint][0]) and (hint is not int or not isinstance(x, bool))
    kind = NoneType if hint is None else hint if origin is None else origin
    return _is_one(kind, x, strict) if isinstance(kind, type) and kind is not Any else True


def _is_one(kind: type, x: object, strict: bool) -> bool:
    """Return whether a value is of a class, as far as its class can tell."""
    if getattr(kind, "_is_protocol", False) or (not strict and inspect.isabstract(kind)):
        return True
    if not strict and issubclass(kind, nn.Module):
        return isinstance(x, nn.Module)
    if isinstance(x, str) and kind.__module__ == "collections.abc":
        return False
    # A method makes a list of an iterator that it is given in place of a sequence.
    return isinstance(x, kind) or (kind is Sequence and isinstance(x, Iterable) and not isinstance(x, Tensor))


def _fits_tuple(parts: tuple[Any, ...], x: object, strict: bool) -> bool:
    if not isinstance(x, (tuple, list)):
        return False
    if Ellipsis in parts:
        return all(_fits(parts[0], item, strict) for item in x)
    return len(x) == len(parts) and all(_fits(part, item, strict) for part, item in zip(parts, x, strict=True))


def _described(hint: Any) -> str:
    """Return what a value of an annotation is called."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        names = list(dict.fromkeys(map(_described, parts)))
        return " or ".join(names if len(names) < 3 else [", ".join(names[:-1]), names[-1]])
    if origin is Literal:
        return " or ".join(f'"{name}"' if isinstance(name, str) else f"{name}" for name in parts)
    if origin is tuple:
        inner = [_described(part) for part in parts if part is not Ellipsis]
        return f"a tuple of {' and '.join(dict.fromkeys(inner))}"
    named = {str: "a text", Tensor: "a torch.Tensor", NoneType: "None", None: "None"}
    return _NUMBERS[hint][1] if hint in _NUMBERS else named.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _excerpt(x: object) -> str:
    """Return what was given, in a few words."""
    kind = type(x).__name__
    if isinstance(x, type):
        return f"the class {x.__name__}"
    if isinstance(x, Tensor):
        return f"a tensor of shape {tuple(x.shape)}"
    plain = isinstance(x, (str, int, float, complex))
    return f"{x!r:.60}, a {kind}" if plain else "None" if x is None else f"a {kind}"
