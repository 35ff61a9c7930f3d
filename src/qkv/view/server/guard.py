"""Access control: only pages served by this server, with requests of bounded size."""

import asyncio
import hmac
import secrets
from typing import final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST_TARGET = 2_048
"""Maximum bytes of a path with its query."""
LARGEST_BODY = 64 << 10
"""Maximum bytes of a request body."""
PATIENCE = 10
"""Seconds that a client has for its request, and again for its body."""
_SITES = (b"none", b"same-origin")
_POLICY = "; ".join(
    f"{name} {value}"
    for name, value in {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }.items()
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""The headers of every response."""


def new_token() -> str:
    """Return an unguessable token: 32 random bytes.

    Example:
        >>> len(new_token())
        43
    """
    return secrets.token_urlsafe(32)


@final
class Guard:
    """Passes requests on to an application, or refuses them.

    A request must name this machine and port as its host (against DNS rebinding), come from this origin if it names
    one, have the token as the first part of its path, and be of bounded size. Refusals reveal nothing.

    Args:
        app: the guarded application; it sees paths without the token.
        token: the token.
        port: the server's port.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":  # no web sockets, and nothing to do at startup and shutdown
            return
        dressed = _dressed(send)
        refusal = self._refusal(scope)
        if refusal is None:
            try:
                body = await _body(scope, receive)
            except ValueError as error:
                refusal = 413, str(error)
            except TimeoutError:
                refusal = 408, f"The request was not complete within {PATIENCE} seconds."
        if refusal is not None:
            await JSONResponse({"error": refusal[1]}, refusal[0])(scope, receive, dressed)
            return
        path = scope["raw_path"][1 + len(self._token) :].decode("ascii", "replace")
        await self._app(dict(scope, path=path, raw_path=path.encode(), root_path=""), _replayed(body, receive), dressed)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        hosts, origins, sites = (_values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, "This server only responds to its own address."
        if any(origin not in self._origins for origin in origins) or any(site not in _SITES for site in sites):
            return 403, "This server only responds to its own page."
        target = len(scope["raw_path"]) + 1 + len(scope["query_string"])
        if target > LONGEST_TARGET:
            return 414, f"The URL is {target} bytes long; at most {LONGEST_TARGET} are allowed."
        first = scope["raw_path"].split(b"/", 2)[1:2]
        if len(first) != 1 or not hmac.compare_digest(first[0], self._token):
            return 404, "Not found."
        return None


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]


async def _body(scope: Scope, receive: Receive) -> bytes:
    """Read the whole body, up to the size limit.

    Raises:
        ValueError: it is larger.
        TimeoutError: it does not arrive.
    """
    lengths = _values(scope, b"content-length")
    if any(not length.isdigit() or len(length) > 8 or int(length) > LARGEST_BODY for length in lengths):
        raise ValueError(f"At most {LARGEST_BODY} bytes are allowed.")
    body = bytearray()
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > LARGEST_BODY:
                raise ValueError(f"At most {LARGEST_BODY} bytes are allowed.")
            if not message.get("more_body", False):
                return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a body that was already read, then whatever follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _dressed(send: Send) -> Send:
    """Send responses with the common headers."""

    async def dressed(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = dict(message, headers=[*message["headers"], *(pair for pair in extra if pair[0] not in own)])
        await send(message)

    return dressed
