"""A cache of results bounded in bytes, which evicts the least recently used first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class ByteLRU(Generic[T]):
    """A cache that is bounded in bytes.

    Args:
        limit: maximum total bytes; a single entry that is larger is cached alone.
        size: returns the bytes of an entry.
        on_evict: called with each evicted entry.

    Example:
        >>> cache = ByteLRU[bytes](10, len)
        >>> cache.get("a", lambda: b"123456"), cache.get("b", lambda: b"123456"), cache.bytes
        (b'123456', b'123456', 6)
    """

    def __init__(
        self, limit: int, size: Callable[[T], int], on_evict: Callable[[T], None] = lambda value: None
    ) -> None:
        self.limit = limit
        self.bytes = 0
        self._size = size
        self._on_evict = on_evict
        self._entries: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the entry with a name; create it if missing."""
        content = self.find(name)
        return self.put(name, make()) if content is None else content

    def find(self, name: Hashable) -> T | None:
        """Return the entry with a name, or None."""
        with self._lock:
            if name in self._entries:
                self._entries.move_to_end(name)
            return self._entries.get(name)

    def put(self, name: Hashable, value: T) -> T:
        """Store an entry and evict others if necessary; an existing one is kept."""
        evicted = []
        with self._lock:
            if name not in self._entries:
                self._entries[name] = value
                self.bytes += self._size(value)
            while self.bytes > self.limit and len(self._entries) > 1:
                evicted.append(self._entries.popitem(last=False)[1])
                self.bytes -= self._size(evicted[-1])
            present = self._entries.get(name, value)
        for entry in evicted:
            self._on_evict(entry)
        return present
