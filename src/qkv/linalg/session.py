"""What decodings leave for the steps and batches that follow: made once, used until the end of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

T = TypeVar("T")

_STORE: ContextVar[dict[type, Any] | None] = ContextVar("store", default=None)


@contextmanager
def decoding_session() -> Iterator[None]:
    """Keep what decodings make for themselves until the end of the block: laid out weights, room for keys.

    For a decoding, whose every step takes the same, and for several of them: a block within another one shares what
    that one keeps. Nothing outlives the outermost block.

    Example:
        >>> with decoding_session():
        ...     with decoding_session():
        ...         inner = session_value(list)
        ...     session_value(list) is inner
        True
    """
    if _STORE.get() is not None:
        yield
        return
    before = _STORE.set({})
    try:
        yield
    finally:
        _STORE.reset(before)


def session_value(kind: type[T]) -> T | None:
    """Give the one thing of a kind that is kept here, made when it is first asked for.

    Args:
        kind: a class; it is called without arguments.

    Returns:
        It, or None outside of `decoding_session`.

    Example:
        >>> session_value(dict) is None
        True
    """
    store = _STORE.get()
    if store is None:
        return None
    found = store.get(kind)
    if found is None:
        found = store.setdefault(kind, kind())
    return cast(T, found)
