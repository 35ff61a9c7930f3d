"""Parallel text for translation: training files, validation pairs, tokenizer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from qkv.data.batches import Example
from qkv.data.corpus import Pair
from qkv.data.fingerprints import fingerprint
from qkv.data.open_vocabulary import encode_source, encode_target
from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import WordTable
from qkv.errors import DataError, Place, setting
from qkv.tasks.pairs import PairSources, divided
from qkv.tasks.tokenizing import learn_tokenizer
from qkv.tasks.translate.settings import TranslateFiles, TranslateTokenizer


class Parallel(NamedTuple):
    """Pairs ready for training.

    Attributes:
        tokenizer: learned from the training pairs.
        train: training examples, with their line number as `index`.
        valid: validation pairs.
        valid_examples: the same as tokens.
        fingerprint: sha256 of the training pairs.
        table: the columns of the files, if they are tables.
    """

    tokenizer: Tokenizer
    train: list[Example]
    valid: list[Pair]
    valid_examples: list[Example]
    fingerprint: str
    table: WordTable | None = None

    def turned(self) -> "Parallel":
        """Return the same pairs with the tokens of targets right to left, in the order that a model writes them."""
        train, valid = (
            [replace(each, target=each.target[::-1]) for each in some] for some in (self.train, self.valid_examples)
        )
        return self._replace(train=train, valid_examples=valid)


def read_training(
    files: TranslateFiles,
    words: TranslateTokenizer,
    seed: int,
    tokenizer: Tokenizer | None = None,
    *,
    copies: bool = False,
) -> Parallel:
    """Read and tokenize the training and validation pairs.

    Args:
        files: the files.
        words: tokenizer settings.
        seed: selects the held-out pairs if there are no validation files.
        tokenizer: an existing tokenizer; None to train one.
        copies: whether out-of-vocabulary source words get their own ids, for a model that copies.

    Returns:
        The pairs, ready for training.

    Raises:
        DataError: a file is invalid; the message gives file and line.
        ConfigError: files are missing, or too many are given.
    """
    sources = PairSources.of(files) or PairSources()
    pairs = sources.read(files.table)
    valid_sources = PairSources.of(files, "valid_")
    if valid_sources is not None:
        valid = valid_sources.read(files.table)
    else:
        pairs, valid = divided(pairs, seed, files.holdout)
    if tokenizer is None:
        tokenizer = learn_tokenizers(pairs, words)
    examples = _examples(pairs, tokenizer, files.longest, sources.names, copies)
    valid_examples = _examples(valid, tokenizer, files.longest, (valid_sources or sources).names, copies)
    return Parallel(tokenizer, examples, valid, valid_examples, fingerprint(pairs), files.table)


def learn_tokenizers(pairs: Sequence[Pair], settings: TranslateTokenizer) -> Tokenizer:
    """Learn one vocabulary for sources and targets, or one for each.

    Args:
        pairs: the training pairs.
        settings: tokenizer settings; the size is that of each vocabulary.

    Example:
        >>> settings = TranslateTokenizer(source_tokenizer="char", target_tokenizer="word", minimum=1)
        >>> tokenizer = learn_tokenizers([Pair("ab", "x y", 1)], settings)
        >>> tokenizer.source.encode("ba"), tokenizer.encode("y x")
        ([5, 4], [5, 4])
    """
    if settings.shared:
        return learn_tokenizer(settings, (text for pair in pairs for text in (pair.source, pair.target)))
    source = learn_tokenizer(settings, (pair.source for pair in pairs), settings.kinds[0])
    target = learn_tokenizer(settings, (pair.target for pair in pairs), settings.kinds[1])
    return Tokenizer(target.vocabulary, source.vocabulary)


def _examples(
    pairs: Sequence[Pair], tokenizer: Tokenizer, longest: int, names: tuple[str, str], copies: bool
) -> list[Example]:
    examples = []
    for pair in pairs:
        source, target = _numbered(pair, tokenizer, copies)
        for ids, name in zip((source, target), names, strict=True):
            if len(ids) > longest:
                hint = f"Shorten or remove the line, or allow longer ones with {setting('longest', f'{len(ids)}')}."
                raise DataError(Place(name, pair.line), f"at most {longest} tokens", f"{len(ids)}", hint)
        examples.append(Example(source, target, pair.line))
    return examples


def _numbered(pair: Pair, tokenizer: Tokenizer, copies: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not copies:
        return tuple(tokenizer.source.encode(pair.source)), tuple(tokenizer.encode(pair.target, target=True))
    source = encode_source(pair.source, tokenizer)
    return source.ids, encode_target(pair.target, tokenizer, source.unknown)
