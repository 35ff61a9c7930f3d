"""Running the viewer's server, on this machine only."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import final

from qkv.checkpoint.disk import write_file
from qkv.http.connections import listening, server_of
from qkv.view.answers.requests import RequestHandler
from qkv.view.bundle import linked, names, static
from qkv.view.scene import Scene
from qkv.view.server.app import application
from qkv.view.server.guard import Guard, new_token

WORKERS = 2
"""Threads that compute answers; each uses PyTorch's threads."""


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
        self._socket = listening("127.0.0.1", port)
        self.port: int = self._socket.getsockname()[1]
        self.token = new_token()
        self.url = f"http://127.0.0.1:{self.port}/{self.token}/"
        self._workers = ThreadPoolExecutor(WORKERS, "qkv-view")
        inner = application(self.handler, linked({}), {name: static(name) for name in names()}, self._workers)
        self._guard = Guard(inner, self.token, self.port)
        self._folder: TemporaryDirectory[str] | None = None
        self._server = server_of(self._guard)
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
