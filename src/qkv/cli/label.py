"""`qkv classify` and `qkv tag`: label standard input."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.place import PICTURES, expect_place


@guarded
def classify(
    run: f.Run,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probabilities of all labels.")
    ] = False,
    attention: Annotated[Path | None, f.drawn("the attention")] = None,
    show: Annotated[bool, f.shown("the attention")] = False,
    line_buffered: f.LineBuffered = False,
    device: f.OnDevice = "cpu",
) -> None:
    """Label standard input, one text per line. Writes the label and its probability, separated by a tab.

    Example: echo "a stirring , funny film" | qkv classify runs/films --show
    """
    from qkv.tasks.answering import answered, parts_of_stdin
    from qkv.tasks.labeler import Classification, Classifier
    from qkv.tasks.notes import as_json
    from qkv.tasks.streams import write_lines, write_results

    expect_place("--attention", attention, PICTURES)
    classifier = Classifier.load(run, device)
    looks = show or attention is not None
    every = len(classifier.labels) if probabilities else 1
    maps: list[Classification] = []

    def answer(lines: list[str], first: int) -> list[Classification]:
        return classifier.classify_fully(lines, attention=looks, first=first)

    for first, found in answered("classifying", parts_of_stdin(line_buffered=line_buffered), answer):
        if as_json():
            write_results(found, first)
        else:
            write_lines(_line(list(each.probabilities.items())[:every], named=probabilities) for each in found)
        maps += found if looks else []
    if looks:
        from qkv.tasks.drawing import draw

        draw(maps, attention, terminal=show)


@guarded
def tag(
    run: f.Run,
    attention: Annotated[Path | None, f.drawn("what words attend to")] = None,
    show: Annotated[bool, f.shown("what words attend to")] = False,
    line_buffered: f.LineBuffered = False,
    device: f.OnDevice = "cpu",
) -> None:
    """Tag standard input, one sentence per line, words separated by spaces. Writes word and tag in columns.

    Example: echo "Ada wrote the first program" | qkv tag runs/names
    """
    from qkv.tasks.answering import answered, parts_of_stdin
    from qkv.tasks.labeler import Tagger, Tagging
    from qkv.tasks.notes import as_json
    from qkv.tasks.streams import write_lines, write_results

    expect_place("--attention", attention, PICTURES)
    tagger = Tagger.load(run, device)
    looks = show or attention is not None
    maps: list[Tagging] = []

    def answer(lines: list[str], first: int) -> list[Tagging]:
        return tagger.tag_fully([line.split() for line in lines], attention=looks, first=first)

    for first, found in answered("tagging", parts_of_stdin(line_buffered=line_buffered), answer):
        if as_json():
            write_results(found, first)
        else:
            rows = (zip(each.words, each.tags, strict=True) for each in found)
            write_lines(line for row in rows for line in (*map("\t".join, row), ""))
        maps += found if looks else []
    if looks:
        from qkv.tasks.drawing import draw

        draw(maps, attention, terminal=show)


def _line(shares: list[tuple[str, float]], *, named: bool) -> str:
    if named:
        return "\t".join(f"{label}={share:.4f}" for label, share in shares)
    label, share = shares[0]
    return f"{label}\t{share:.4f}"
