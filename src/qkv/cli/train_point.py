"""`qkv train point`: from lines of elements and positions to a trained pointer network."""

from pathlib import Path
from typing import Annotated, Any

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow

_FLAGS: dict[str, Any] = {
    "source": Annotated[Path | None, f.option("Elements separated by spaces, one line per example (.gz too).", f.DATA)],
    "target": Annotated[Path | None, f.option("Positions of elements, from 1, line by line.", f.DATA)],
    "data": Annotated[Path | None, f.option("Or one file with elements<TAB>positions on each line.", f.DATA)],
    "valid_source": Annotated[Path | None, f.option("Elements to validate on; held out if not given.", f.DATA)],
    "valid_target": Annotated[Path | None, f.option("Their positions.", f.DATA)],
    "valid_data": Annotated[Path | None, f.option("Or one file with elements<TAB>positions.", f.DATA)],
    "out": f.Out,
    "elements": Annotated[
        str | None, f.option("numbers (or vectors as 0.3,0.7) or words; default: as in the first line.", f.DATA)
    ],
    "order": Annotated[
        str | None,
        f.option("What makes an answer exact: the same sequence (default), cycle (corners) or set.", f.DATA),
    ],
    "model": Annotated[
        str | None,
        f.option("The encoder: transformer (default), lstm, gru or rnn; these are the decoder too.", f.MODEL),
    ],
    "decoder": Annotated[str | None, f.option("The decoder: gru (default), lstm or rnn.", f.MODEL)],
    "score": Annotated[
        str | None,
        f.option("additive (default), bilinear, dot, scaled-dot, cosine or gaussian (learned bandwidth).", f.ATTENTION),
    ],
    "once": Annotated[
        bool | None, f.option("Whether each element is pointed at at most once (yes).", f.MODEL, "--once/--repeats")
    ],
    "width": Annotated[int | None, f.option("Width of states (64).", f.MODEL)],
    "layers": Annotated[int | None, f.option("Layers of the encoder (3; recurrent: 1).", f.MODEL)],
    "heads": Annotated[int | None, f.option("Heads of the transformer's attentions (4).", f.MODEL)],
    "dropout": Annotated[float | None, f.option("Dropout in training (0).", f.MODEL)],
    "vocabulary": Annotated[int | None, f.option("Maximum number of words (30000).", f.DATA)],
    "steps": Annotated[int | None, f.option("Number of training steps (5000).", f.TRAINING)],
    "epochs": f.Epochs,
    "batch_tokens": Annotated[int | None, f.option("Elements per batch (2048).", f.TRAINING)],
    "batch_size": Annotated[int | None, f.option("Lines per batch, in place of --batch-tokens.", f.TRAINING)],
    "learning_rate": Annotated[float | None, f.option("Peak learning rate (0.002).", f.TRAINING)],
    "patience": Annotated[
        int | None, f.option("End after this many validations without improvement; 0 for never (0).", f.TRAINING)
    ],
    "seed": f.Seed,
}


@guarded
@f.trains(_FLAGS, reads_text=False)
def train_point(**given: Any) -> None:
    """Train a pointer network: sorting, convex hulls, spans, and whatever else selects elements of its input.

    Example: qkv train point --data sort.tsv --out runs/sort
    """
    from qkv.tasks.point_training import RECIPE

    follow(RECIPE, given)
