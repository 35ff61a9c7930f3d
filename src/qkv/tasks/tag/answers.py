"""What `qkv tag` writes: words and their tags in columns."""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from qkv.data.words import split_words
from qkv.tasks.answering import Answers, Lines, line_answers
from qkv.tasks.drawing import Drawing
from qkv.tasks.runs import load_model
from qkv.tasks.tag.predict import Tagger, Tagging
from qkv.tasks.tag.settings import TagAnswers
from qkv.tasks.tokenizing import UnknownCounter, unknown_name


def open_answers(runs: Sequence[Path], settings: TagAnswers) -> Answers:
    """Load a model that tags words, see `qkv.tasks.task.OpenAnswers`."""
    tagger: Tagger = load_model(runs[0], settings.device, "tag")
    drawing = Drawing(settings.attention, terminal=settings.show)

    def tagged(lines: Lines, **how: Any) -> list[Tagging]:
        return tagger.tag_fully([split_words(line) for line in lines], **how)

    def as_lines(tagging: Tagging) -> Iterator[str]:
        yield from (*map("\t".join, zip(tagging.words, tagging.tags, strict=True)), "")

    unknown = partial(UnknownCounter, unknown_name(tagger.tokenizer))
    return line_answers("tagging", tagged, as_lines, drawing, unknown, attrgetter("tokens"))
