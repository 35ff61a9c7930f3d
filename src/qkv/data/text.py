"""A whole file as one text, and windows of it."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from qkv.data.choices import WindowOrder
from qkv.data.corpus import Lines, read_lines, silent
from qkv.data.hints import pairs_message, text_messages
from qkv.data.odd_lines import without_odd_lines
from qkv.data.report import expect_some_left, refused
from qkv.errors import ConfigError, DataError, Place, setting


def read_text(path: Path | Lines, *, say: Callable[[str], None] = silent) -> str:
    r"""Read a file as one text: its lines, each followed by a newline, including the last one.

    Args:
        path: the file; `.gz` is unpacked.
        say: called with a message if lines are damaged, or seem to be pairs.

    Returns:
        The text.

    Raises:
        DataError: the file cannot be read, is empty, or is not UTF-8 text; the message gives file and line.

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
        expect_some_left()
        raise DataError(Place(path), "text", "empty lines only", "Check how the file was made.")
    kept = [number for number, line in enumerate(lines, start=1) if not refused(number, path)]
    written = [number for number in kept if lines[number - 1].strip()]
    texts = [lines[number - 1] for number in written]
    dropped = set(written).difference(without_odd_lines(str(path), written, written, texts, repeats=False))
    for message in (pairs_message(lines), *text_messages(range(1, len(lines) + 1), lines)):
        if message is not None:
            say(f"{path}: {message}")
    return "".join(f"{lines[number - 1]}\n" for number in kept if number not in dropped)


def divide(text: str, share: float) -> tuple[str, str]:
    """Split a text and hold out its end.

    Args:
        text: any text.
        share: the fraction that is held out, in (0, 1).

    Returns:
        The training part and the validation part.

    Raises:
        ConfigError: the fraction is outside its range.

    Example:
        >>> divide("abcdefghij", 0.1)
        ('abcdefghi', 'j')
    """
    if not 0 < share < 1:
        hint = "A tenth (0.1) suits most texts."
        raise ConfigError("holdout", "a fraction above 0 and below 1", f"{share}", hint)
    index = int(len(text) * (1 - share))
    return text[:index], text[index:]


def windows(length: int, context: int, order: WindowOrder, seed: int, epoch: int) -> list[int]:
    """Return where the windows of one epoch begin: adjacent, so that no token is predicted twice in an epoch.

    In random order windows are shuffled, and their offset changes with each epoch, so that no token always has the same
    context. The result depends only on the arguments: resuming within an epoch takes its number.

    Args:
        length: tokens in the text.
        context: tokens that a window predicts; it reads as many, starting one token earlier.
        order: "random", or "sequential" for text order.
        seed: random seed.
        epoch: from 0.

    Returns:
        The index of the first token of each window; it ends `context` tokens later, with the last one predicted.

    Raises:
        DataError: the text is shorter than one window.

    Example:
        >>> windows(20, 4, "sequential", seed=0, epoch=0), windows(20, 4, "random", seed=0, epoch=0)
        ([0, 4, 8, 12], [3, 7, 15, 11])
    """
    random = Random(f"windows:{seed}:{epoch}")
    shift = window_shift(length, context, order, random)
    starts = list(range(shift, length - context, context))
    if order == "random":
        random.shuffle(starts)
    return starts


def window_shift(length: int, context: int, order: WindowOrder, random: Random) -> int:
    """Return where the first window of an epoch begins.

    Args:
        length: tokens in the text.
        context: tokens that a window predicts.
        order: 0 for "sequential"; "random" draws it.
        random: draws it.

    Raises:
        DataError: the text is shorter than one window.

    Example:
        >>> window_shift(20, 4, "sequential", Random(0))
        0
    """
    last_start = length - 1 - context
    if last_start < 0:
        hint = "Give a longer text, or a smaller context (" + setting("context") + ")."
        expected = f"more than {context:,} tokens, one window of the context"
        raise DataError("text", expected, f"{length:,}", hint)
    return 0 if order == "sequential" else random.randrange(min(context, last_start + 1))
