"""`qkv view`: show what a trained model, or a recorded trace, attends to."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import expect_output_file
from qkv.pictures import PAGE_MEGABYTES


@guarded
def view(
    run: Annotated[Path, typer.Argument(help="Run folder, or a trace (.safetensors), or: example.")],
    text: Annotated[str | None, typer.Option(help="The text to read or translate.")] = None,
    file: Annotated[Path | None, typer.Option(help="Or a file with the text.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Read only the first tokens.", min=1)] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write one page that needs no server, FILE.html, or a picture of one map, FILE.svg, .png or .pdf."
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="The page computes: it reads any text that is typed. It publishes the model's weights, as int8. "
            "On up to 200 lines of --file it is checked.",
        ),
    ] = False,
    layer: Annotated[
        str | None, typer.Option(help="Layer of a picture, its path in the model; by default the one that tells most.")
    ] = None,
    head: Annotated[int | None, typer.Option(help="Its head; by default the mean over heads.", min=0)] = None,
    title: Annotated[str, typer.Option(help="Title of a picture.")] = "",
    size: Annotated[
        float, typer.Option(help="Maximum size of a page, in MB. What does not fit is left out, and named.", min=1)
    ] = PAGE_MEGABYTES,
    heads: Annotated[
        bool, typer.Option("--heads", help="Only print where the weights of each head lie, as a table.")
    ] = False,
    port: Annotated[int, typer.Option(help="Local port; 0 for any free port.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    source_col: f.SourceColumn = None,
    features_col: f.FeaturesColumn = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Open the viewer: steps, map, alignment, graph, what-if, and all heads.

    Example: qkv view runs/de-en --text "Ein Hund läuft."
    """
    from qkv.errors import ConfigError, setting
    from qkv.tasks.notes import note, working
    from qkv.tasks.streams import write
    from qkv.tasks.viewing import print_shares, scene_of_command, show_until_interrupted

    expect_output_file("export", export, (".html", ".svg", ".png", ".pdf"))
    picture = export is not None and export.suffix.lower() != ".html"
    if not picture and (layer is not None or head is not None or title):
        hint = "A page shows all layers and heads: its address says which one."
        raise ConfigError(setting("layer"), "a picture to write, " + setting("export", "FILE.png"), "none", hint)
    if size != PAGE_MEGABYTES and (export is None or picture or live or heads):
        hint = "Omit it: nothing else is cut to a size."
        raise ConfigError(setting("size"), "a saved page, " + setting("export", "FILE.html"), "none", hint)
    if live:
        if export is None or picture or tokens is not None:
            hint = "It is a page: omit what cuts texts, and name a file."
            raise ConfigError(setting("live"), "a page to write, " + setting("export", "FILE.html"), "none", hint)
        from qkv.tasks.live import write_live_page

        with working("computing with rounded weights"):
            note(write_live_page(run, export, text, file, device))
        write([{"page": export}], ())
        return
    with working("reading the text"):
        scene = scene_of_command(run, text, file, tokens, device, source_col, features_col)
    if heads:
        print_shares(scene)
        return
    if export is not None:
        from qkv.view.showing import write_page, write_picture

        with working("writing the picture" if picture else "writing the page"):
            if picture:
                write_picture(scene, export, layer=layer, head=head, title=title)
            else:
                note(write_page(scene, export, size))
        write([{"page": export}], ())
        return
    show_until_interrupted(scene, port, browser=not no_browser)
