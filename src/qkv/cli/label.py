"""`qkv classify` and `qkv tag`: label standard input."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.paths import PICTURES, expect_output_file
from qkv.cli.shards import Out, Pattern, answer_shards, expect_shards


@guarded
def classify(
    run: f.Run,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also write the probabilities of all labels.")
    ] = False,
    attention: Annotated[Path | None, f.picture_option("the attention")] = None,
    show: Annotated[bool, f.terminal_option("the attention")] = False,
    line_buffered: f.LineBuffered = False,
    shards: Pattern = None,
    out: Out = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Label standard input, one text per line. Writes the label and its probability, separated by a tab.

    Example: echo "a stirring , funny film" | qkv classify runs/films --show
    """
    from qkv.tasks.answering import format_answers, parts_of_stdin
    from qkv.tasks.classify.predict import Classification, Classifier
    from qkv.tasks.drawing import Drawing
    from qkv.tasks.streams import write_text
    from qkv.tasks.tokenizing import UnknownCounter, unknown_name

    expect_output_file("attention", attention, PICTURES)
    batch = expect_shards(shards, out, {"attention": attention, "show": show, "line_buffered": line_buffered})
    classifier = Classifier.load(run, device)
    drawing = Drawing(attention, terminal=show)
    count = len(classifier.labels) if probabilities else 1

    def as_lines(answers: Sequence[Classification]) -> Iterator[str]:
        for classification in answers:
            yield _line(list(classification.probabilities.items())[:count], named=probabilities)

    def classified(parts: Iterable[list[str]], file: Path | None = None) -> Iterator[str]:
        unknown = UnknownCounter(unknown_name(classifier.tokenizer))

        def answer(lines: list[str], first: int) -> list[Classification]:
            results = classifier.classify_fully(lines, attention=drawing.active, first=first)
            unknown.add(result.tokens for result in results)
            return results

        yield from format_answers("classifying", parts, answer, as_lines, drawing, file)
        unknown.report(file)

    if batch is not None:
        work = {"command": "classify", "probabilities": probabilities}
        answer_shards(batch, "classified", work, [run], classified)
        return
    write_text(classified(parts_of_stdin(line_buffered=line_buffered)))
    drawing.finish()


@guarded
def tag(
    run: f.Run,
    attention: Annotated[Path | None, f.picture_option("what words attend to")] = None,
    show: Annotated[bool, f.terminal_option("what words attend to")] = False,
    line_buffered: f.LineBuffered = False,
    shards: Pattern = None,
    out: Out = None,
    device: f.OnDevice = "cpu",
) -> None:
    """Tag standard input, one sentence per line, words separated by spaces. Writes word and tag in columns.

    Example: echo "Ada wrote the first program" | qkv tag runs/names
    """
    from qkv.data.words import split_words
    from qkv.tasks.answering import format_answers, parts_of_stdin
    from qkv.tasks.drawing import Drawing
    from qkv.tasks.streams import write_text
    from qkv.tasks.tag.predict import Tagger, Tagging
    from qkv.tasks.tokenizing import UnknownCounter, unknown_name

    expect_output_file("attention", attention, PICTURES)
    batch = expect_shards(shards, out, {"attention": attention, "show": show, "line_buffered": line_buffered})
    tagger = Tagger.load(run, device)
    drawing = Drawing(attention, terminal=show)

    def as_lines(answers: Sequence[Tagging]) -> Iterator[str]:
        for tagging in answers:
            yield from (*map("\t".join, zip(tagging.words, tagging.tags, strict=True)), "")

    def tagged(parts: Iterable[list[str]], file: Path | None = None) -> Iterator[str]:
        unknown = UnknownCounter(unknown_name(tagger.tokenizer))

        def answer(lines: list[str], first: int) -> list[Tagging]:
            results = tagger.tag_fully([split_words(line) for line in lines], attention=drawing.active, first=first)
            unknown.add(result.tokens for result in results)
            return results

        yield from format_answers("tagging", parts, answer, as_lines, drawing, file)
        unknown.report(file)

    if batch is not None:
        answer_shards(batch, "tagged", {"command": "tag"}, [run], tagged)
        return
    write_text(tagged(parts_of_stdin(line_buffered=line_buffered)))
    drawing.finish()


def _line(shares: list[tuple[str, float]], *, named: bool) -> str:
    if named:
        return "\t".join(f"{label}={share:.4f}" for label, share in shares)
    label, share = shares[0]
    return f"{label}\t{share:.4f}"
