"""Python values as the lines that readers of files take."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from qkv.data.columns import TextColumns, index_of
from qkv.data.corpus import Lines
from qkv.data.segments import require_text
from qkv.errors import DataError, Place, brief, setting
from qkv.settings import plain


def text_line(item: object, where: str) -> str:
    """Return a text as a line.

    Raises:
        DataError: it is no text, or has tabs or line breaks.

    Example:
        >>> text_line("a film", "data:1")
        'a film'
    """
    if not isinstance(item, str):
        raise DataError(where, "a text", type(item).__name__, "Give strings.")
    mark = next((mark for mark in "\n\r\t" if mark in item), None)
    if mark is not None:
        got = f"one with {mark!r}"
        raise DataError(where, "a text without tabs and line breaks", got, "Replace it by a space.")
    return _encodable(item, where)


def expect_texts(texts: Iterable[object], name: str, unit: str = "text") -> list[str]:
    """Return several texts as a list; refuse a single one, whose characters would be taken for texts.

    Args:
        texts: the texts.
        name: of the argument, for messages.
        unit: what each is called.

    Raises:
        DataError: it is a single text, or an item is no text; the message gives its number.

    Example:
        >>> expect_texts(("a film", "a song"), "texts")
        ['a film', 'a song']
        >>> expect_texts("a film", "texts")
        Traceback (most recent call last):
        qkv.errors.DataError: texts: expected several texts; got one: 'a film'. Put it into a list.
    """
    if isinstance(texts, str | bytes):
        raise DataError(name, f"several {unit}s", f"one: {brief(repr(texts))}", "Put it into a list.")
    _expect_order(texts, name)
    result = []
    for number, text in enumerate(texts, start=1):
        where = Place(None, number, unit)
        if not isinstance(text, str):
            raise DataError(where, "a text", brief(repr(text)), "Give strings.")
        result.append(_encodable(text, where))
    return result


def _encodable(text: str, where: str) -> str:
    try:
        return require_text(text)
    except DataError as error:
        raise error.about(where) from None


def _expect_order(items: object, name: str) -> None:
    """Refuse a mapping, of which only the keys would be read, and a set, whose order is another one in each process.

    Raises:
        DataError: it is one.
    """
    if isinstance(items, Mapping):
        raise DataError(
            name, "items in an order", f"a {type(items).__name__}", "Give list(data.items()), or its texts."
        )
    if isinstance(items, Set):
        raise DataError(name, "items in an order", f"a {type(items).__name__}", "Give sorted(...) of it, or a list.")


def as_list(value: object, where: str) -> list[Any]:
    """Return the items of a cell that holds several.

    Raises:
        DataError: it holds one.
    """
    items = plain(value)
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise DataError(where, "a list of words, and one of tags", brief(repr(value)), "Give lists of equal length.")
    return list(items)


def pick(
    row: Mapping[str, Any], where: str, columns: TextColumns, known: Sequence[Collection[str]]
) -> tuple[object, object]:
    """Return the values of two columns of a row.

    Args:
        row: the row; one of `datasets` can have its texts under "translation".
        where: its place, for messages.
        columns: which columns, if they are given.
        known: names of either column in lower case, for those that are not given.

    Raises:
        ConfigError: there is no such column.
        DataError: it is not clear which columns are meant.

    Example:
        >>> pick({"translation": {"de": "ein Hund", "en": "a dog"}}, "data:1", TextColumns(("source", "target")), ())
        ('ein Hund', 'a dog')
        >>> pick({"text": "a film", "label": 0}, "data:1", TextColumns(("label", "text")), (["label"], ["text"]))
        (0, 'a film')
    """
    inner = row.get("translation", row)
    row = inner if isinstance(inner, Mapping) else row
    names = [str(name) for name in row]
    given = [
        None if column is None else names[index_of(column, names, len(names), setting(f"{part}_col"), "data")]
        for part, column in zip(columns.names, columns.columns, strict=True)
    ]
    for position, words in enumerate(known):
        matches = [name for name in names if name.lower() in words and name not in given]
        given[position] = matches[0] if given[position] is None and len(matches) == 1 else given[position]
    others = [name for name in names if name not in given]
    for position in range(2):
        if given[position] is None and len(names) == 2:
            given[position] = others.pop(0)
    if None in given:
        part = columns.names[given.index(None)]
        hint = "Name it with " + setting(f"{part}_col") + "."
        raise DataError(where, f"a column of the {part}", f"the columns {', '.join(map(brief, names[:12]))}", hint)
    first, second = (row[str(name)] for name in given)
    return plain(first), plain(second)


def label_text(item: object, where: str) -> str:
    """Return a label as a line: a text, a whole number, or a truth value.

    Example:
        >>> label_text(0, "data:1"), label_text(True, "data:1"), label_text("good", "data:1")
        ('0', 'True', 'good')
    """
    value = plain(item)
    return text_line(str(value) if isinstance(value, int) else value, where)


def labeled_line(item: object, where: str) -> str:
    """Return a label and a text as a line; errors as for `pair_line`."""
    return pair_line(item, where, label_text)


def pair_line(item: object, where: str, side: Callable[[object, str], str] = text_line) -> str:
    """Return a pair of texts as a line.

    Args:
        item: the pair.
        where: its place, for messages.
        side: how each side is written.

    Raises:
        DataError: it is no pair of texts.

    Example:
        >>> pair_line(("ein Hund", "a dog"), "data:1")
        'ein Hund\\ta dog'
    """
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        raise DataError(where, "a pair of texts", repr(item)[:80], 'For example ("ein Hund", "a dog").')
    return "\t".join(side(part, where) for part in item)


def as_source(
    data: Path | str | Iterable[Any],
    name: str,
    line: Callable[[Any, str], str] = text_line,
    columns: TextColumns | None = None,
    known: Sequence[Collection[str]] = (),
) -> Path | Lines:
    """Return what a reader takes: a file, or values as lines.

    Args:
        data: the name of a file, or values.
        name: of the argument, for messages.
        line: writes a value as a line; its second argument is the place of the value, for messages.
        columns: those of a row that has names; None if it has no such rows.
        known: names of these columns, as for `pick`.

    Raises:
        DataError: a value is wrong; the message gives its number.

    Example:
        >>> as_source([("good", "a film")], "data", pair_line)
        Lines(name='data', lines=('good\\ta film',))
    """
    if isinstance(data, str | Path):
        return Path(data)
    _expect_order(data, name)
    lines = []
    for number, row in enumerate(map(plain, data), start=1):
        where = Place(name, number)
        by_name = columns is not None and isinstance(row, Mapping)
        lines.append(line(pick(row, where, columns, known) if by_name and columns is not None else row, where))
    return Lines(name, tuple(lines))
