"""Parallel text for translation: training files, validation pairs, tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from qkv.data.batches import Example
from qkv.data.corpus import Pair, read_pairs, read_tsv
from qkv.data.fingerprints import fingerprint
from qkv.data.holdout import hold_out, split
from qkv.data.open_vocabulary import encode_source, encode_target
from qkv.data.tokenizer import Tokenizer
from qkv.data.vocabulary import Kind
from qkv.data.word_table import WordTable
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.tasks.notes import note

_COLUMNS = tuple(each.name for each in fields(WordTable))


@dataclass(frozen=True)
class Files:
    """Files with sentence pairs: two parallel files, or one TSV file.

    Args:
        source, target: line N of one translates line N of the other.
        data: or one file with `source<TAB>target` on each line.
        valid_source, valid_target, valid_data: likewise for validation; without them a part of the training pairs is
            held out.
        holdout: how many; by default a twentieth, at most 1,000, see `qkv.data.holdout`.
        longest: maximum tokens per line.
        source_col, target_col, features_col, source_sep, target_sep, features_sep, features: read the TSV files as
            tables of symbols: see `qkv.data.word_table.WordTable`, whose defaults hold as soon as one of them is given.

    Raises:
        ConfigError: a column is out of range, or two are the same.
    """

    source: Path | None = None
    target: Path | None = None
    data: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    valid_data: Path | None = None
    holdout: int | None = None
    longest: int = 256
    source_col: int | None = None
    target_col: int | None = None
    features_col: int | None = None
    source_sep: str | None = None
    target_sep: str | None = None
    features_sep: str | None = None
    features: Literal["front", "separate"] | None = None

    def __post_init__(self) -> None:
        self.over(None)

    @property
    def table(self) -> WordTable | None:
        """The columns of the TSV files; None if no column and no separator is given."""
        return self.over(None)

    def over(self, default: WordTable | None) -> WordTable | None:
        """Return the columns, with those that are not given from a default."""
        given = {name: getattr(self, name) for name in _COLUMNS if getattr(self, name) is not None}
        return replace(default or WordTable(), **given) if given or default is not None else None


@dataclass(frozen=True)
class TokenizerSettings:
    """Tokenizer settings; the tokenizer is built from the training text.

    Args:
        kind: byte pairs or unigram pieces over both languages, words, characters, or "none" for tokens that spaces
            separate already.
        size: maximum vocabulary size.
        lowercase: whether to lower-case all text.
        minimum: minimum frequency of a token.
        unicode: the normal form of Unicode that all text is brought to, "none" to leave it as it is. "NFC" makes one
            character of a letter and its accents, so that texts that look the same are the same.
        source, target: the kinds of a translator's sources and targets, if they have a vocabulary each.
    """

    kind: Kind = "bpe"
    size: int = 8000
    lowercase: bool = False
    minimum: int = 2
    unicode: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "NFC"
    source: Kind | None = None
    target: Kind | None = None

    @property
    def kinds(self) -> tuple[Kind, Kind]:
        """The kinds of sources and targets."""
        return self.source or self.kind, self.target or self.kind

    @property
    def shared(self) -> bool:
        """Whether sources and targets have one vocabulary."""
        return self.source is None and self.target is None

    def learn(self, texts: Iterable[str]) -> Tokenizer:
        """Learn a tokenizer from the training texts.

        Example:
            >>> TokenizerSettings("char", minimum=1).learn(["e\u0301"]).size
            5
        """
        return Tokenizer.learn(
            texts, self.kind, self.size, lowercase=self.lowercase, minimum=self.minimum, unicode=self.unicode
        )


_FORMER = {"characters": "char", "subwords": "bpe"}


def with_known_tokens(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokenizer settings with a former name of a kind replaced, which is noted on standard error.

    Example:
        >>> with_known_tokens({"kind": "char", "size": 99})
        {'kind': 'char', 'size': 99}
    """
    former = table.get("kind")
    if former not in _FORMER:
        return dict(table)
    note(f'qkv: the tokenizer "{former}" is now called {_FORMER[former]}')
    return {**table, "kind": _FORMER[former]}


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
    files: Files, words: TokenizerSettings, seed: int, tokenizer: Tokenizer | None = None, *, copies: bool = False
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
    pairs = read_files(files)
    names = valid_names = names_of(files)
    if files.valid_source or files.valid_target or files.valid_data:
        given = replace(files, source=files.valid_source, target=files.valid_target, data=files.valid_data)
        valid, valid_names = read_files(given, "valid-"), names_of(given)
    else:
        pairs, valid = divided(pairs, seed, files.holdout)
    if tokenizer is None:
        tokenizer = learn_tokenizer(pairs, words)
    examples = _examples(pairs, tokenizer, files.longest, names, copies)
    valid_examples = _examples(valid, tokenizer, files.longest, valid_names, copies)
    return Parallel(tokenizer, examples, valid, valid_examples, fingerprint(pairs), files.table)


