"""Which attention weights find the source word for an unknown target word."""

from collections.abc import Sequence
from pathlib import Path

from qkv.data.corpus import Pair, read_pairs
from qkv.data.words import split_words
from qkv.errors import ConfigError, setting
from qkv.metrics.alignment import Links
from qkv.tasks.translate.aligner import Aligner, Names
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.predict import Translator


def as_unknown(
    translator: Translator, replace: bool, source: Path | None, target: Path | None
) -> AlignmentReading | None:
    """Return the reading for `--replace-unknown`.

    Args:
        translator: the translator whose unknown words are replaced.
        replace: whether to replace at all.
        source, target: sentences for choosing the reading, see `choose_reading`; without them the aligner's default.

    Returns:
        The reading; None if nothing is replaced.

    Raises:
        ConfigError: the flags are inconsistent, the model has no attention, or its pieces of bytes can write any word.
        DataError: a file is invalid; the message gives file and line.
    """
    if not replace:
        if source is not None or target is not None:
            hint = "These files only choose weights for " + setting("replace_unknown") + "."
            raise ConfigError(setting("valid_source"), setting("replace_unknown") + " as well", "none", hint)
        return None
    if translator.tokenizer.of_bytes or translator.tokenizer.source.of_bytes:
        hint = "Omit it: they can write any word."
        got = "pieces of bytes, which can write any word"
        raise ConfigError(setting("replace_unknown"), "a vocabulary of words or characters", got, hint)
    if translator.table is not None and (source is not None or target is not None):
        hint = "Omit the files: the weights are then the aligner's default."
        got = "some with a model of columns"
        raise ConfigError(setting("valid_source"), "no files of sentences", got, hint)
    aligner = Aligner(translator)
    if source is None and target is None:
        return aligner.default
    if source is None or target is None:
        got = "only one of them"
        raise ConfigError(
            setting("valid_source"),
            setting("valid_source") + " and " + setting("valid_target"),
            got,
            "Give both files.",
        )
    return choose_reading(aligner, read_pairs(source, target), (source, target))


def choose_reading(aligner: Aligner, pairs: Sequence[Pair], names: Names = (None, None)) -> AlignmentReading:
    """Find the layer, head and step that best link identical words on both sides, such as names and numbers.

    Args:
        aligner: the model's aligner.
        pairs: sentences and their translations.
        names: their files, for messages.

    Returns:
        The reading that finds most of these links.

    Raises:
        ConfigError: no pair has an identical word on both sides.
    """
    links = [identical_links(pair) for pair in pairs]
    linked = [index for index, pair_links in enumerate(links) if pair_links]
    if not linked:
        hint = "Give sentences with names and numbers, or omit the files."
        raise ConfigError(setting("valid_source"), "words that occur on both sides", "none", hint)
    # Only words with a reference link count; the others have none.
    sure_links = [frozenset(links[index]) for index in linked]
    gold = [Links(sure, sure) for sure in sure_links]
    return aligner.choose([pairs[index] for index in linked], gold, names)[0]


def identical_links(pair: Pair) -> set[tuple[int, int]]:
    """Link words that occur exactly once on each side and are identical.

    Example:
        >>> sorted(identical_links(Pair("Zuri ist 7 , sagt Ada ,", "Zuri is 7 , Ada says ,", 1)))
        [(0, 0), (2, 2), (5, 4)]
    """
    source, target = split_words(pair.source), split_words(pair.target)
    once = [word for word in set(source) & set(target) if source.count(word) == 1 == target.count(word)]
    return {(source.index(word), target.index(word)) for word in once}
