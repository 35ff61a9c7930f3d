"""A trained model with a text, or a recorded trace, as a scene, and the viewer on it."""

import gc
from dataclasses import replace
from pathlib import Path

from qkv.data.corpus import decode
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.files import read_file
from qkv.recording.trace_reader import read
from qkv.tasks.example_run import SENTENCES, is_example, report_outside_grammar
from qkv.tasks.load import load
from qkv.tasks.members import expect_single
from qkv.tasks.notes import note
from qkv.tasks.streams import write
from qkv.tasks.task import ReadsColumns, TextAnswerer, reads_no_columns
from qkv.view.answers.shares import HeadShares, shares_of
from qkv.view.scene import Scene
from qkv.view.showing import serve

TRACE = ".safetensors"
_LARGEST = 64 << 20
"""Maximum file size in bytes."""


def scene_of_command(
    run: Path,
    text: str | None,
    file: Path | None,
    tokens: int | None,
    device: str,
    source_col: int | None = None,
    features_col: int | None = None,
) -> Scene:
    """Build the scene for a command; its title begins with the name of the run.

    Args:
        run: a run folder, or a trace.
        text, file: the text to read; exactly one of them for a run, none for a trace.
        tokens: number of tokens to read; None for all.
        device: compute device.
        source_col, features_col: columns of the text, numbered from 1, for a model that was trained on columns; None
            for those of its training.

    Raises:
        ConfigError: both texts or none are given for a run, or one for a trace.
        QkvError: as for `qkv.load` and `Answerer.scene`, or the trace is damaged.
    """
    if run.suffix == TRACE:
        if text is not None or file is not None:
            hint = "A trace already contains its text: omit it."
            raise ConfigError(setting("text"), "no text with a trace", "one", hint)
        return read(run).scene()
    if text is None and file is None and is_example(run):
        text = SENTENCES[0]
    if (text is None) == (file is None):
        got = "none" if text is None else "both"
        raise ConfigError(
            setting("text"), "a text or " + setting("file"), got, "Give a text for the model to read or translate."
        )
    content = text or "" if file is None else text_of(file)
    expect_single(run)
    trained: TextAnswerer = load(run, device)
    if source_col is not None or features_col is not None:
        if not isinstance(trained, ReadsColumns):
            raise reads_no_columns("features_col" if source_col is None else "source_col")
        trained = trained.with_columns(source_col, features_col)
    if is_example(run):
        report_outside_grammar([content], 1, trained.tokenizer)
    scene = trained.scene(content, tokens)
    return replace(scene, title=f"{run.resolve().name}: {scene.title}")


def show_until_interrupted(scene: Scene, port: int, *, browser: bool) -> None:
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
        # Objects of libraries are never garbage: collections that scan them paused answers for 0.2 s from time to time.
        gc.collect()
        gc.freeze()
        url = serving.one_time_url()
        write([{"url": url}], [url])
        note("Only this machine can open it. Ctrl+C ends it.")
        serving.wait()


def print_shares(scene: Scene) -> None:
    """Write where the weights of each head lie to standard output: a table with tabs, or one JSON object per head."""
    rows = [shares_of(scene, layer, head) for layer, parts in enumerate(scene.layers) for head in range(parts.heads)]
    lines = [["" if x is None else f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    write((row._asdict() for row in rows), ("\t".join(line) for line in [list(HeadShares._fields), *lines]))


def text_of(file: Path) -> str:
    """Read a file of text.

    Raises:
        DataError: it cannot be read, is too large, or is not in UTF-8; the message gives its line.
    """
    try:
        data = read_file(file, _LARGEST)
    except OSError as error:
        expected = f"a text file in UTF-8 of at most {_LARGEST >> 20} MiB"
        got, hint = error.strerror or str(error), "Give another file, or only the part to view."
        raise DataError(Place(file), expected, got, hint) from error
    lines = enumerate(data.split(b"\n"), start=1)
    text = "\n".join(decode(line, Place(file, number), first=number == 1) for number, line in lines)
    return text.replace("\r\n", "\n").replace("\r", "\n")
