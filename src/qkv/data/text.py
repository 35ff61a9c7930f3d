"""A whole file as one text, and windows of it."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

from qkv.data.corpus import read_lines
from qkv.errors import ConfigError, DataError, error_message

Order = Literal["random", "sequential"]


def read_text(path: Path) -> str:
    r"""Read a file as one text: its lines, each with a newline behind it, the last one too.

    Args:
        path: the file; `.gz` is unpacked.

    Returns:
        The text.

    Raises:
        DataError: a file that cannot be read, is empty, no UTF-8 or no text; names file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "play.txt")
        ...     _ = path.write_bytes(b"KING:\r\n\nWell?")
        ...     read_text(path)
        'KING:\n\nWell?\n'
    """
    lines = read_lines(path, blank=True)
    if not any(line.strip() for line in lines):
        raise DataError(error_message(str(path), "text", "empty lines only", "Check how the file was made."))
    return "".join(f"{line}\n" for line in lines)


def divide(text: str, share: float) -> tuple[str, str]:
    """Divide a text: its end is held out.

    Args:
        text: any.
        share: of it that is held out, in (0, 1).

    Returns:
        The part to train on, and the part to validate on.

    Raises:
        ConfigError: a share outside its range.

    Example:
        >>> divide("abcdefghij", 0.1)
        ('abcdefghi', 'j')
    """
    if not 0 < share < 1:
        hint = "A tenth (0.1) suits most texts."
        raise ConfigError(error_message("data.holdout", "a share above 0 and below 1", f"{share}", hint))
    place = int(len(text) * (1 - share))
    return text[:place], text[place:]


def windows(length: int, context: int, order: Order, seed: int, epoch: int) -> list[int]:
    """Where the windows of one epoch begin: beside each other, so that no token is predicted twice an epoch.

    In random order windows come shuffled, and begin at another place each epoch, so that no token always has the same
    ones before it. The result depends on the arguments alone: to go on in the middle of an epoch takes its number.

    Args:
        length: tokens in the text.
        context: tokens that a window predicts; it reads as many, from one token before.
        order: "random", or "sequential" as they stand in the text.
        seed: of the run.
        epoch: from 0 on.

    Returns:
        The place of the first token of each window; it ends `context` tokens later, with the last one predicted.

    Raises:
        DataError: a text shorter than one window.

    Example:
        >>> windows(20, 4, "sequential", seed=0, epoch=0), windows(20, 4, "random", seed=0, epoch=0)
        ([0, 4, 8, 12], [3, 7, 15, 11])
    """
    room = length - 1 - context
    if room < 0:
        hint = "Give a longer text, or a smaller context (--context)."
        expected = f"more than {context:,} tokens, one window of the context"
        raise DataError(error_message("text", expected, f"{length:,}", hint))
    random = Random(f"windows:{seed}:{epoch}")
    shift = 0 if order == "sequential" else random.randrange(min(context, room + 1))
    starts = list(range(shift, room + 1, context))
    if order == "random":
        random.shuffle(starts)
    return starts


def in_batches(starts: Sequence[int], rows: int) -> list[list[int]]:
    """Group windows as they come.

    Example:
        >>> in_batches([7, 1, 4], rows=2)
        [[7, 1], [4]]
    """
    return [list(starts[place : place + rows]) for place in range(0, len(starts), rows)]
