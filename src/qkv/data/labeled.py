"""Labeled texts: `label<TAB>text` on each line.

A first line that only names the columns, such as `label<TAB>text`, is skipped; `sentence<TAB>label` also says that the
label comes second. Labels are brought to Unicode's form NFC, so that "é" is one label however it is typed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qkv.data.columns import TextColumns
from qkv.data.corpus import (
    Lines,
    header_message,
    kind_of_columns,
    read_lines,
    repeated_header,
    silent,
    two_columns,
)
from qkv.data.hints import FASTTEXT, INVISIBLE, text_messages
from qkv.data.normal_forms import normalize
from qkv.data.odd_lines import without_odd_lines
from qkv.data.report import collecting, expect_some_left, refuse, refused
from qkv.data.report import say as add
from qkv.errors import DataError, Place, brief

Unit = Literal["texts", "sentences"]
"""What is labeled: whole texts, or the words of sentences."""
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?(e[-+]?\d+)?", re.IGNORECASE)
LABEL_NAMES = frozenset({"label", "labels", "class", "category", "sentiment", "target", "rating"})
TEXT_NAMES = frozenset({"text", "sentence", "document", "review", "comment", "content", "message", "title"})
"""Names of columns, in lower case, that make the first line a header."""
_BETWEEN_WORDS = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
_PUNCTUATION = " .,;:!?\"'"
_FEW_SINGLE = 5
_MANY_TIMES = 10
"""So few labels that occur once are reported where a label occurs so often on average."""
_LISTED = 12
"""Labels whose counts are said."""
_FEW = 8
"""A file must have more lines than this before a label that occurs only in line 1 is reported as a likely header."""


@dataclass(frozen=True, slots=True)
class Labeled:
    """A text, its label, and its line number (from 1).

    Example:
        >>> Labeled("a stirring film", "good", 1).label
        'good'
    """

    text: str
    label: str
    line: int


LABEL_AND_TEXT = TextColumns(("label", "text"))


def read_labeled(
    path: Path | Lines, *, say: Callable[[str], None] = silent, columns: TextColumns = LABEL_AND_TEXT
) -> list[Labeled]:
    """Read a file with a label, one tab and a text on each line, or with other columns.

    Args:
        path: the file; `.gz` is unpacked.
        columns: which of them hold the labels and the texts.
        say: called with a message if the first line is skipped because it names the columns.

    Returns:
        One text per line, in order.

    Raises:
        DataError: the file cannot be read, is empty or not UTF-8, or a line does not have exactly two nonempty columns.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "films.tsv")
        ...     _ = path.write_text("good\\ta stirring film\\n")
        ...     read_labeled(path)
        [Labeled(text='a stirring film', label='good', line=1)]
    """
    if columns.applies(path):
        names = LABEL_NAMES, TEXT_NAMES
        rows = [Labeled(text, normalize("NFC", label.strip()), n) for n, label, text in columns.read(path, names)]
        return _reported(rows, path, say, headed=True)
    texts = []
    lines = read_lines(path, blank=True)
    header = None if isinstance(path, Lines) else _header_of_labeled(lines)
    if header is not None:
        say(header_message(path, 1, lines[0]))
    for number, line in list(enumerate(lines, start=1))[0 if header is None else 1 :]:
        if refused(number, path):
            continue
        where = Place(path, number)
        try:
            if header is not None and cells_of(line, "\t") == cells_of(lines[0], "\t"):
                raise repeated_header(line, where)
            if header == "text first":
                text, label = two_columns(line, where, ("text", "label"))
            else:
                label, text = two_columns(line, where, ("label", "text"))
            texts.append(Labeled(text, normalize("NFC", label.strip()), number))
        except DataError as error:
            refuse(kind_of_columns(line), error)
    if not texts:
        expect_some_left()
    return _reported(texts, path, say, headed=header is not None)


def _reported(texts: list[Labeled], path: Path | Lines, say: Callable[[str], None], *, headed: bool) -> list[Labeled]:
    """Report what is odd in labeled texts, and return those that are not left out."""
    if not headed:
        _check_order(texts, str(path))
    texts = _in_order(texts, str(path))
    columns = [item.text for item in texts], [item.label for item in texts]
    texts = without_odd_lines(str(path), texts, [item.line for item in texts], *columns)
    add(f"{path}: {counts_text(item.label for item in texts)}")
    odd = text_messages([item.line for item in texts], [item.label for item in texts], [item.text for item in texts])
    for message in (*_label_warnings(texts), *odd):
        say(f"{path}: {message}")
    return texts


def _label_warnings(items: list[Labeled]) -> Iterator[str]:
    """Describe what is odd in labels: spellings of one, more of them than can be learned, texts with several."""
    counts = Counter(item.label for item in items)
    yield from spellings(counts, "labels")
    yield from seems_header((item.label for item in items), f"the label of line {items[0].line}")
    if len(items) > 1 and all(item.label == item.text.strip() for item in items):
        yield "every text is its label: check the columns."
    if len(counts) > max(10, len(items) // 2):
        hint = "Check the columns: a line is label<TAB>text."
        if all(map(_NUMBER.fullmatch, counts)):
            hint = "Numbers are predicted by qkv train regress."
        yield (
            f"{len(counts):,} different labels for {len(items):,} texts: most labels have one example, from which "
            f"nothing can be learned. {hint}"
        )
    if all(label.startswith(FASTTEXT) for label in counts):
        yield f"every label begins with {FASTTEXT}, as in files for fastText, which is read as a part of it: remove it"
    first: dict[str, Labeled] = {}
    conflicting = [item for item in items if first.setdefault(item.text, item).label != item.label]
    if conflicting:
        second_item, first_item = conflicting[0], first[conflicting[0].text]
        count_text = "1 text has" if len(conflicting) == 1 else f"{len(conflicting):,} texts have"
        yield (
            f"{count_text} another label than the same text before, "
            f"the first in line {second_item.line:,}: "
            f'"{brief(second_item.label)}", and "{brief(first_item.label)}" in line {first_item.line:,}'
        )


def spellings(counts: Mapping[str, int], names: str) -> Iterator[str]:
    """Say which labels or tags are likely to be one."""
    spellings: dict[str, list[str]] = {}
    for label in counts:
        words = _BETWEEN_WORDS.sub(" ", label.casefold())
        words = repr(float(label.replace(",", "."))) if _NUMBER.fullmatch(label) else words
        spellings.setdefault(words.strip(_PUNCTUATION) or words, []).append(label)
    for variants in spellings.values():
        if len(variants) > 1:
            difference = "capitals, spaces or punctuation"
            if all(map(_NUMBER.fullmatch, variants)):
                difference = "how a number is written"
            elif len({label.casefold() for label in variants}) == 1:
                difference = "capitals"
            label_list = ", ".join(map(brief, sorted(variants)))
            yield f"{names} that differ in {difference} alone are different {names}: {label_list}"
    _, *rare = counts  # the first one can be a header, which has a message of its own
    single = [label for label in sorted(rare) if counts[label] == 1]
    if 0 < len(single) <= _FEW_SINGLE and sum(counts.values()) >= _MANY_TIMES * len(counts):
        label_list = ", ".join(map(brief, single))
        yield f"{names} that occur once: {label_list}. Are they spelled as the others?"
    visible = Counter(INVISIBLE.sub("", label) for label in counts)
    hidden = [label for label in sorted(counts) if INVISIBLE.search(label) and visible[INVISIBLE.sub("", label)] > 1]
    if hidden:
        label_list = ", ".join(map(ascii, hidden[:5]))
        yield f"{names} that differ in invisible characters alone are different {names}: {label_list}"


def seems_header(labels: Iterable[str], noun: str) -> Iterator[str]:
    """Say if the first label or tag alone occurs once, as the name of a column does that is not known as one."""
    first, *rest = labels
    counts = Counter(rest)
    if len(rest) > _FEW and first not in counts and min(counts.values()) > 1:
        advice = "if the line names the columns, delete it, or give a column by its name"
        yield f'{noun}, "{brief(first)}", occurs nowhere else: {advice}.'


def counts_text(labels: Iterable[str], names: str = "labels") -> str:
    """Say how often labels or tags occur.

    Example:
        >>> counts_text(["good", "bad", "good"])
        'labels: good (2), bad (1)'
    """
    counts = Counter(labels).most_common()
    more = f" and {len(counts) - _LISTED:,} more" if len(counts) > _LISTED else ""
    return f"{names}: {', '.join(f'{brief(label)} ({count:,})' for label, count in counts[:_LISTED])}{more}"


def _in_order(items: list[Labeled], name: str) -> list[Labeled]:
    """Refuse lines whose text is the label of other lines, while its label is a text: its columns are exchanged.

    Returns:
        The other lines.

    Raises:
        DataError: a line has its columns exchanged, and nothing collects such lines; the message gives the first one.
    """
    counts = Counter(item.label for item in items)
    texts = Counter(item.text.strip() for item in items)

    def seems_exchanged(item: Labeled) -> bool:
        text = normalize("NFC", item.text.strip())
        more_words = len(item.label.split()) > len(text.split())
        return counts[text] > max(1, counts[item.label]) and (more_words or texts[item.label] > 0)

    exchanged = [item for item in items if seems_exchanged(item)]
    if not exchanged:  # of as many lines of either order, the one whose label has more words than its text
        pairs = {(item.label, normalize("NFC", item.text.strip())) for item in items}
        exchanged = [item for item in items if (normalize("NFC", item.text.strip()), item.label) in pairs]
        exchanged = [item for item in exchanged if len(item.label.split()) > len(item.text.split())]
    if len(exchanged) > len(items) / 2:
        return items
    for item in exchanged:
        got = f'the label "{brief(item.label)}" of the text "{brief(item.text)}", which is a label of other lines'
        hint = f"Exchange the two columns of this line{exchanged_too(len(exchanged) - 1)}."
        refuse("swapped", DataError(Place(name, item.line), "the label first and the text second", got, hint))
    lines = {item.line for item in exchanged}
    return [item for item in items if item.line not in lines]


def exchanged_too(count: int) -> str:
    """Return how many more lines have their columns exchanged, for a message; a report says it itself."""
    return "" if collecting() else more_lines(count, "; so ")


def more_lines(count: int, before: str) -> str:
    """Return "is 1 more line" or "are N more lines" for a message; empty if there are none.

    Example:
        >>> more_lines(1, "; so "), more_lines(1200, "; so "), more_lines(0, "; so ")
        ('; so is 1 more line', '; so are 1,200 more lines', '')
    """
    return f"{before}{'is 1 more line' if count == 1 else f'are {count:,} more lines'}" if count else ""


def _check_order(items: list[Labeled], name: str) -> None:
    """Refuse a file whose texts stand where the labels belong: longer, and more of them are different.

    Raises:
        DataError: the columns are exchanged.
    """
    labels, texts = {item.label for item in items}, {item.text for item in items}
    words_of_labels, words_of_texts = (
        sum(len(item.split()) for item in column) / len(column) for column in (labels, texts)
    )
    fewer = len(texts) < len(labels) or (len(texts) == len(labels) > 1 and words_of_texts == 1)
    if (fewer and words_of_labels >= 2 * words_of_texts) or len(labels) > max(10, 4 * len(texts)):
        got = f'{len(labels):,} different labels such as "{brief(items[0].label)}" for {len(texts):,} different texts'
        hint = "Exchange the columns, or write their order into a first line: text<TAB>label, or label<TAB>text."
        raise DataError(Place(name), "the label first and the text second", got, hint)


def labels_of(labels: Iterable[str], name: object = "labels", unit: Unit = "texts") -> tuple[str, ...]:
    """Return the distinct labels, sorted.

    Args:
        labels: the labels.
        name: where they come from, for messages.
        unit: what is labeled: whole texts, or the words of sentences.

    Raises:
        DataError: there are fewer than two, so there is nothing to learn.

    Example:
        >>> labels_of(["good", "bad", "good"])
        ('bad', 'good')
    """
    distinct = tuple(sorted(set(labels)))
    if len(distinct) < 2:
        got = f'only "{brief(distinct[0])}"' if distinct else "none"
        label, line = "label", "label<TAB>text"
        if unit == "sentences":
            label, line = "tag", "a word, then its tag in the last column"
        hint = f"With one {label} there is nothing to learn: add {unit} with another one. A line is {line}."
        raise DataError(Place(name), f"at least two different {label}s", got, hint)
    return distinct


def _header_of_labeled(lines: list[str]) -> Literal["label first", "text first"] | None:
    """Return what the first line says about the columns; None if it is data."""
    first, *rest = (cells_of(line, "\t") for line in lines)
    rest = [row for row in rest if row != first]
    if len(first) != 2 or not rest:
        return None
    for order, (label, text) in (("label first", first), ("text first", first[::-1])):
        column = first.index(label)
        if label in LABEL_NAMES and text in TEXT_NAMES and not any(label in row[column : column + 1] for row in rest):
            return order  # type: ignore[return-value]  # a Literal in a tuple
    return None


def cells_of(line: str, between: str) -> list[str]:
    """Return the cells of a line, in lower case."""
    return [cell.strip().lower() for cell in line.rstrip(" ").split(between)]
