"""`qkv view`: show what a trained model, or a recorded trace, attends to."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import expect_output_file


@guarded
def view(
    run: Annotated[Path, typer.Argument(help="Run folder, or a trace (.safetensors), or: example.")],
    text: Annotated[str | None, typer.Option(help="The text to read or translate.")] = None,
    file: Annotated[Path | None, typer.Option(help="Or a file with the text.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Read only the first tokens.", min=1)] = None,
    export: Annotated[Path | None, typer.Option(help="Write one page that needs no server: FILE.html.")] = None,
    port: Annotated[int, typer.Option(help="Local port; 0 for any free port.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    source_col: f.SourceColumn = None,
    features_col: f.FeaturesColumn = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Open the viewer: steps, map, alignment, graph, what-if, and all heads.

    Example: qkv view runs/de-en --text "Ein Hund läuft."
    """
    from qkv.tasks.notes import as_json, note, working
    from qkv.tasks.viewing import scene_of_command, show_until_interrupted

    expect_output_file("export", export, (".html",))
    with working("reading the text"):
        scene = scene_of_command(run, text, file, tokens, device, source_col, features_col)
    if export is not None:
        from qkv.tasks.streams import write_json
        from qkv.view.showing import write_page

        with working("writing the page"):
            message = write_page(scene, export)
        note(message)
        if as_json():
            write_json([{"page": export}])
        return
    show_until_interrupted(scene, port, browser=not no_browser)
