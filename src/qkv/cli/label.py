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
    device: f.OnDevice = "cpu",
) -> None:
    """Label standard input, one text per line. Writes the label and its probability, separated by a tab.

    Example: echo "a stirring , funny film" | qkv classify runs/films --show
    """
    from qkv.tasks.labeler import Classifier
    from qkv.tasks.notes import as_json, working
    from qkv.tasks.streams import read_stdin, write_lines, write_results

    expect_place("--attention", attention, PICTURES)
    classifier = Classifier.load(run, device)
    looks = show or attention is not None
    lines = read_stdin()
    with working("classifying"):
        found = classifier.classify_fully(lines, attention=looks)
    every = len(classifier.labels) if probabilities else 1
    if as_json():
        write_results(found)
    else:
        write_lines(_line(list(each.probabilities.items())[:every], named=probabilities) for each in found)
    if looks:
        from qkv.tasks.drawing import draw

        draw(found, attention, terminal=show)


@guarded
def tag(
    run: f.Run,
    attention: Annotated[Path | None, f.drawn("what words attend to")] = None,
    show: Annotated[bool, f.shown("what words attend to")] = False,
    device: f.OnDevice = "cpu",
) -> None:
    """Tag standard input, one sentence per line, words separated by spaces. Writes word and tag in columns.

    Example: echo "Ada wrote the first program" | qkv tag runs/names
    """
    from qkv.tasks.labeler import Tagger
    from qkv.tasks.notes import as_json, working
    from qkv.tasks.streams import read_stdin, write_lines, write_results

    expect_place("--attention", attention, PICTURES)
    tagger = Tagger.load(run, device)
    looks = show or attention is not None
    sentences = [line.split() for line in read_stdin()]
    with working("tagging"):
        found = tagger.tag_fully(sentences, attention=looks)
    if as_json():
        write_results(found)
    else:
        write_lines(line for each in found for line in (*map("\t".join, zip(each.words, each.tags, strict=True)), ""))
    if looks:
        from qkv.tasks.drawing import draw

        draw(found, attention, terminal=show)


def _line(shares: list[tuple[str, float]], *, named: bool) -> str:
    if named:
        return "\t".join(f"{label}={share:.4f}" for label, share in shares)
    label, share = shares[0]
    return f"{label}\t{share:.4f}"
