"""Open the viewer until interrupted, or save it to a file."""

import gc
from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.errors import CheckpointError, ConfigError, setting
from qkv.tasks.notes import as_json, note
from qkv.tasks.streams import write_json, write_lines
from qkv.view.not_finite import first_not_finite
from qkv.view.offline import page
from qkv.view.scene import Scene
from qkv.view.showing import serve


def show(scene: Scene, port: int, *, browser: bool) -> None:
    """Serve a scene until interrupted; an address that works once goes to standard output.

    Args:
        scene: the scene to show.
        port: port on 127.0.0.1; 0 for any free port.
        browser: whether to open a browser.

    Raises:
        ConfigError: the port is in use.
        UnsupportedError: the web libraries are not installed.
    """
    with serve(scene, port, browser) as serving:
        # What libraries hold is never garbage: looking through all of it stopped every answer for 0.2 s now and then.
        gc.collect()
        gc.freeze()
        if as_json():
            write_json([{"url": serving.entrance()}])
        else:
            write_lines([serving.entrance()])
        note("Only this machine can open it. Ctrl+C ends it.")
        serving.wait()


def write_page(scene: Scene, path: Path) -> str:
    """Write a scene as one page.

    Args:
        scene: the scene to show.
        path: a file that ends in .html.

    Returns:
        A sentence that describes the file.

    Raises:
        ConfigError: the suffix is wrong, or the file cannot be written.
    """
    if path.suffix.lower() != ".html":
        hint = "The page holds the whole viewer."
        raise ConfigError(setting("export"), "a file name that ends in .html", path.name, hint)
    made = page(scene)
    try:
        replace_file(path, made.text.encode())
    except CheckpointError as error:  # the writer is that of checkpoints; this is not a checkpoint
        raise error.as_kind(ConfigError) from error
    diverged = first_not_finite(scene)
    notes = [made.missing, "" if diverged is None else diverged.text]
    return " ".join([f"{path}: the viewer as one page, for any browser.", *filter(None, notes)])
