"""`qkv align`: which source word each target word goes back to, for two files."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded


@guarded
def align(
    run: Annotated[Path, typer.Argument(help="A translation model: the folder that training wrote.")],
    source: Annotated[Path | None, typer.Option(help="Source sentences, words with spaces between.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    reverse: Annotated[Path | None, typer.Option(help="A model of the other direction, to agree with.")] = None,
    symmetrize: Annotated[
        str, typer.Option(help="How two directions become one: mutual, intersection, union, grow-diagonal, ...")
    ] = "mutual",
    gold: Annotated[Path | None, typer.Option(help="Links made by hand: tells the error rate.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Sentences to choose layer and head on.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    valid_gold: Annotated[Path | None, typer.Option(help="Their links.")] = None,
    layer: Annotated[str | None, typer.Option(help="Which attention to read, in place of a choice.")] = None,
    head: Annotated[int | None, typer.Option(help="Which head of that layer; the mean over all if not given.")] = None,
    when: Annotated[
        str | None, typer.Option(help="Read that layer at the step that predicts a word (default), or after it.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON lines with the words, in place of 0-0 1-2.")] = False,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
) -> None:
    """Write the links of each line to standard output, source word first, both from 0 (the Pharaoh format).

    Example: qkv align runs/en-fr --source test.en --target test.fr --gold test.align
    """
    from qkv.tasks.alignment_files import Chosen, Three, align_files
    from qkv.tasks.streams import write_lines

    chosen = Chosen(layer, head, when)
    valid = Three(valid_source, valid_target, valid_gold)
    found = align_files(run, reverse, Three(source, target, gold), valid, chosen, symmetrize, device)
    write_lines(found.as_json() if json else found.as_pharaoh())
    for line in found.said:
        typer.echo(line, err=True)
