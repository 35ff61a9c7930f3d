"""Sentences whose words have tags, from a file or from values."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from qkv.data.columns import TextColumns
from qkv.data.hints import damage_messages
from qkv.data.normal_forms import normalize
from qkv.data.tagged import TAG_NAMES, WORD_AND_TAG, WORD_NAMES, Tagged, read_tagged, report_odd_spans, report_sentences
from qkv.errors import DataError, Place
from qkv.settings import plain
from qkv.tasks.classify.data import missing_data
from qkv.tasks.notes import state
from qkv.tasks.python_values import as_list, label_text, pair_line, pick
from qkv.tasks.tag.settings import Sentences


def read_texts(data: Sentences | None, name: str = "data", columns: TextColumns = WORD_AND_TAG) -> list[Tagged]:
    """Read sentences whose words have tags.

    Args:
        data: a file of words in columns, or sentences of pairs of a word and its tag.
        name: of the argument, for messages.
        columns: of a file.

    Returns:
        The sentences.

    Raises:
        ConfigError: there are none.
        DataError: the data is invalid; the message gives file and line, or the number of the sentence.
    """
    if data is None:
        raise missing_data(name, "A file of words in columns.")
    if isinstance(data, str | Path):
        return read_tagged(Path(data), say=state, columns=columns)
    texts = [_sentence(item, name, number, columns) for number, item in enumerate(map(plain, data), start=1)]
    if not texts:
        raise DataError(name, "at least one item", "none", "Was an iterator already read?")
    report_odd_spans(texts, name, state)
    for message in damage_messages((item.line, word) for item in texts for word in item.words):
        state(f"{name}: {message}")
    return report_sentences(texts, name)


_SENTENCE = 'For example [("Ada", "B-PER"), ("wrote", "O")].'


def _sentence(item: object, name: str, number: int, columns: TextColumns) -> Tagged:
    """Return a sentence given as pairs of a word and its tag, or as a row with a list of words and one of tags."""
    where = Place(name, number)
    if isinstance(item, Mapping):
        words, tags = pick(item, where, columns, (WORD_NAMES, TAG_NAMES))
        item = list(zip(as_list(words, where), as_list(tags, where), strict=False))
    if not isinstance(item, Iterable) or isinstance(item, str | bytes):
        got = type(item).__name__
        raise DataError(where, "a sentence: pairs of a word and its tag", got, _SENTENCE)
    rows = [
        pair_line(pair, f"{where}, word {position}", label_text).split("\t")
        for position, pair in enumerate(item, start=1)
    ]
    for position, row in enumerate(rows, start=1):
        if not all(cell.strip() for cell in row):
            raise DataError(
                f"{where}, word {position}", "a word and its tag", "an empty one", "Fill it or omit the word."
            )
    if not rows:
        raise DataError(where, "at least one word", "none", "Omit the sentence.")
    return Tagged(tuple(word for word, _ in rows), tuple(normalize("NFC", tag) for _, tag in rows), number)
