"""Running a server of trained models."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qkv.errors import ConfigError, setting
from qkv.http.connections import TimeoutProtocol, listening, server_of
from qkv.serving.app import Service, application
from qkv.serving.guard import ServerGuard, is_local
from qkv.serving.models import open_models
from qkv.tasks.notes import as_json, note, working
from qkv.tasks.streams import write_json

SHORTEST_TOKEN = 16
"""Characters of a token that cannot be guessed soon."""
GRACE = 30
"""Seconds that running requests have once the server is to stop."""


class ManyClients(TimeoutProtocol):
    """Connections of programs, of which more come than of people."""

    waiting: ClassVar[int] = 512
    clients: ClassVar[int] = 1024


def serve(
    runs: Sequence[Path],
    *,
    host: str,
    port: int,
    allowed_hosts: Sequence[str],
    token: str,
    batch: int,
    waiting: int,
    timeout: float,
    device: str,
) -> None:
    """Serve models until the process is told to stop (Ctrl-C, SIGTERM); running requests are then answered.

    Args:
        runs: run folders, or `example`; the name of a folder is the name of its model.
        host: the address to listen at.
        port: the port; 0 for any free port.
        allowed_hosts: more names by which requests may call the server, such as that of a proxy.
        token: what requests must know; needed where other machines reach the address.
        batch: the most inputs that are computed together.
        waiting: the most inputs that may wait for a model.
        timeout: seconds that an answer may take.
        device: compute device.

    Raises:
        ConfigError: an argument is invalid, or the port is in use.
        CheckpointError: a run is invalid, or of a task that is not served.
    """
    _expect_safe(host, token)
    with listening(host, port) as listener:
        with working("loading the models"):
            models = open_models(runs, device)
        service = Service(models, batch=batch, waiting=waiting, timeout=timeout)
        try:
            _run(service, listener, host, allowed_hosts, token)
        finally:
            service.close()


def _run(service: Service, listener: socket.socket, host: str, allowed: Sequence[str], token: str) -> None:
    port = listener.getsockname()[1]
    names = dict.fromkeys(("127.0.0.1", "localhost", "::1", host, *allowed))
    server = server_of(ServerGuard(application(service), list(names), port, token), ManyClients, grace=GRACE)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    rows = [
        {"model": name, "task": model.task, "url": f"{address}/models/{name}"} for name, model in service.models.items()
    ]
    for row in rows:
        note(f"qkv: POST {row['url']}  {row['task']}")
    if as_json():
        write_json(rows)
    note(f"qkv: {address}/openapi.json describes the settings of a request; Ctrl-C ends the server")
    asyncio.run(server.serve([listener]))


def _expect_safe(host: str, token: str) -> None:
    """Refuse a server that other machines reach and that anybody may ask."""
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token):
        hint = "For example: python -c 'import secrets; print(secrets.token_urlsafe())'."
        expected = f"at least {SHORTEST_TOKEN} ASCII characters without spaces"
        raise ConfigError(setting("token"), expected, f"{len(token)} characters", hint)
    if not is_local(host) and not token:
        hint = f"Other machines reach {host}: give " + setting("token") + ", or the environment variable QKV_TOKEN."
        raise ConfigError(setting("host"), "127.0.0.1, or a token", host, hint)
