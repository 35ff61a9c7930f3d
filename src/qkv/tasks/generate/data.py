"""Plain text for a language model: training file, validation part, tokenizer."""

from pathlib import Path
from typing import NamedTuple

from qkv.data.corpus import Lines, fingerprint
from qkv.data.text import divide, read_text
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.tasks.corpora.prepared import open_for_training
from qkv.tasks.corpora.text import PreparedText, TextCorpus, TextInMemory
from qkv.tasks.generate.settings import GenerateFiles
from qkv.tasks.notes import reporting, state
from qkv.tasks.settings import Texts, TokenizerSettings
from qkv.tasks.tokenizing import Unknown, learn_tokenizer


class TrainingText(NamedTuple):
    """Text ready for training.

    Attributes:
        tokenizer: built from the training part.
        train, valid: the two parts.
        fingerprints: sha256 of each part.
    """

    tokenizer: Tokenizer
    train: TextCorpus
    valid: TextInMemory
    fingerprints: dict[str, str]

    def count_unknown(self) -> list[Unknown]:
        """Return the number of unknown tokens of the two parts."""
        parts = {"training text": self.train, "validation text": self.valid}
        return [Unknown(name, part.unknown, part.tokens) for name, part in parts.items()]


def read_for_training(
    files: GenerateFiles, tokenizer_settings: TokenizerSettings, context: int, tokenizer: Tokenizer | None = None
) -> TrainingText:
    """Read and tokenize the training and validation text.

    Args:
        files: the files.
        tokenizer_settings: its settings, if one is learned.
        context: tokens per window; both parts must have at least one window.
        tokenizer: an existing tokenizer; None to train one.

    Returns:
        The text, ready for training.

    Raises:
        DataError: a file is invalid or too short.
        ConfigError: no file is given, or a prepared corpus beside one.
    """
    with reporting(files.skip):
        if files.prepared is not None:
            return _prepared(files, context, tokenizer)
        source, train, valid = gather(files)
    if tokenizer is None:
        tokenizer = learn_tokenizer(tokenizer_settings, [train])
    learned, validation = TextInMemory.of(train, tokenizer), TextInMemory.of(valid, tokenizer)
    _expect_window(learned.tokens, context, Place(source), f"{len(learned.ids):,}")
    total = f"{len(validation.ids):,}"
    if files.valid_text is None:
        count = len(learned.ids) + len(validation.ids)
        total = f"{len(validation.ids):,} of {count:,}, the end of the text (" + setting("holdout") + ")"
    _expect_window(validation.tokens, context, Place(source if files.valid_text is None else files.valid_text), total)
    return TrainingText(tokenizer, learned, validation, {"train": fingerprint([train]), "valid": fingerprint([valid])})


def inspect(files: GenerateFiles) -> None:
    """Read the text for a report; arguments and errors as for `read_for_training`."""
    if files.prepared is not None:
        open_for_training(files.prepared, "text", None)
    else:
        gather(files)


def gather(files: GenerateFiles) -> tuple[Path | Lines, str, str]:
    """Read the text to train on and that to validate on, and return where the first is from; as for training."""
    if files.text is None:
        hint = "Any plain text in UTF-8; .gz too."
        raise ConfigError(setting("text"), "a file of plain text", "none", hint)
    source = _as_source(files.text, "text")
    text = read_text(source, say=state)
    if files.valid_text is not None:
        valid = read_text(_as_source(files.valid_text, "valid_text"))
        if valid in text:
            state("the validation text is trained on too: figures say little about others.")
        return source, text, valid
    train, valid = divide(text, files.holdout)
    state(
        f"held out to validate on: the last {len(valid):,} of {len(text):,} characters, a share of {files.holdout:g}: "
        f"from within line {train.count(chr(10)) + 1:,} on"
    )
    return source, train, valid


def _prepared(files: GenerateFiles, context: int, tokenizer: Tokenizer | None) -> TrainingText:
    """Open a prepared corpus, with what it or a file holds out."""
    assert files.prepared is not None
    if files.text is not None:
        hint = "Prepare the text too, or omit one of them."
        raise ConfigError("text", "no prepared corpus beside it", "both", hint)
    corpus = open_for_training(files.prepared, "text", tokenizer)
    train = PreparedText(corpus)
    _expect_window(train.tokens, context, Place(files.prepared), f"{train.tokens:,}")
    if files.valid_text is None:
        (valid, digest), name = train.held_out(), "what is held out"
    else:
        text = read_text(_as_source(files.valid_text, "valid_text"))
        valid, digest, name = TextInMemory.of(text, corpus.tokenizer), fingerprint([text]), "the validation text"
    _expect_window(valid.tokens, context, name, f"{valid.tokens:,}")
    return TrainingText(corpus.tokenizer, train, valid, {"prepared": corpus.manifest.digest, "valid": digest})


def _as_source(data: Texts, name: str) -> Path | Lines:
    """Return what a reader takes: a file, or the lines of texts."""
    if isinstance(data, str | Path):
        return Path(data)
    lines: list[str] = []
    for number, item in enumerate(data, start=1):
        if not isinstance(item, str):
            raise DataError(Place(name, number), "a text", type(item).__name__, "Give strings.")
        lines += [line.removesuffix("\r") for line in item.split("\n")]
    return Lines(name, tuple(lines))


def _expect_window(tokens: int, context: int, name: str, got: str) -> None:
    if tokens <= context:
        hint = "Give a longer text, a validation text of its own (" + setting("valid_text") + "), or a smaller "
        hint += setting("context") + "."
        expected = f"more than {context:,} tokens, one window of the context"
        raise DataError(name, expected, got, hint)
