"""Plain text for a language model: training file, validation part, tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.fingerprints import fingerprint
from qkv.data.text import Order, divide, read_text
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, setting
from qkv.tasks.parallel import TokenizerSettings


@dataclass(frozen=True)
class TextFiles:
    """Files with plain text.

    Args:
        text: training file.
        valid_text: validation file; without it the end of the training file is held out.
        holdout: the fraction that is held out.
        order: order of an epoch's windows.
    """

    text: Path | None = None
    valid_text: Path | None = None
    holdout: float = 0.1
    order: Order = "random"


class Passage(NamedTuple):
    """A text as tokens.

    Attributes:
        ids: (N,), int64.
        characters: number of characters in all tokens but the first.
        unknown: number of unknown tokens.
    """

    ids: Tensor
    characters: int
    unknown: int


class TrainingText(NamedTuple):
    """Text ready for training.

    Attributes:
        tokenizer: built from the training part.
        train, valid: the two parts.
        fingerprints: sha256 of each part.
    """

    tokenizer: Tokenizer
    train: Passage
    valid: Passage
    fingerprints: dict[str, str]


def read_for_training(
    files: TextFiles, words: TokenizerSettings, context: int, tokenizer: Tokenizer | None = None
) -> TrainingText:
    """Read and tokenize the training and validation text.

    Args:
        files: the files.
        words: tokenizer settings.
        context: tokens per window; both parts must have at least one window.
        tokenizer: an existing tokenizer; None to train one.

    Returns:
        The text, ready for training.

    Raises:
        DataError: a file is invalid or too short.
        ConfigError: no file is given.
    """
    if files.text is None:
        hint = "Any plain text in UTF-8; .gz too."
        raise ConfigError(setting("text"), "a file of plain text", "none", hint)
    whole = read_text(files.text)
    if files.valid_text is None:
        train, valid = divide(whole, files.holdout)
    else:
        train, valid = whole, read_text(files.valid_text)
    if tokenizer is None:
        tokenizer = words.learn([train])
    learned, held = passage(train, tokenizer), passage(valid, tokenizer)
    _expect_window(learned, context, str(files.text), f"{len(learned.ids):,}")
    total = f"{len(held.ids):,}"
    if files.valid_text is None:
        total = f"{len(held.ids):,} of {len(learned.ids) + len(held.ids):,}, the end of the text (--holdout)"
    _expect_window(held, context, "the validation text", total)
    return TrainingText(tokenizer, learned, held, {"train": fingerprint([train]), "valid": fingerprint([valid])})


def passage(text: str, tokenizer: Tokenizer) -> Passage:
    """Tokenize a text.

    Example:
        >>> passage("abca", Tokenizer.learn(["abc"], "char"))
        Passage(ids=tensor([4, 5, 6, 4]), characters=3, unknown=0)
    """
    ids = tokenizer.encode(text)
    found = torch.tensor(ids, dtype=torch.int64)
    characters = len(text) - len(tokenizer.decode(ids[:1]))
    return Passage(found, characters, int((found == tokenizer.unk).sum()))


def _expect_window(part: Passage, context: int, name: str, got: str) -> None:
    if len(part.ids) <= context:
        hint = (
            f"Give a longer text, a validation text of its own ({setting('valid_text')}), or a smaller "
            f"{setting('context')}."
        )
        expected = f"more than {context:,} tokens, one window of the context"
        raise DataError(name, expected, got, hint)
