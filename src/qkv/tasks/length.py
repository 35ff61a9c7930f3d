"""Limits of length: texts longer than a model reads are refused, answers that are cut are reported."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.metrics.figure import Figure


def expect_length(name: str, tokens: int, longest: int, tokenizer: Tokenizer) -> None:
    """Refuse a text of too many tokens, with a hint that fits where the model comes from.

    Args:
        name: of the text.
        tokens: how many it has.
        longest: how many the model reads.
        tokenizer: the model's; an imported one comes with a model whose limit no training changes.

    Raises:
        DataError: the text is too long.

    Example:
        >>> expect_length("line 3", 5, 4, Tokenizer.learn(["abc"], kind="char"))
        Traceback (most recent call last):
        qkv.errors.DataError: line 3: expected at most 4 tokens; got 5. Shorten or split it, or train with longest=5.
    """
    if tokens > longest:
        retrain = ", or train with " + setting("longest", tokens) if tokenizer.imported is None else ""
        raise DataError(name, f"at most {longest} tokens", f"{tokens}", "Shorten or split it" + retrain + ".")


def context_of(config: object) -> float:
    """Return how many tokens a published model reads; infinity for the configuration of any other model."""
    from qkv.hub.families.load import described
    from qkv.hub.published import PublishedConfig

    return described(config).config.context if isinstance(config, PublishedConfig) else math.inf


def length_defaults(config: object, files: Any, ends: int = 0) -> dict[str, dict[str, object]]:
    """Return the default `longest` of a training: that of its files, or what a published model reads if that is less.

    Args:
        config: the model's configuration.
        files: with `longest`, as it was given or by default, if the model is a published one.
        ends: how many tokens are added to each text.
    """
    context = context_of(config) - ends
    return {"data": {"longest": min(files.longest, context)}} if context < math.inf else {}


def expect_readable(settings: Any, ends: int = 0) -> None:
    """Refuse a training on texts that are longer than a published model reads.

    Args:
        settings: of the training.
        ends: how many tokens are added to each text.

    Raises:
        ConfigError: `data.longest` exceeds the context of the model.
    """
    context = context_of(settings.model) - ends
    if context < math.inf and settings.data.longest > context:
        hint = "It is what the model of " + setting("from") + " reads at most."
        raise ConfigError(setting("longest"), f"at most {context:,}", f"{settings.data.longest:,}", hint)


def longer_allowed(tokens: int, tokenizer: Tokenizer) -> str:
    """Return the end of a hint about a text that is too long: what allows longer ones.

    Args:
        tokens: how many it has.
        tokenizer: the model's; an imported one comes with a model that may read no more.
    """
    limited = "" if tokenizer.imported is None else ", if the model of " + setting("from") + " reads so many"
    return "or allow longer ones with " + setting("longest", tokens) + limited + "."


@contextmanager
def naming_line(file: object, lines: Sequence[int]) -> Iterator[None]:
    """Name the file and the line in an error about the text of some number.

    Args:
        file: where the texts come from.
        lines: the line of each text; texts are counted from 1.
    """
    try:
        yield
    except DataError as error:
        if error.file is not None or error.line is None:
            raise
        raise error.about(Place(file, lines[error.line - 1])) from None


_OR_TRAIN = "or train a model that repeats itself for longer"


class CutWarning(UserWarning):
    """A translation was unfinished when it reached its length limit."""


@final
class CutCounter:
    """Counts the answers that were cut at their length limit, part by part.

    Args:
        finished: of the first part, whether the model ended each answer itself.

    Example:
        >>> counter = CutCounter([True, False])
        >>> counter.add([True])
        >>> counter.message("--max-tokens")
        '1 of 3 translations were cut at the length limit, the first in line 2. Increase --max-tokens, or ...'
    """

    def __init__(self, finished: Iterable[bool] = ()) -> None:
        self._total, self._cut, self._first = 0, 0, 0
        self.add(finished)

    def add(self, finished: Iterable[bool]) -> None:
        """Count more answers, by whether the model ended each itself."""
        for ended in finished:
            self._total += 1
            if not ended:
                self._cut += 1
                self._first = self._first or self._total

    def message(self, more: str) -> str | None:
        """Report which answers were cut.

        Args:
            more: the name of the setting that allows longer ones.

        Returns:
            One sentence; None if none was cut.
        """
        if not self._cut:
            return None
        if self._total == 1:
            return f"the translation was cut at the length limit. Increase {more}, {_OR_TRAIN}."
        cut_text = f"{self._cut:,} of {self._total:,} translations were cut at the length limit"
        return f"{cut_text}, the first in line {self._first:,}. Increase {more}, {_OR_TRAIN}."


def cut_share(finished: Iterable[bool]) -> list[Figure]:
    """Return the share of answers that were cut at their length limit, as a figure of a validation; [] if none was.

    Example:
        >>> cut_share([True, False]), cut_share([True])
        ([Figure(name='cut', value=50.0, signature='at the length limit', higher_is_better=False)], [])
    """
    ended = list(finished)
    cut = ended.count(False)
    return [Figure("cut", 100 * cut / len(ended), "at the length limit", higher_is_better=False)] if cut else []


def warn_cut(finished: Iterable[bool]) -> None:
    """Issue a warning about answers that were cut, if any, at the caller's caller."""
    message = CutCounter(finished).message("max_tokens")
    if message is not None:
        warnings.warn(message, CutWarning, stacklevel=3)
