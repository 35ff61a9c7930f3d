"""`qkv view`: show what a trained model, or a recorded trace, attends to."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.place import expect_place


@guarded
def view(
    run: Annotated[Path, typer.Argument(help="Run folder, or a trace (.safetensors).")],
    text: Annotated[str | None, typer.Option(help="The text to read or translate.")] = None,
    file: Annotated[Path | None, typer.Option(help="Or a file with the text.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Read only the first tokens.", min=1)] = None,
    export: Annotated[Path | None, typer.Option(help="Write one page that needs no server: FILE.html.")] = None,
    port: Annotated[int, typer.Option(help="Local port; 0 for any free port.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
) -> None:
    """Open the viewer: steps, map, alignment, graph, what-if, and all heads.

    Example: qkv view runs/de-en --text "Ein Hund läuft."
    """
    from qkv.tasks.viewing import offered

    expect_place("--export", export, (".html",))
    scene = offered(run, text, file, tokens, device)
    if export is not None:
        from qkv.tasks.showing import write_page

        typer.echo(write_page(scene, export), err=True)
        return
    from qkv.tasks.showing import show

    show(scene, port, browser=not no_browser)
