"""`qkv translate`: lines from standard input to standard output."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def translate(
    run: Annotated[Path, typer.Argument(help="The folder that training wrote, or one checkpoint in it.")],
    attention: Annotated[
        Path | None, typer.Option(help="Also draw what was attended to: FILE.html, FILE.svg or FILE.png.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Also draw it in the terminal, on standard error.")] = False,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
) -> None:
    """Translate standard input, one sentence per line, to standard output.

    Example: echo "Ein Hund läuft." | qkv translate runs/de-en --show
    """
    from qkv.tasks.streams import read_stdin, write_lines
    from qkv.tasks.translator import Translator

    translator = Translator.load(run, device)
    lines = read_stdin()
    found = translator.translate_fully(lines, attention=show or attention is not None)
    write_lines(each.text for each in found)
    if show or attention is not None:
        from qkv.tasks.drawing import draw

        draw(found, attention, terminal=show)
