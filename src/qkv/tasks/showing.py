"""The viewer on the screen until it is interrupted, or in a file."""

import sys
from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.errors import CheckpointError, ConfigError, error_message
from qkv.recording.showing import serve
from qkv.view.offline import page
from qkv.view.scene import Scene


def show(scene: Scene, port: int, *, browser: bool) -> None:
    """Serve a scene until interrupted; its address goes to standard output.

    Args:
        scene: what is looked at.
        port: where to listen on 127.0.0.1; 0 for any free port.
        browser: whether to open it.

    Raises:
        ConfigError: the port is taken.
        UnsupportedError: the web libraries are not there.
    """
    with serve(scene, port, browser) as serving:
        print(serving.url, flush=True)  # noqa: T201
        print("Only this machine can open it. Ctrl+C ends it.", file=sys.stderr)  # noqa: T201
        serving.wait()


def write_page(scene: Scene, path: Path) -> str:
    """Write a scene as one page.

    Args:
        scene: what is looked at.
        path: a file that ends in .html.

    Returns:
        What is in it, in a sentence.

    Raises:
        ConfigError: another suffix, or a place that cannot be written.
    """
    if path.suffix.lower() != ".html":
        hint = "The page holds the whole viewer."
        raise ConfigError(error_message("--export", "a file name that ends in .html", path.name, hint))
    made = page(scene)
    try:
        replace_file(path, made.text.encode())
    except CheckpointError as error:  # the writer is that of checkpoints; this is none
        raise ConfigError(str(error)) from error
    rest = f"; {made.left_out:,} of its parts are left out and need the running viewer" if made.left_out else ""
    return f"{path}: the viewer as one page, for any browser{rest}"
