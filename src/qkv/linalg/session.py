"""The state of a decoding: packed weights, prepared layers and reusable memory, in one object that is passed down."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast, final

from qkv.linalg.memory_pool import MemoryPool

T = TypeVar("T")


@final
class DecodingSession:
    """Objects that a decoding reuses from step to step, and from batch to batch.

    A decoding loop opens a session and passes it to the model; the model's states carry it through the steps. Objects
    are stored under the module that they belong to, so a session may serve several models. Closing it drops everything.

    Weights are packed again when PyTorch has recorded a change of them. Changes through NumPy or `.data` are not
    recorded: close the session before such a change, and open another one.

    Example:
        >>> layer = object()
        >>> with DecodingSession() as session:
        ...     first = session.keep(layer, list)
        ...     session.keep(layer, list) is first
        True
    """

    def __init__(self) -> None:
        """Open it, empty."""
        self.memory = MemoryPool()
        self._stored: dict[Hashable, Any] = {}

    def keep(self, owner: Hashable, make: Callable[[], T]) -> T:
        """Return the object that the session stores for an owner.

        Args:
            owner: a module, or a module and the name of its part. The session holds it, so no other object can be
                mistaken for it.
            make: creates it the first time.

        Returns:
            The same object each time.
        """
        stored = self._stored.get(owner)
        if stored is None:
            stored = self._stored.setdefault(owner, make())
        return cast(T, stored)

    def close(self) -> None:
        """Drop everything. Tensors in its memory stay valid."""
        self.memory = MemoryPool()
        self._stored = {}

    def __enter__(self) -> "DecodingSession":
        """Return the session."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


@contextmanager
def opened(session: DecodingSession | None) -> Iterator[DecodingSession]:
    """Use a given session, which stays open, or a new one that is closed at the end of the block.

    Args:
        session: the session of several decodings; None for a new one.

    Example:
        >>> with DecodingSession() as session, opened(session) as same:
        ...     same is session
        True
    """
    if session is not None:
        yield session
        return
    with DecodingSession() as new:
        yield new
