"""The run named `example`: a small German-English translator that comes with the package, to try without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import brief
from qkv.system import stdin_is_terminal
from qkv.tasks.notes import note

if TYPE_CHECKING:
    from qkv.data.tokenizer import Tokenizer


NAME = "example"
FOLDER = Path(__file__).parent / NAME
"""One checkpoint, trained by `python -m results.example_run` on sentences of `qkv.data.phrases`."""
SENTENCES = (
    "Die alte Frau hat einen kleinen Hund gesehen .",
    "Heute will mein Bruder den roten Ball suchen .",
    "Wir wissen , dass die Katze vor der Tür schläft .",
)
"""What the model can read; it knows the words of the grammar alone."""
_LIMITS_OF_EXAMPLE = (
    f"""qkv: the example model knows 270 German words, in whole sentences with a period, such as "{SENTENCES[0]}"; """
)


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


def outside_grammar(lines: Sequence[str], first: int, tokenizer: "Tokenizer") -> str | None:
    """Return a message about the first line that the model cannot read, if there is one.

    Args:
        lines: sentences to translate.
        first: the number of the first.
        tokenizer: that of the model.

    Returns:
        One sentence about the first line that is not in the grammar; None if all are, or are empty.

    Example:
        >>> import qkv
        >>> tokenizer = qkv.load("example").tokenizer
        >>> print(outside_grammar(["Der Hund schläft .", "Der Hund ."], 1, tokenizer))
        qkv: the example model knows 270 German words, ...; line 2 lacks a verb: do not expect a translation.
    """
    for number, line in enumerate(lines, first):
        reason = _reason(" ".join(line.replace(".", " .").replace(",", " , ").split()), tokenizer)
        if reason is not None:
            return f"{_LIMITS_OF_EXAMPLE}line {number} {reason}: do not expect a translation."
    return None


def report_outside_grammar(lines: Sequence[str], first: int, tokenizer: "Tokenizer") -> bool:
    """Report what `outside_grammar` says, and return whether it says anything."""
    message = outside_grammar(lines, first, tokenizer)
    if message is not None:
        note(message)
    return message is not None


def _reason(sentence: str, tokenizer: "Tokenizer") -> str | None:
    from qkv.data.phrases import verbs

    words = sentence.split()
    unknown = [word for word in dict.fromkeys(words) if tokenizer.unk in tokenizer.encode(word)]
    if not words:
        return None
    if unknown:
        word_list = ", ".join(f'"{brief(word)}"' for word in unknown[:3])
        return f"has other words ({word_list}{', …' if unknown[3:] else ''})"
    if words[-1] != ".":
        return "does not end in a period"
    if not words[0][0].isupper():
        return "does not begin with a capital"
    return None if not verbs().isdisjoint(words) else "lacks a verb"


def sentences(runs: Sequence[Path]) -> tuple[str, ...]:
    """Return the sentences of the example if it is used alone at a terminal, where no text is piped in; otherwise none.

    Example:
        >>> sentences([Path("runs/de-en")])
        ()
    """
    return SENTENCES if stdin_is_terminal() and all(map(is_example, runs)) else ()