def divided(
    pairs: Sequence[Pair], seed: int, count: int | None = None, names: tuple[str, str] = ("pairs", "sources")
) -> tuple[list[Pair], list[Pair]]:
    """Choose validation pairs among the training pairs, and report an unusual choice on standard error.

    Args:
        pairs: all pairs.
        seed: random seed.
        count: minimum number of pairs to hold out; None for the default of `qkv.data.holdout.split`.
        names: what pairs and their sources are called.

    Returns:
        The training and the validation pairs.

    Raises:
        ConfigError: there are not so many pairs to hold out.
    """
    if count is None:
        train, valid, message = split(pairs, seed, parts=lambda pair: (pair.source, pair.target), names=names)
    else:
        train, valid = hold_out(pairs, count, seed)
        message = ""
        if len(valid) >= 2 * count:
            message = (
                f"{len(valid):,} {names[0]} are held out, not {count:,}: those with the same source stay together. "
                f"Give validation {names[0]} to train on all of them."
            )
    if message:
        note(f"qkv: {message}")
    return train, valid


def learn_tokenizer(pairs: Sequence[Pair], words: TokenizerSettings) -> Tokenizer:
    """Learn one vocabulary for sources and targets, or one for each.

    Args:
        pairs: the training pairs.
        words: tokenizer settings; the size is that of each vocabulary.

    Example:
        >>> settings = TokenizerSettings(source="char", target="word", minimum=1)
        >>> tokenizer = learn_tokenizer([Pair("ab", "x y", 1)], settings)
        >>> tokenizer.source.encode("ba"), tokenizer.encode("y x")
        ([5, 4], [5, 4])
    """

    def learn(texts: Iterable[str], kind: Kind) -> Tokenizer:
        return replace(words, kind=kind).learn(texts)

    if words.shared:
        return learn((text for pair in pairs for text in (pair.source, pair.target)), words.kind)
    source = learn((pair.source for pair in pairs), words.kinds[0])
    target = learn((pair.target for pair in pairs), words.kinds[1])
    return Tokenizer(target.vocabulary, source.vocabulary)


def read_files(files: Files, prefix: str = "", table: WordTable | None = None) -> list[Pair]:
    """Read the pairs of `source` and `target`, or of `data`.

    Args:
        files: the files.
        prefix: of the flags that named them, for messages.
        table: the columns that a model was trained on, if it was; those of the files come first.

    Returns:
        The pairs.

    Raises:
        DataError: a file is invalid; the message gives file and line.
        ConfigError: files are missing, or too many are given.
    """

    def name(kind: str, value: str | None = None) -> str:
        return setting(prefix.replace("-", "_") + kind, value)

    source, target, data, columns = files.source, files.target, files.data, files.over(table)
    if columns is not None and data is not None and source is None and target is None:
        return columns.read(data)
    if columns is not None:
        got = "two files" if source or target else "no file"
        hint = "Columns are those of one TSV file."
        raise ConfigError(name("data"), "one TSV file, whose columns are given", got, hint)
    if data is not None and source is None and target is None:
        return _noted(read_tsv(data, say=lambda text: note(f"qkv: {text}")), str(data))
    if source is not None and target is not None and data is None:
        return _noted(read_pairs(source, target), f"{source} and {target}")
    given = [name(kind) for kind, path in (("source", source), ("target", target), ("data", data)) if path]
    raise ConfigError(
        name("source"),
        f"{name('source', 'FILE')} and {name('target', 'FILE')}, or {name('data', 'FILE.tsv')}",
        " and ".join(given) or "none of them",
        "Two files with one sentence per line, or one file with source<TAB>target on each line.",
    )


def _noted(pairs: list[Pair], name: str) -> list[Pair]:
    """Return the pairs, and say if all of them are odd."""
    if len(pairs) > 1 and all(pair.source == pair.target for pair in pairs):
        note(f"qkv: {name}: every target equals its source.")
    return pairs


def names_of(files: Files) -> tuple[str, str]:
    """Return the names of the files with sources and with targets, for messages."""
    return (str(files.data), str(files.data)) if files.data else (str(files.source), str(files.target))


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
