"""Running the viewer's server, on this machine only."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import final

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.checkpoint.disk import write_file
from qkv.errors import ConfigError
from qkv.view.answers.requests import RequestHandler
from qkv.view.bundle import linked, names, static
from qkv.view.scene import Scene
from qkv.view.server.app import application
from qkv.view.server.guard import HEADERS, LARGEST_HEAD, PATIENCE, Guard, new_token

WAITING = 64
"""Maximum number of connections whose next request is not complete; a new one takes the place of the oldest."""
CLIENTS = 128
"""Maximum number of simultaneous connections."""
WORKERS = 2
"""Threads that compute answers; each uses PyTorch's threads."""
_ACCEPTED = WAITING // 4
_QUEUED = 1024


@final
class TimeoutProtocol(H11Protocol):
    """HTTP that disconnects clients that keep it waiting for the next request, or that do not read an answer.

    The time limit starts when the server begins to wait and is not extended by bytes that arrive meanwhile. At most
    `WAITING` clients can wait: a new one replaces the one that has waited longest, so that nobody can block others.
    """

    _clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._wait()
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, TimeoutProtocol) and connection._is_idle
        ]
        if len(waiting) > WAITING:
            min(waiting, key=TimeoutProtocol._deadline)._hang_up()
        if len(self.connections) > CLIENTS:
            self._hang_up()

    def data_received(self, data: bytes) -> None:
        """Stop the timer once a request's headers are complete."""
        super().data_received(data)
        self._stop_unless_waiting()

    def on_response_complete(self) -> None:
        """Start the timer for the next request, or for the rest of one that was refused."""
        self._wait()
        super().on_response_complete()
        self._stop_unless_waiting()

    def pause_writing(self) -> None:
        """Start the timer for the client to read."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Stop the timer for the client to read."""
        super().resume_writing()
        self._stop_unless_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, with the headers of every answer."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": msg}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            answer = h11.Response(status_code=400, headers=[*headers, *HEADERS.items()], reason=b"Bad Request")
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _stop_unless_waiting(self) -> None:
        if not self._is_idle and not self.flow.write_paused:
            self._stop()

    def _deadline(self) -> float:
        return 0.0 if self._clock is None else self._clock.when()

    def _wait(self) -> None:
        self._stop()
        self._clock = self.loop.call_later(PATIENCE, self._hang_up)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _hang_up(self) -> None:
        # Not `close`, which waits until the client has read everything.
        self.transport.abort()
        self.connections.discard(self)  # now, not when asyncio reports the disconnection


@final
class BoundedServer(Server):
    """A server that accepts few connections at once, so that each is read before many others are, and queues many."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; asyncio accepts as many connections at once as it lets the system queue."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUED)


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
        self.handler = RequestHandler(scene)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.token = new_token()
        self.url = f"http://127.0.0.1:{self.port}/{self.token}/"
        self._workers = ThreadPoolExecutor(WORKERS, "qkv-view")
        inner = application(self.handler, linked({}), {name: static(name) for name in names()}, self._workers)
        self._guard = Guard(inner, self.token, self.port)
        self._folder: TemporaryDirectory[str] | None = None
        self._server = BoundedServer(
            Config(
                self._guard,
                http=TimeoutProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                log_level="error",  # malformed requests must not fill the terminal
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                backlog=_ACCEPTED,
                h11_max_incomplete_event_size=LARGEST_HEAD,
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

    def one_time_url(self) -> str:
        """Return a new address for a browser, which works once: the browser then has a cookie."""
        return f"http://127.0.0.1:{self.port}{self._guard.new_one_time_path()}"

    def redirect_file(self) -> Path:
        """Write a page that only this user can read, and that sends a browser to a new one-time address.

        Other users see the arguments of every process: the address of the file may stand there, the token may not.

        Returns:
            The page; it is removed when the viewer stops.
        """
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="qkv-view-")  # mode 0700
        page = Path(self._folder.name, f"{new_token()}.html")
        head = f'<meta http-equiv="refresh" content="0;url={self.one_time_url()}">'
        write_file(page, f"<!doctype html><title>Attention</title>{head}".encode())
        page.chmod(0o600)
        return page

    def wait(self) -> None:
        """Serve until interrupted."""
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """Stop, and release port, threads and memory."""
        self._server.should_exit = True
        self._thread.join()
        self._workers.shutdown(cancel_futures=True)
        if self._folder is not None:
            self._folder.cleanup()
        self.handler.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # On Windows, SO_REUSEADDR would let another program take over a port that is in use.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(CLIENTS)
    except (OSError, OverflowError) as error:
        listener.close()
        hint = "Choose another one, or omit it for any free port."
        raise ConfigError("port", "a free port", f"{port}: {error}", hint) from error
    return listener
