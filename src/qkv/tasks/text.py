"""Plain text for a language model: which file, which part to validate on, which tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.data.fingerprints import fingerprint
from qkv.data.text import Order, divide, read_text, windows
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, error_message
from qkv.tasks.parallel import Words


@dataclass(frozen=True)
class TextFiles:
    """Where the text is.

    Args:
        text: a file of plain text.
        valid_text: another one to validate on; without it the end of the first is held out.
        holdout: the share that is held out.
        order: of the windows that an epoch trains on.
    """

    text: Path | None = None
    valid_text: Path | None = None
    holdout: float = 0.1
    order: Order = "random"


class Passage(NamedTuple):
    """A text as tokens.

    Attributes:
        ids: (N,), int64.
        characters: how many characters the tokens after the first one stand for.
        unknown: how many tokens the vocabulary does not have.
    """

    ids: Tensor
    characters: int
    unknown: int


class Text(NamedTuple):
    """Text ready for training.

    Attributes:
        tokenizer: learnt from the part to train on.
        train, valid: the two parts.
        fingerprints: sha256 of each part.
    """

    tokenizer: Tokenizer
    train: Passage
    valid: Passage
    fingerprints: dict[str, str]


def read_for_training(files: TextFiles, words: Words, context: int, tokenizer: Tokenizer | None = None) -> Text:
    """Read and tokenize the text to train and validate on.

    Args:
        files: where it is.
        words: how to tokenize.
        context: tokens of a window; both parts hold at least one.
        tokenizer: one that was learnt before, to go on with; None to learn it.

    Returns:
        The text, ready.

    Raises:
        DataError: a file cannot be used, or is too short.
        ConfigError: no file is named.
    """
    if files.text is None:
        hint = "Any plain text in UTF-8; .gz too."
        raise ConfigError(error_message("--text", "a file of plain text", "none", hint))
    whole = read_text(files.text)
    if files.valid_text is None:
        train, valid = divide(whole, files.holdout)
    else:
        train, valid = whole, read_text(files.valid_text)
    if tokenizer is None:
        tokenizer = Tokenizer.learn([train], words.kind, words.size, lowercase=words.lowercase, minimum=words.minimum)
    for part in (learnt := passage(train, tokenizer)), (held := passage(valid, tokenizer)):
        windows(len(part.ids), context, "sequential", 0, 0)
    return Text(tokenizer, learnt, held, {"train": fingerprint([train]), "valid": fingerprint([valid])})


def passage(text: str, tokenizer: Tokenizer) -> Passage:
    """Turn a text into tokens.

    Example:
        >>> passage("abca", Tokenizer.learn(["abc"], "char"))
        Passage(ids=tensor([4, 5, 6, 4]), characters=3, unknown=0)
    """
    ids = tokenizer.encode(text)
    found = torch.tensor(ids, dtype=torch.int64)
    characters = len(text) - len(tokenizer.decode(ids[:1]))
    return Passage(found, characters, int((found == tokenizer.unk).sum()))
