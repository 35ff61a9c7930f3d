"""Python values as the lines that readers of files take."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from qkv.data.corpus import Lines
from qkv.data.segments import require_text
from qkv.errors import DataError, Place, brief


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


def as_source(data: Path | str | Iterable[Any], name: str, line: Callable[[Any, str], str] = text_line) -> Path | Lines:
    """Return what a reader takes: a file, or values as lines.

    Args:
        data: the name of a file, or values.
        name: of the argument, for messages.
        line: writes a value as a line; its second argument is the place of the value, for messages.

    Raises:
        DataError: a value is wrong; the message gives its number.

    Example:
        >>> as_source([("good", "a film")], "data", pair_line)
        Lines(name='data', lines=('good\\ta film',))
    """
    if isinstance(data, str | Path):
        return Path(data)
    _expect_order(data, name)
    return Lines(name, tuple(line(item, Place(name, number)) for number, item in enumerate(data, start=1)))
