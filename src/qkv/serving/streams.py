"""Answers that are written piece by piece, by a thread of their own."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, final

from qkv.serving.request_queue import BusyError


@final
class Streams:
    """Streams the answers of one model, one after the other.

    Args:
        stream: answers a text piece by piece.
        most: how many answers may be streamed or wait for that.

    Example:
        >>> async def spelled():
        ...     return [piece async for piece in Streams(lambda text, _: iter(text), most=2).answer("abc", None, 5.0)]
        >>> with ThreadPoolExecutor(1) as another:  # whose thread runs no event loop yet
        ...     another.submit(lambda: asyncio.run(spelled())).result()
        ['a', 'b', 'c']
    """

    def __init__(self, stream: Callable[[str, Any], Iterator[str]], most: int) -> None:
        self._stream = stream
        self._turns = threading.BoundedSemaphore(most)
        self._thread = ThreadPoolExecutor(1, "qkv-stream")

    async def answer(self, text: str, settings: Any, timeout: float) -> AsyncGenerator[str]:
        """Yield the pieces of an answer; whoever stops asking ends it.

        Raises:
            BusyError: as many answers wait as may.
            TimeoutError: the answer is not complete within so many seconds.
            QkvError: the text or a setting is invalid.
        """
        if not self._turns.acquire(blocking=False):
            raise BusyError
        loop, until, stopped = asyncio.get_running_loop(), time.monotonic() + timeout, threading.Event()
        pieces = asyncio.Queue[str | Exception | None]()

        def put(piece: str | Exception | None) -> None:
            with suppress(RuntimeError):  # the server has stopped
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def work() -> None:
            try:
                for piece in () if stopped.is_set() else self._stream(text, settings):
                    if stopped.is_set():
                        return
                    put(piece)
            except Exception as error:  # whose client is told
                put(error)
            else:
                put(None)

        self._thread.submit(work).add_done_callback(lambda _: self._turns.release())
        try:
            while (piece := await asyncio.wait_for(pieces.get(), until - time.monotonic())) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            stopped.set()

    def close(self) -> None:
        """End the thread; what waits is cancelled."""
        self._thread.shutdown(cancel_futures=True)
