"""The run named `example`: a small German-English translator in the package, so that there is something to look at."""

import sys
from collections.abc import Sequence
from pathlib import Path

NAME = "example"
FOLDER = Path(__file__).parent / NAME
"""One checkpoint, trained by `python -m results.example_run` on sentences of `qkv.data.phrases`."""
SENTENCES = (
    "Die alte Frau hat einen kleinen Hund gesehen .",
    "Heute will mein Bruder den roten Ball suchen .",
    "Wir wissen , dass die Katze vor der Tür schläft .",
)
"""What the model can read; it knows the words of the grammar alone."""


def is_example(run: Path) -> bool:
    """Return whether a run is the one in the package: it is named so, and no folder of that name exists.

    Example:
        >>> is_example(Path("example")), is_example(Path("runs/example"))
        (True, False)
    """
    return str(run) == NAME and not run.exists()


def packaged(run: Path) -> Path:
    """Return the folder of a run: the one in the package for `example`, otherwise the run itself.

    Example:
        >>> packaged(Path("example")).name, packaged(Path("runs/de-en"))
        ('example', PosixPath('runs/de-en'))
    """
    return FOLDER if is_example(run) else run


def sentences(runs: Sequence[Path]) -> tuple[str, ...]:
    """Return what to translate if nobody says: with the example alone, at a terminal, its sentences; otherwise nothing.

    Example:
        >>> sentences([Path("runs/de-en")])
        ()
    """
    typed = sys.stdin is not None and sys.stdin.isatty()
    return SENTENCES if typed and all(map(is_example, runs)) else ()
