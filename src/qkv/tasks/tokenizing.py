"""From settings to a tokenizer: learned from texts, or that of another run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qkv.data.choices import TokenizerKind
from qkv.data.tokenizer import Tokenizer
from qkv.tasks.notes import note
from qkv.tasks.settings import TokenizerSettings

S = TypeVar("S", bound=TokenizerSettings)
_FORMER = {"characters": "char", "subwords": "bpe"}


def learn_tokenizer(settings: TokenizerSettings, texts: Iterable[str], kind: TokenizerKind | None = None) -> Tokenizer:
    """Learn a tokenizer from the training texts.

    Args:
        settings: its settings.
        texts: the texts.
        kind: another kind than that of the settings.

    Example:
        >>> learn_tokenizer(TokenizerSettings(tokenizer="char", minimum=1), ["e\u0301"]).size
        5
    """
    return Tokenizer.learn(
        texts,
        kind or settings.tokenizer,
        settings.vocabulary,
        lowercase=settings.lowercase,
        minimum=settings.minimum,
        unicode=settings.unicode,
    )


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


def tell_unknown(ids: Iterable[Sequence[int]], unk: int, unit: str = "tokens") -> None:
    """Say how much of a text a model does not know, if there is any.

    Args:
        ids: those of each text.
        unk: the id of all that is unknown.
        unit: what has an id.
    """
    unknown = total = 0
    for text in ids:
        unknown, total = unknown + text.count(unk), total + len(text)
    if unknown:
        note(f"qkv: the model does not know {unknown:,} of {total:,} {unit}.")


def as_learned(settings: S, tokenizer: Tokenizer) -> S:
    """Return the tokenizer settings with the normal form of the tokenizer itself, which can be that of an older run."""
    form = tokenizer.vocabulary.unicode
    if form != settings.unicode:
        note(f"qkv: the tokenizer was learned with tokenizer.unicode = {form}, which remains")
    return replace(settings, unicode=form)
