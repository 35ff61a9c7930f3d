"""`qkv classify` and `qkv tag`: label standard input."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.place import PICTURES, expect_place

_Run = Annotated[Path, typer.Argument(help="Run folder, or one checkpoint in it.")]
_Device = Annotated[str, typer.Option(help="Device: cpu, cuda, ...")]


@guarded
def classify(
    run: _Run,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probabilities of all labels.")
    ] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Also draw the attention: FILE.html, FILE.svg or FILE.png.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Also draw the attention in the terminal, on standard error.")
    ] = False,
    device: _Device = "cpu",
) -> None:
    """Label standard input, one text per line. Writes the label and its probability, separated by a tab.

    Example: echo "a stirring , funny film" | qkv classify runs/films --show
    """
    from qkv.tasks.labeler import Classifier
    from qkv.tasks.streams import read_stdin, write_lines

    expect_place("--attention", attention, PICTURES)
    classifier = Classifier.load(run, device)
    looks = show or attention is not None
    found = classifier.classify_fully(read_stdin(), attention=looks)
    every = len(classifier.labels) if probabilities else 1
    write_lines(_line(list(each.probabilities.items())[:every], named=probabilities) for each in found)
    if looks:
        from qkv.tasks.drawing import draw_labels

        draw_labels(found, attention, terminal=show)


@guarded
def tag(
    run: _Run,
    attention: Annotated[
        Path | None, typer.Option(help="Also draw what words attend to: FILE.html, FILE.svg or FILE.png.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Also draw what words attend to in the terminal, on standard error.")
    ] = False,
    device: _Device = "cpu",
) -> None:
    """Tag standard input, one sentence per line, words separated by spaces. Writes word and tag in columns.

    Example: echo "Ada wrote the first program" | qkv tag runs/names
    """
    from qkv.tasks.labeler import Tagger
    from qkv.tasks.streams import read_stdin, write_lines

    expect_place("--attention", attention, PICTURES)
    tagger = Tagger.load(run, device)
    looks = show or attention is not None
    found = tagger.tag_fully([line.split() for line in read_stdin()], attention=looks)
    write_lines(line for each in found for line in (*map("\t".join, zip(each.words, each.tags, strict=True)), ""))
    if looks:
        from qkv.tasks.drawing import draw_tags

        draw_tags(found, attention, terminal=show)


def _line(shares: list[tuple[str, float]], *, named: bool) -> str:
    if named:
        return "\t".join(f"{label}={share:.4f}" for label, share in shares)
    label, share = shares[0]
    return f"{label}\t{share:.4f}"
