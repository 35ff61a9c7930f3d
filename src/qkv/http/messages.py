"""Requests of bounded size, JSON, and the headers of every response."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.strict_json import parse_json

LARGEST_HEAD = 16 << 10
"""Maximum bytes of a request's first line and headers."""
PATIENCE = 10
"""Seconds that a client has for its request, again for its body, and again to read its answer."""
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


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return all values of a header, whose name is lower-case."""
    return [value for header, value in scope["headers"] if header == name]


async def pass_on(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, refusal: tuple[int, str] | None, largest: int
) -> None:
    """Pass a request with its whole body to an application, or refuse it; a refused client has to connect again.

    Args:
        app: the application.
        scope, receive, send: the request.
        refusal: status and message, if the request is refused.
        largest: the most bytes of a body.
    """
    if refusal is None:
        try:
            body = await read_body(scope, receive, largest)
        except ValueError as error:
            refusal = 413, str(error)
        except TimeoutError:
            refusal = 408, f"The request was not complete within {PATIENCE} seconds."
    if refusal is not None:
        # A refused client gets one answer per connection, however many requests it has sent.
        await JSONResponse({"error": refusal[1]}, refusal[0], {"connection": "close"})(scope, receive, send)
        return
    await app(scope, replayed(body, receive), send)


async def json_of(request: Request) -> Any:
    """Return the JSON of a request's body.

    Raises:
        HTTPException: it is declared as something else, or is not JSON.
    """
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Requests must be application/json.")
    try:
        return parse_json(await request.body())
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "The request is not JSON.") from error


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return JSON in ASCII, so that whatever a text holds is inert on the way."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return Response(text, status, headers=dict(headers or {}), media_type="application/json")


_MESSAGES = {404: "Not found.", 405: "Method not allowed."}


async def on_http_error(_: Request, error: Exception) -> Response:
    """Answer a refused request."""
    assert isinstance(error, HTTPException)
    return json_response({"error": _MESSAGES.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def on_bug(_: Request, __: Exception) -> Response:
    """Answer a request at which the server failed, without what happened."""
    return json_response({"error": "Internal error; see the server's log."}, 500)


async def read_body(scope: Scope, receive: Receive, largest: int) -> bytes:
    """Read the whole body, up to a number of bytes.

    Raises:
        ValueError: it is larger.
        TimeoutError: it does not arrive.
    """
    lengths = header_values(scope, b"content-length")
    if any(not length.isdigit() or len(length) > 8 or int(length) > largest for length in lengths):
        raise ValueError(f"At most {largest} bytes are allowed.")
    body = bytearray()
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > largest:
                raise ValueError(f"At most {largest} bytes are allowed.")
            if not message.get("more_body", False):
                return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a body that was already read, then whatever follows it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def adding_headers(send: Send) -> Send:
    """Send responses with the common headers."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = dict(message, headers=[*message["headers"], *(pair for pair in extra if pair[0] not in names)])
        await send(message)

    return with_headers
