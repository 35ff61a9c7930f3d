"""Displaying a scene: in the browser, as a page, as a picture, in a notebook."""

import webbrowser
from html import escape
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from qkv.checkpoint.disk import replace_file
from qkv.errors import CheckpointError, ConfigError, UnsupportedError, error_message
from qkv.view.alignment import Alignment
from qkv.view.export import save
from qkv.view.offline import page
from qkv.view.scene import Scene

if TYPE_CHECKING:
    from qkv.view.server.serve import Serving

SMALL = 1 << 20
"""The most weights of a scene that a notebook displays by itself."""
_ROOM = 4 << 20


def serve(scene: Scene, port: int, browser: bool) -> "Serving":
    """Open a scene in the viewer.

    Args:
        scene: the scene to show.
        port: port on 127.0.0.1; 0 for any free port.
        browser: whether to open a browser.

    Returns:
        The running viewer: its `url`, and `close()`.

    Raises:
        UnsupportedError: the viewer's libraries are not installed.
        ConfigError: the port is in use.
    """
    try:
        from qkv.view.server.serve import Serving
    except ImportError as error:
        hint = "Install them: pip install 'qkv[view]'. A page needs none: trace.save('trace.html')."
        raise UnsupportedError(error_message("show", "starlette and uvicorn", str(error), hint)) from error
    serving = Serving(scene, port)
    if browser:
        webbrowser.open(serving.url)
    return serving


def write_page(scene: Scene, path: Path) -> None:
    """Save a scene as one page that needs no server; on request, the page names the parts it omits."""
    try:
        replace_file(path, page(scene).text.encode())
    except CheckpointError as error:  # the writer is that of checkpoints; this is not a checkpoint
        raise ConfigError(str(error)) from error


@torch.no_grad()
def write_picture(scene: Scene, path: Path) -> None:
    """Save a picture of the last cross-attention, or else of the last layer, averaged over its heads."""
    layer = next((layer for layer in reversed(scene.layers) if layer.kind == "cross"), scene.layers[-1])
    weights = layer.map().dense().float().mean(0)
    save(path, Alignment(scene.sequences[layer.keys], scene.sequences[layer.queries], weights))


def notebook(scene: Scene) -> str:
    """Return a scene as HTML for a notebook: the page in a frame, if it is small enough."""
    count = sum(prod(layer.shape) for layer in scene.layers)
    if count > SMALL:
        return f"<p>{escape(scene.title)}: {count:,} weights. Open the viewer with trace.show().</p>"
    whole = escape(page(scene, _ROOM).text, quote=True)
    frame = 'sandbox="allow-scripts" width="100%" height="640" style="border:0"'
    return f'<iframe title="{escape(scene.title, quote=True)}" {frame} srcdoc="{whole}"></iframe>'
