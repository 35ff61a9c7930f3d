"""Running the viewer's server, on this machine only."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import final

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.errors import ConfigError, error_message
from qkv.view.answers.desk import Desk
from qkv.view.bundle import linked, names, static
from qkv.view.scene import Scene
from qkv.view.server.app import application
from qkv.view.server.guard import PATIENCE, Guard, new_token

CLIENTS = 128
"""Maximum number of simultaneous connections."""
WORKERS = 2
"""Threads that compute answers; each uses PyTorch's threads."""
_HEAD = 16 << 10


@final
class Impatient(H11Protocol):
    """HTTP that disconnects clients who do not complete a request's headers in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._clock = self.loop.call_later(PATIENCE, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._clock.cancel()
        super().connection_lost(exc)

    def _hang_up(self) -> None:
        if self.cycle is None:
            self.transport.close()


@final
class Serving:
    """A running viewer; it stops at the end of its `with` block.

    Args:
        scene: the scene to show.
        port: port on 127.0.0.1; 0 for any free port.

    Raises:
        ConfigError: the port is in use.

    Example:
        >>> import torch
        >>> from qkv.view.scene import Layer
        >>> layer = Layer("one", "self", "text", "text", *torch.randn(3, 4, 2, 8))
        >>> with Serving(Scene("two words", {"text": ("a", "dog")}, (layer,))) as serving:
        ...     serving.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, scene: Scene, port: int = 0) -> None:
        self.desk = Desk(scene)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.token = new_token()
        self.url = f"http://127.0.0.1:{self.port}/{self.token}/"
        self._workers = ThreadPoolExecutor(WORKERS, "qkv-view")
        inner = application(self.desk, linked({}), {name: static(name) for name in names()}, self._workers)
        self._server = Server(
            Config(
                Guard(inner, self.token, self.port),
                http=Impatient,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CLIENTS,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=_HEAD,
            )
        )
        self._thread = threading.Thread(target=self._run, name="qkv-view-server", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Serving":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Serve until interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop, and release port, threads and memory."""
        self._server.should_exit = True
        self._thread.join()
        self._workers.shutdown(cancel_futures=True)
        self.desk.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(CLIENTS)
    except (OSError, OverflowError) as error:
        listener.close()
        hint = "Choose another one, or omit it for any free port."
        raise ConfigError(error_message("port", "a free port", f"{port}: {error}", hint)) from error
    return listener
