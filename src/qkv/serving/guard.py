"""Who may ask a server: named hosts, no other site's pages, and who knows the token."""

import hmac
from collections.abc import Sequence
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from qkv.http.messages import LARGEST_HEAD, adding_headers, header_values, pass_on

LARGEST_BODY = 1 << 20
"""Maximum bytes of a request's body."""
OPEN = ("/health",)
"""Paths that need no token: whoever balances load asks there."""
_LOCAL = ("127.0.0.1", "localhost", "::1")


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address.

    Example:
        >>> is_local("127.0.0.1"), is_local("0.0.0.0")
        (True, False)
    """
    return host in _LOCAL


@final
class ServerGuard:
    """Passes requests on to an application, or refuses them.

    A request must name the server by an allowed host (against DNS rebinding), come from no page of another site, have
    the token if there is one (`Authorization: Bearer TOKEN`), and be of bounded size. No answer allows another site to
    read it.

    Args:
        app: the guarded application.
        hosts: the names by which the server may be called, without port.
        port: the server's port.
        token: what a request must know; "" for nothing.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], port: int, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None
        names = [f"[{host}]" if ":" in host else host for host in hosts]
        self._hosts = {form.lower().encode() for name in names for form in (name, f"{name}:{port}")}
        self._origins = {scheme + host for scheme in (b"http://", b"https://") for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":  # no web sockets, and nothing to do at startup and shutdown
            return
        await pass_on(self._app, scope, receive, adding_headers(send), self._refusal(scope), LARGEST_BODY)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        hosts, origins, sites = (header_values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return 403, "This server answers to its own names only; --allowed-host adds one."
        if any(origin.lower() not in self._origins for origin in origins) or any(
            site == b"cross-site" for site in sites
        ):
            return 403, "This server does not answer pages of other sites."
        head = len(scope["raw_path"]) + len(scope["query_string"])
        if head + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > LARGEST_HEAD:
            return 431, f"Address and headers may have at most {LARGEST_HEAD} bytes."
        if self._expected is None or scope["path"] in OPEN:
            return None
        given = header_values(scope, b"authorization")
        if len(given) == 1 and hmac.compare_digest(given[0], self._expected):
            return None
        return 401, "Send the server's token: Authorization: Bearer TOKEN."
