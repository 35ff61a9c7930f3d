"""From settings to a tokenizer: learned from texts, or that of another run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, final

from qkv.data.choices import TokenizerKind
from qkv.data.normal_forms import normalize
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, on_command_line, setting, spelled
from qkv.tasks.notes import note
from qkv.tasks.settings import TokenizerSettings

S = TypeVar("S", bound=TokenizerSettings)
T = TypeVar("T")
_MANY_UNKNOWN, _NEARLY_ALL = 0.2, 0.9
"""Shares of unknown tokens: above the first they are reported, from the second on refused."""
_SAMPLE = 20_000
_FORMER = {"characters": "char", "subwords": "bpe"}


def learn_tokenizer(settings: TokenizerSettings, texts: Iterable[str], kind: TokenizerKind | None = None) -> Tokenizer:
    """Learn a tokenizer from the training texts.

    Args:
        settings: its settings.
        texts: the texts.
        kind: another kind than that of the settings.

    Raises:
        ConfigError: the vocabulary is too small or too large for its kind.

    Example:
        >>> learn_tokenizer(TokenizerSettings(tokenizer="char", minimum=1), ["e\u0301"]).size
        5
    """
    try:
        return Tokenizer.learn(
            texts,
            kind or settings.tokenizer,
            settings.vocabulary,
            lowercase=settings.lowercase,
            minimum=settings.minimum,
            unicode=settings.unicode,
        )
    except ConfigError as error:
        raise error.about("vocabulary") if error.argument == "size" else error from None


def exceeds(texts: Iterable[str], longest: int, settings: TokenizerSettings) -> bool:
    """Return whether a text can have more tokens than so many: no tokenizer makes more of it than it has bytes.

    Example:
        >>> exceeds(["größer"], 8, TokenizerSettings()), exceeds(["größer"], 7, TokenizerSettings())
        (False, True)
    """
    for text in texts:
        if len(text) >= longest:
            return True
        if not text.isascii():
            normal = text if settings.unicode == "none" else normalize(settings.unicode, text)
            if len((normal.lower() if settings.lowercase else normal).encode()) > longest:
                return True
    return False


def sample_of(items: Sequence[T]) -> Sequence[T]:
    """Return texts from which a report learns a tokenizer, at equal distances: all, or so many that it takes seconds.

    Example:
        >>> len(sample_of(range(1000))), len(sample_of(range(1_000_000)))
        (1000, 20000)
    """
    return items[:: -(-len(items) // _SAMPLE)]


def with_known_tokens(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokenizer settings with a former name of a kind replaced, which is noted on standard error.

    Example:
        >>> with_known_tokens({"tokenizer": "char", "vocabulary": 99})
        {'tokenizer': 'char', 'vocabulary': 99}
    """
    former = table.get("tokenizer")
    if not isinstance(former, str) or former not in _FORMER:
        return dict(table)
    note(f'qkv: the tokenizer "{former}" is now called {_FORMER[former]}')
    return {**table, "tokenizer": _FORMER[former]}


class Unknown(NamedTuple):
    """How many tokens of a part of the text are unknown to the tokenizer.

    Attributes:
        part: what the tokens are of, such as "training sources".
        unknown, total: how many tokens.
        setting: what chooses their tokenizer.
        alone: whether the model reads nothing else, so that it cannot learn from unknown tokens.
    """

    part: str
    unknown: int
    total: int
    setting: str = "tokenizer"
    alone: bool = True

    @classmethod
    def of(
        cls, part: str, ids: Iterable[Sequence[int]], unk: int, name: str = "tokenizer", *, alone: bool = True
    ) -> "Unknown":
        """Count those of texts, each by its ids."""
        counter = UnknownCounter(unk)
        counter.add(ids)
        return cls(part, counter.unknown, counter.total, name, alone)


def expect_known(parts: Iterable[Unknown]) -> None:
    """Report parts of which many tokens are unknown, before a model is trained on them.

    Raises:
        DataError: nearly all tokens of a part are unknown.

    Example:
        >>> expect_known([Unknown("training texts", 19, 20)])
        Traceback (most recent call last):
        qkv.errors.DataError: training texts: expected tokens that the vocabulary has; got 19 unknown ones of 20. ...
    """
    for part, unknown, total, name, alone in parts:
        if unknown <= _MANY_UNKNOWN * total:
            continue
        hint = setting(name, "bpe") + " leaves no text unknown; char suits text without spaces too."
        if part.startswith("validation"):
            hint += " Or is it text of another kind than the training text?"
        if alone and unknown >= _NEARLY_ALL * total:
            raise DataError(part, "tokens that the vocabulary has", f"{unknown:,} unknown ones of {total:,}", hint)
        note(f"qkv: {part}: {unknown:,} of {total:,} tokens are unknown. {spelled(hint, on_command_line)}")


@final
class UnknownCounter:
    """Counts the tokens of some texts that are unknown to a model, part by part.

    Args:
        unknown: the id or the name of unknown tokens; None if no text is unknown.
        unit: what tokens are called.

    Example:
        >>> counter = UnknownCounter(3)
        >>> counter.add([(5, 3), (3,)])
        >>> counter.unknown, counter.total
        (2, 3)
    """

    def __init__(self, unknown: int | str | None, unit: str = "tokens") -> None:
        self._mark, self._unit = unknown, unit
        self.unknown = self.total = 0

    def add(self, texts: Iterable[Sequence[int] | Sequence[str]]) -> None:
        """Count more texts, each by its ids or by their names."""
        for text in texts:
            self.unknown += sum(token == self._mark for token in text)
            self.total += len(text)

    def report(self, file: object | None = None) -> None:
        """Report how many tokens are unknown, if any are, and in which file."""
        if self.unknown:
            where = "" if file is None else f"{file}: "
            note(f"qkv: {where}the model does not know {self.unknown:,} of {self.total:,} {self._unit}.")


def unknown_name(tokenizer: Tokenizer) -> str | None:
    """Return how `Tokenizer.pieces` names an unknown token; None for pieces of bytes, which know every text.

    Example:
        >>> unknown_name(Tokenizer.learn(["good film"], kind="word"))
        '<unk>'
    """
    if tokenizer.of_bytes or tokenizer.unk < 0:  # that of a published model can have none
        return None
    return tokenizer.pieces([tokenizer.unk])[0]


def report_unknown(ids: Iterable[Sequence[int]], unk: int, unit: str = "tokens", file: object | None = None) -> None:
    """Report how many tokens of some texts are unknown to a model, if any are.

    Args:
        ids: those of each text.
        unk: the id of unknown tokens.
        unit: what tokens are called.
        file: where the text comes from, if there are several files.
    """
    counter = UnknownCounter(unk, unit)
    counter.add(ids)
    counter.report(file)


def as_learned(settings: S, tokenizer: Tokenizer) -> S:
    """Return the tokenizer settings with the normal form of the tokenizer itself, which can be that of an older run."""
    form = tokenizer.vocabulary.unicode
    if form != settings.unicode:
        note(f"qkv: the tokenizer was learned with tokenizer.unicode = {form}, which remains")
    return replace(settings, unicode=form)
