"""What `qkv tag` writes: words and their tags in columns."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qkv.data.words import split_words
from qkv.tasks.answering import Answers, Lines, format_answers
from qkv.tasks.drawing import Drawing
from qkv.tasks.tag.predict import Tagger, Tagging
from qkv.tasks.tag.settings import TagAnswers
from qkv.tasks.tokenizing import UnknownCounter, unknown_name


def open_answers(runs: Sequence[Path], settings: TagAnswers) -> Answers:
    """Load a model that tags words, see `qkv.tasks.task.OpenAnswers`."""
    tagger = Tagger.load(runs[0], settings.device)
    drawing = Drawing(settings.attention, terminal=settings.show)

    def as_lines(answers: Sequence[Tagging]) -> Iterator[str]:
        for tagging in answers:
            yield from (*map("\t".join, zip(tagging.words, tagging.tags, strict=True)), "")

    def tagged(parts: Iterable[Lines], file: Path | None = None) -> Iterator[str]:
        unknown = UnknownCounter(unknown_name(tagger.tokenizer))

        def answer(lines: Lines, first: int) -> list[Tagging]:
            results = tagger.tag_fully([split_words(line) for line in lines], attention=drawing.active, first=first)
            unknown.add(result.tokens for result in results)
            return results

        yield from format_answers("tagging", parts, answer, as_lines, drawing, file)
        unknown.report(file)

    return Answers(tagged, drawing)
