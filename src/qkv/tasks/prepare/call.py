"""`qkv.prepare`: preparing a corpus from Python, with the settings of its command."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.tasks.notes import Verbosity, use_verbosity
from qkv.tasks.prepare.preparing import Preparation, Prepared
from qkv.tasks.prepare.settings import PREPARE
from qkv.tasks.settings import parameters
from qkv.tasks.train import named_as_given


def prepare(
    files: str | Path | Sequence[str | Path] = (),
    *,
    out: str | Path,
    tokenizer_from: str | Path | None = None,
    processes: int = 1,
    quiet: bool = False,
    **settings: Any,
) -> Prepared:
    """Prepare a corpus for trainings that read it from disk, or continue where an earlier call was stopped.

    Args:
        files: text files, or files of pairs; none if `source` and `target` are given.
        out: the folder of the corpus, for `qkv.train("generate", prepared=...)` or "translate".
        tokenizer_from: a run whose tokenizer is used; None to learn one.
        processes: how many tokenize; any number gives the same bytes.
        quiet: whether to show no progress on standard error.
        settings: the flags of `qkv prepare`.

    Returns:
        The corpus: its folder and sha256, how many tokens and shards it has, and how many of these were made now.

    Raises:
        ConfigError: a setting is unknown (the message suggests the closest one), or its value is invalid; or the folder
            holds a corpus of other files or settings.
        DataError: a file is invalid; the message gives file and line.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     text = Path(folder, "text")
        ...     _ = text.write_text("To be, or not to be.\\n" * 50)
        ...     prepare(text, out=Path(folder, "corpus"), tokenizer="char", quiet=True).tokens
        1008
    """
    PREPARE.expect_settings(settings)
    names = [files] if isinstance(files, str | Path) else files
    with use_verbosity(Verbosity("quiet" if quiet else "normal")), named_as_given(PREPARE):
        origin = None if tokenizer_from is None else Path(tokenizer_from)
        preparation = Preparation.of([Path(name) for name in names], PREPARE.in_tables(settings), origin)
        return preparation.prepare(Path(out), processes)


_NAMED = list(inspect.signature(prepare).parameters.values())[:-1]
prepare.__signature__ = inspect.Signature([*_NAMED, *parameters([PREPARE])])  # type: ignore[attr-defined]
