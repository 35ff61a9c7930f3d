"""Parallel text for translation: training files, validation pairs, tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from qkv.data.batches import Example
from qkv.data.corpus import Pair, fingerprint, stream_lines
from qkv.data.open_vocabulary import encode_pair
from qkv.data.report import expect_some_left, refuse
from qkv.data.tokenizer import Tokenizer
from qkv.data.word_table import WordTable
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.tasks.corpora.manifest import VALID_PAIRS
from qkv.tasks.corpora.pairs import PairCorpus, PairsInMemory, PreparedPairs
from qkv.tasks.corpora.prepared import held_out_pairs, open_for_training
from qkv.tasks.length import longer_allowed
from qkv.tasks.notes import reporting
from qkv.tasks.pairs import PairSources, read_training_pairs
from qkv.tasks.tokenizing import Unknown, exceeds, learn_tokenizer, sample_of
from qkv.tasks.translate.limits import LengthLimit
from qkv.tasks.translate.settings import TranslateFiles, TranslateTokenizer


class Parallel(NamedTuple):
    """Pairs ready for training.

    Attributes:
        tokenizer: learned from the training pairs.
        train: training pairs.
        valid: validation pairs.
        valid_examples: validation pairs as tokens.
        fingerprint: sha256 of the training pairs.
        table: the columns of the files, if they are tables.
        backward: whether the tokens of targets stand right to left.
    """

    tokenizer: Tokenizer
    train: PairCorpus
    valid: list[Pair]
    valid_examples: PairsInMemory
    fingerprint: str
    table: WordTable | None = None
    backward: bool = False

    def right_to_left(self) -> "Parallel":
        """Return the same pairs with the tokens of targets right to left, in the order that a model writes them."""
        train, valid = self.train.right_to_left(), self.valid_examples.right_to_left()
        return self._replace(train=train, valid_examples=valid, backward=True)

    @property
    def limit(self) -> LengthLimit:
        """How long a translation may become by default."""
        return LengthLimit.of(self.train.lengths())

    def count_unknown(self) -> list[Unknown]:
        """Return the number of unknown tokens of the pairs, without those that a model can copy."""
        return [*self.train.count_unknown("training"), *self.valid_examples.count_unknown("validation")]


def read_training(
    files: TranslateFiles,
    tokenizer_settings: TranslateTokenizer,
    seed: int,
    tokenizer: Tokenizer | None = None,
    *,
    copies: bool = False,
) -> Parallel:
    """Read and tokenize the training and validation pairs.

    Args:
        files: the files.
        tokenizer_settings: its settings, if one is learned.
        seed: selects the held-out pairs if there are no validation files.
        tokenizer: an existing tokenizer; None to train one.
        copies: whether out-of-vocabulary source words get their own ids, for a model that copies.

    Returns:
        The pairs, ready for training.

    Raises:
        DataError: a file is invalid; the message gives file and line.
        ConfigError: files are missing, or too many are given.
    """
    with reporting(files.skip):
        if files.prepared is not None:
            return _prepared(files, tokenizer, copies)
        pairs = read_training_pairs(files, seed, table=files.table, count=files.holdout)
        if tokenizer is None:
            tokenizer = learn_tokenizers(pairs.train, tokenizer_settings)
        train, examples = _examples(pairs.train, tokenizer, files.longest, pairs.names, copies)
        valid, valid_examples = _examples(pairs.valid, tokenizer, files.longest, pairs.valid_names, copies)
        return Parallel(tokenizer, examples, valid, valid_examples, fingerprint(train), _resolved(files))


def _resolved(files: TranslateFiles) -> WordTable | None:
    """Return the columns of symbols by their positions, which lines to translate have too."""
    if files.table is None or not isinstance(files.data, str | Path):
        return files.table
    return files.table.resolved(next(stream_lines(Path(files.data))), str(files.data))


def inspect(files: TranslateFiles, tokenizer_settings: TranslateTokenizer, seed: int) -> None:
    """Read the pairs for a report, and tokenize only those that can be too long; arguments as for `read_training`."""
    if files.prepared is not None:
        _prepared(files, None, copies=False)
        return
    pairs = read_training_pairs(files, seed, table=files.table, count=files.holdout)
    parts = [
        ([pair for pair in part if exceeds([pair.source, pair.target], files.longest, tokenizer_settings)], names)
        for part, names in ((pairs.train, pairs.names), (pairs.valid, pairs.valid_names))
    ]
    if any(part for part, _ in parts):
        tokenizer = learn_tokenizers(sample_of(pairs.train), tokenizer_settings)
        for part, names in parts:
            _examples(part, tokenizer, files.longest, names, copies=False)


def _prepared(files: TranslateFiles, tokenizer: Tokenizer | None, copies: bool) -> Parallel:
    """Open a prepared corpus; validation pairs come from files, or are those that it holds out."""
    assert files.prepared is not None
    if PairSources.of(files) is not None or files.table is not None:
        hint = "Prepare these pairs too, or omit one of them."
        raise ConfigError(setting("prepared"), "no files or columns beside it", "both", hint)
    if copies:
        hint = "Train it from files, or without copying."
        raise ConfigError("copy", "none with a prepared corpus, which has tokens but no words", "some", hint)
    corpus = open_for_training(files.prepared, "pairs", tokenizer)
    train = PreparedPairs(corpus)
    if not len(train):
        raise DataError(Place(files.prepared), "pairs to train on", "none", "Prepare more pairs.")
    sources = PairSources.of(files, "valid_")
    valid = held_out_pairs(corpus.folder) if sources is None else sources.read()
    names = (str(corpus.folder / VALID_PAIRS),) * 2 if sources is None else sources.names
    valid, examples = _examples(valid, corpus.tokenizer, files.longest, names, copies=False)
    return Parallel(corpus.tokenizer, train, valid, examples, corpus.manifest.digest)


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
) -> tuple[list[Pair], PairsInMemory]:
    """Tokenize pairs, and return those that are short enough."""
    examples, kept = [], []
    for pair in pairs:
        source, target = encode_pair(pair.source, pair.target, tokenizer, copies=copies)
        for ids, name in zip((source, target), names, strict=True):
            if len(ids) > longest:
                hint = "Shorten or remove the line, " + longer_allowed(len(ids), tokenizer)
                refuse("long", DataError(Place(name, pair.line), f"at most {longest} tokens", f"{len(ids)}", hint))
                break
        else:
            examples.append(Example(source, target, pair.line))
            kept.append(pair)
    if not kept:
        expect_some_left()
    return kept, PairsInMemory(examples, tokenizer)
