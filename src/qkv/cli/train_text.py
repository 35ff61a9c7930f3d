"""`qkv train generate`: from a text file to a trained language model."""

from pathlib import Path
from typing import Annotated, Any

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow

_FLAGS: dict[str, Any] = {
    "text": Annotated[Path | None, f.option("A file of plain text (.gz too).", f.DATA)],
    "valid_text": Annotated[
        Path | None, f.option("Another file for validation; default: the end is held out.", f.DATA)
    ],
    "holdout": Annotated[float | None, f.option("The part of the text, at its end, that is held out (0.1).", f.DATA)],
    "tokenizer": Annotated[
        str | None,
        f.option("char (default), word, bpe, unigram or none (split at spaces).", f.DATA, "--tokenizer", "--tokens"),
    ],
    "vocabulary": f.Vocabulary,
    "unicode": f.Unicode,
    "lowercase": f.Lowercase,
    "out": f.Out,
    "model": Annotated[str | None, f.option("transformer (default), gru, lstm or rnn.", f.MODEL)],
    "layers": Annotated[int | None, f.option("Layers (transformer 4, others 1).", f.MODEL)],
    "width": Annotated[int | None, f.option("Width of the model (transformer 192, others 256).", f.MODEL)],
    "context": Annotated[int | None, f.option("Context length in tokens (256).", f.MODEL)],
    "positions": Annotated[
        str | None,
        f.option(
            "rotary (default for products and distances), sinusoidal (default for others), learned, alibi, relative or "
            "none.",
            f.MODEL,
        ),
    ],
    "dropout": f.Dropout,
    **f.SCORES,
    **f.PARTS,
    "key_heads": Annotated[int | None, f.option("Heads of keys and values, shared by groups of heads.", f.ATTENTION)],
    "window": Annotated[
        int | None, f.option("Number of earlier positions that attention sees; default: all.", f.ATTENTION)
    ],
    **f.LOOP,
}


@guarded
@f.trains(_FLAGS)
def train_generate(**given: Any) -> None:
    """Train a language model on a text file; it learns to continue any text.

    Example: qkv train generate --text plays.txt --out runs/plays
    """
    from qkv.tasks.language_training import RECIPE

    follow(RECIPE, given)
