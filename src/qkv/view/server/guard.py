"""Access control: only pages served by this server, with requests of bounded size."""

import hmac
import secrets
from typing import final

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from qkv.http.messages import LARGEST_HEAD, adding_headers, header_values, pass_on

LONGEST_TARGET = 2_048
"""Maximum bytes of a path with its query."""
LARGEST_BODY = 64 << 10
"""Maximum bytes of a request body."""
ONE_TIME = "enter"
"""First part of the path that exchanges a one-use token for a cookie."""
_ENTERED = '<!doctype html><meta http-equiv="refresh" content="0;url=/{}/"><title>Attention</title>'
_SITES = (b"none", b"same-origin")


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
        with_headers = adding_headers(send)
        refusal = self._refusal(scope)
        if refusal is None and self._use_one_time_token(scope):
            home = self._home.decode()
            cookie = f"{self._cookie.decode()}; HttpOnly; SameSite=Strict; Path=/{home}/"
            await HTMLResponse(_ENTERED.format(home), headers={"set-cookie": cookie})(scope, receive, with_headers)
            return
        await pass_on(self._without_token, scope, receive, with_headers, refusal, LARGEST_BODY)

    async def _without_token(self, scope: Scope, receive: Receive, send: Send) -> None:
        skipped = 1 + len(_first_path_part(scope))
        path = scope["raw_path"][skipped:].decode("ascii", "replace")
        await self._app(dict(scope, path=path, raw_path=path.encode(), root_path=""), receive, send)

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
        cookies = [pair.strip() for value in header_values(scope, b"cookie") for pair in value.split(b";")]
        at_home = hmac.compare_digest(_first_path_part(scope), self._home)
        return at_home and any(hmac.compare_digest(pair, self._cookie) for pair in cookies)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        hosts, origins, sites = (header_values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
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
