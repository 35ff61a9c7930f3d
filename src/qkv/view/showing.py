"""Displaying a scene: in the browser, as a page, as a picture, in a notebook."""

import webbrowser
from html import escape
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.checkpoint.disk import save_file
from qkv.errors import UnsupportedError, expect_enough_memory
from qkv.notebooks import in_notebook
from qkv.pictures import PAGE_MEGABYTES
from qkv.view.bundle import framed
from qkv.view.export import save
from qkv.view.not_finite import first_not_finite
from qkv.view.offline import page
from qkv.view.paper import map_of
from qkv.view.scene import Scene

if TYPE_CHECKING:
    from qkv.view.server.serve import Serving

SMALL = 1 << 20
"""The most weights of a scene that a notebook displays by itself."""
_OF_NOTEBOOK = 0.5
"""Maximum size of a page in a notebook before it is compressed, in millions of bytes."""


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
        expect_enough_memory(error)
        hint = "Install them: in the checkout, pip install '.[view]'. A page needs none: trace.save('trace.html')."
        raise UnsupportedError("show", "starlette and uvicorn", str(error), hint) from error
    serving = Serving(scene, port)
    if browser:
        webbrowser.open(serving.redirect_file().as_uri())
    return serving


def show(scene: Scene, port: int, browser: bool) -> "Serving":
    """Open a scene in the viewer, and print an address that works once; a notebook shows it inside the page.

    Args, raises: as for `serve`.

    Returns:
        The running viewer.
    """
    inside = in_notebook()
    serving = serve(scene, port, browser and not inside)
    if inside:
        from IPython.display import display

        # Not as `HTML`, which warns of every frame.
        display({"text/html": notebook(scene), "text/plain": scene.title}, raw=True)  # type: ignore[no-untyped-call]
    print(serving.one_time_url())  # noqa: T201
    return serving


def write_page(scene: Scene, path: Path, size: float = PAGE_MEGABYTES) -> str:
    """Save a scene as one page that needs no server, see `page`.

    Args:
        scene: the scene.
        path: the file.
        size: maximum size of the page, in millions of bytes.

    Returns:
        A sentence that describes the file, what the page lacks, and numbers that are not finite.

    Raises:
        ConfigError: the file cannot be written.
    """
    written, diverged = page(scene, size), first_not_finite(scene)
    save_file(path, written.text.encode())
    notes = [written.missing, "" if diverged is None else diverged.text]
    return " ".join([f"{path}: the viewer as one page, for any browser.", *filter(None, notes)])


def write_picture(
    scene: Scene, path: Path, *, layer: str | None = None, head: int | None = None, title: str = ""
) -> None:
    """Save a picture of one map, see `map_of`.

    Args:
        scene: the scene.
        path: `.png`, `.svg` or `.pdf`.
        layer, head: as for `map_of`.
        title: stands above the map; "" for none.

    Raises:
        DataError: a weight is not finite; the message gives the first number of all layers that is not.
        ConfigError: there is no such layer or head, or the file cannot be written.
    """
    save(path, map_of(scene, layer, head), title=title)


def notebook(scene: Scene) -> str:
    """Return a scene as HTML for a notebook: the page in a frame, if it is small enough."""
    count = sum(prod(layer.shape) for layer in scene.layers)
    if count > SMALL:
        return f"<p>{escape(scene.title)}: {count:,} weights. Open the viewer with show().</p>"
    return framed(page(scene, _OF_NOTEBOOK).text, scene.title)
