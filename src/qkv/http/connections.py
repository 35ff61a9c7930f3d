"""Connections of an HTTP server that slow and hostile clients cannot occupy."""

import asyncio
import json
import socket
from typing import ClassVar, final

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from qkv.errors import ConfigError, setting
from qkv.http.messages import HEADERS, LARGEST_HEAD, PATIENCE

_QUEUED = 1024


class TimeoutProtocol(H11Protocol):
    """HTTP that disconnects clients that keep it waiting for the next request, or that do not read an answer.

    The time limit starts when the server begins to wait and is not extended by bytes that arrive meanwhile. At most
    `waiting` clients can wait: a new one replaces the one that has waited longest, so that nobody can block others.

    Attributes:
        waiting: maximum number of connections whose next request is not complete.
        clients: maximum number of simultaneous connections.
    """

    waiting: ClassVar[int] = 64
    clients: ClassVar[int] = 128

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
        if len(waiting) > self.waiting:
            min(waiting, key=TimeoutProtocol._deadline)._hang_up()
        if len(self.connections) > self.clients:
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


def server_of(app: ASGIApp, protocol: type[TimeoutProtocol] = TimeoutProtocol, *, grace: int = 1) -> BoundedServer:
    """Return a server that is quiet, bounded and tells nothing of itself.

    Args:
        app: what answers; it is behind a guard.
        protocol: the connections.
        grace: seconds that running requests have once the server is to stop.
    """
    return BoundedServer(
        Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            log_level="error",  # malformed requests must not fill the terminal
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=grace,
            backlog=protocol.waiting // 4,
            h11_max_incomplete_event_size=LARGEST_HEAD,
        )
    )


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: an address of this machine, or its name.
        port: the port; 0 for any free port.

    Raises:
        ConfigError: the port is in use, or the address is none of this machine's.

    Example:
        >>> with listening("127.0.0.1", 0) as listener:
        ...     listener.getsockname()[0]
        '127.0.0.1'
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(setting("host"), "an address of this machine", f"{host}: {error}", "Omit it.") from error
    # On Windows, SO_REUSEADDR would let another program take over a port that is in use.
    option = getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        listener.bind((address[0], port, *address[2:]))
        listener.listen(_QUEUED)
    except (OSError, OverflowError) as error:
        listener.close()
        hint = "Choose another one, or omit it for any free port."
        raise ConfigError(setting("port"), "a free port", f"{port}: {error}", hint) from error
    return listener
