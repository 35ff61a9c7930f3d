"""Which weights find the source word behind a word that a translation model does not know."""

from collections.abc import Sequence
from pathlib import Path

from qkv.data.corpus import read_pairs
from qkv.errors import ConfigError, error_message
from qkv.metrics.alignment import Links
from qkv.tasks.aligning import Aligner, Sentences
from qkv.tasks.reading import Reading
from qkv.tasks.translator import Translator


def as_unknown(translator: Translator, wanted: bool, source: Path | None, target: Path | None) -> Reading | None:
    """The reading that `--replace-unknown` asks for.

    Args:
        translator: whose unknown words are to be replaced.
        wanted: whether to replace at all.
        source, target: sentences on which the reading is chosen, see `choose_reading`; without them the aligner's own.

    Returns:
        The reading; None where nothing is replaced.

    Raises:
        ConfigError: flags that do not belong together, a model without attention, or byte pairs, which know all words.
        DataError: a file cannot be used; names file and line.
    """
    if not wanted:
        if source is not None or target is not None:
            hint = "They choose which weights find the word."
            raise ConfigError(error_message("--valid-source", "--replace-unknown beside it", "none", hint))
        return None
    if translator.tokenizer.kind == "bpe":
        hint = "Leave it out: byte pairs write any word."
        got = "byte pairs, which lack no word"
        raise ConfigError(error_message("--replace-unknown", "a vocabulary of words or characters", got, hint))
    aligner = Aligner(translator)
    if source is None and target is None:
        return aligner.default
    if source is None or target is None:
        got = "one of them"
        raise ConfigError(error_message("--valid-source", "--valid-source and --valid-target", got, "Name both files."))
    return choose_reading(aligner, [Sentences(pair.source, pair.target) for pair in read_pairs(source, target)])


def choose_reading(aligner: Aligner, pairs: Sequence[Sentences]) -> Reading:
    """Find the layer, head and step that link words which are the same on both sides: names and numbers.

    Args:
        aligner: of the model.
        pairs: sentences and their translations.

    Returns:
        The reading that finds most of these links.

    Raises:
        ConfigError: no word is the same on both sides of any pair.
    """
    links = [identical_links(pair) for pair in pairs]
    kept = [place for place, found in enumerate(links) if found]
    if not kept:
        hint = "Give sentences with names and numbers, or leave the files out."
        raise ConfigError(error_message("--valid-source", "words that are the same on both sides", "none", hint))
    # Words that are not the same anywhere have no links by hand: only those that have count.
    found = [frozenset(links[place]) for place in kept]
    gold = [Links(sure, sure) for sure in found]
    return aligner.choose([pairs[place] for place in kept], gold)[0]


def identical_links(pair: Sentences) -> set[tuple[int, int]]:
    """Links between words that stand once on either side and are the same.

    Example:
        >>> sorted(identical_links(Sentences("Zuri ist 7 , sagt Ada ,", "Zuri is 7 , Ada says ,")))
        [(0, 0), (2, 2), (5, 4)]
    """
    source, target = pair.source.split(), pair.target.split()
    once = [word for word in set(source) & set(target) if source.count(word) == 1 == target.count(word)]
    return {(source.index(word), target.index(word)) for word in once}
