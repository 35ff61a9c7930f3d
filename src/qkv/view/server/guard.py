"""Access control: only pages served by this server, with requests of bounded size."""

import asyncio
import hmac
import secrets
from typing import final

from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST_TARGET = 2_048
"""Maximum bytes of a path with its query."""
LARGEST_BODY = 64 << 10
"""Maximum bytes of a request body."""
LARGEST_HEAD = 16 << 10
"""Maximum bytes of a request's first line and headers."""
PATIENCE = 10
"""Seconds that a client has for its request, again for its body, and again to read its answer."""
ONE_TIME = "enter"
"""First part of the path that exchanges a one-use token for a cookie."""
_ENTERED = '<!doctype html><meta http-equiv="refresh" content="0;url=/{}/"><title>Attention</title>'
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
    one, have the token as the first part of its path or in its cookie, and be of bounded size. Refusals reveal nothing.

    A browser gets the cookie for a one-use token, so that the token itself is in no address: addresses can be seen in
    the list of processes and in the browser's history. A browser sends the cookies of a host to all of its ports, so
    to the servers of other users too (RFC 6265, section 8.5): this cookie is bound to a path that they cannot guess.

    Args:
        app: the guarded application; it sees paths without the token.
        token: the token.
        port: the server's port.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = f"qkv-{port}={token}".encode()
        self._home = secrets.token_urlsafe(16).encode()
        self._one_time_tokens: set[bytes] = set()
        self._hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}
        self._origins = {b"http://" + host for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":  # no web sockets, and nothing to do at startup and shutdown
            return
        with_headers = _adding_headers(send)
        refusal = self._refusal(scope)
        if refusal is None and self._use_one_time_token(scope):
            home = self._home.decode()
            cookie = f"{self._cookie.decode()}; HttpOnly; SameSite=Strict; Path=/{home}/"
            await HTMLResponse(_ENTERED.format(home), headers={"set-cookie": cookie})(scope, receive, with_headers)
            return
        if refusal is None:
            try:
                body = await _body(scope, receive)
            except ValueError as error:
                refusal = 413, str(error)
            except TimeoutError:
                refusal = 408, f"The request was not complete within {PATIENCE} seconds."
        if refusal is not None:
            # A refused client gets one answer per connection, however many requests it has sent.
            await JSONResponse({"error": refusal[1]}, refusal[0], {"connection": "close"})(scope, receive, with_headers)
            return
        skipped = 1 + len(_first_path_part(scope))
        path = scope["raw_path"][skipped:].decode("ascii", "replace")
        await self._app(
            dict(scope, path=path, raw_path=path.encode(), root_path=""), _replayed(body, receive), with_headers
        )

    def new_one_time_path(self) -> str:
        """Return a new path that gives a browser the cookie, once."""
        token = new_token()
        self._one_time_tokens.add(token.encode())
        return f"/{ONE_TIME}/{token}"

    def _use_one_time_token(self, scope: Scope) -> bool:
        """Return whether a request has a one-use token; it is then used up."""
        token = self._one_time_token(scope)
        if scope["method"] != "GET" or token is None:
            return False
        self._one_time_tokens.discard(token)
        return True

    def _one_time_token(self, scope: Scope) -> bytes | None:
        parts = scope["raw_path"].split(b"/")
        if len(parts) != 3 or parts[1] != ONE_TIME.encode():
            return None
        return next((token for token in self._one_time_tokens if hmac.compare_digest(token, parts[2])), None)

    def _has_token(self, scope: Scope) -> bool:
        return hmac.compare_digest(_first_path_part(scope), self._token)

    def _has_cookie(self, scope: Scope) -> bool:
        cookies = [pair.strip() for value in _values(scope, b"cookie") for pair in value.split(b";")]
        at_home = hmac.compare_digest(_first_path_part(scope), self._home)
        return at_home and any(hmac.compare_digest(pair, self._cookie) for pair in cookies)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        hosts, origins, sites = (_values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 403, "This server only responds to its own address."
        # A browser comes to the one-time address from a file, which is another site: the token is what counts.
        strange = any(site not in _SITES for site in sites) and self._one_time_token(scope) is None
        if any(origin not in self._origins for origin in origins) or strange:
            return 403, "This server only responds to its own page."
        target = len(scope["raw_path"]) + 1 + len(scope["query_string"])
        if target > LONGEST_TARGET:
            return 414, f"The URL is {target} bytes long; at most {LONGEST_TARGET} are allowed."
        head = target + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if head > LARGEST_HEAD:
            return 431, f"The headers are {head} bytes long; at most {LARGEST_HEAD} are allowed."
        if self._has_token(scope) or self._has_cookie(scope) or self._one_time_token(scope) is not None:
            return None
        return 404, "Not found."


def _first_path_part(scope: Scope) -> bytes:
    """Return the first part of the path."""
    return b"".join(scope["raw_path"].split(b"/", 2)[1:2])


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


def _adding_headers(send: Send) -> Send:
    """Send responses with the common headers."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = dict(message, headers=[*message["headers"], *(pair for pair in extra if pair[0] not in names)])
        await send(message)

    return with_headers
