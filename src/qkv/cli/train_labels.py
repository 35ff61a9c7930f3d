"""`qkv train classify` and `qkv train tag`: from labeled files to a trained model."""

from pathlib import Path
from typing import Annotated, Any

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow

_Data = Annotated[Path | None, f.option("label<TAB>text on each line (.gz too).", f.DATA)]
_Columns = Annotated[Path | None, f.option("Words in columns, word first, tag last; .gz too.", f.DATA)]
_Pool = Annotated[str | None, f.option("How words become one vector: attention (default) or mean.", f.MODEL)]
_ENCODER: dict[str, Any] = {
    "valid_data": Annotated[Path | None, f.option("The same for validation; default: a tenth is held out.", f.DATA)],
    **f.WORDS,
    "longest": Annotated[int | None, f.option("Maximum tokens per text (512).", f.DATA)],
    "out": f.Out,
    "model": Annotated[str | None, f.option("gru (default), lstm, rnn, transformer or none.", f.MODEL)],
    "layers": Annotated[int | None, f.option("Layers of the encoder (1).", f.MODEL)],
    "width": f.Width,
    "positions": Annotated[
        str | None, f.option("sinusoidal (default), rotary, alibi, relative or none (transformer).", f.MODEL)
    ],
}
_REST = {"dropout": f.Dropout, **f.SCORES, **f.PARTS, "window": f.Window, **f.LOOP}


@guarded
@f.trains({"data": _Data, **_ENCODER, "pool": _Pool, **_REST})
def train_classify(**given: Any) -> None:
    """Train a model that labels texts and shows which words decided.

    --score and the other flags of attention set the pooling, and the self-attentions of --model transformer.

    Example: qkv train classify --data films.tsv --out runs/films
    """
    from qkv.tasks.label_training import CLASSIFY

    follow(CLASSIFY, given)


@guarded
@f.trains({"data": _Columns, **_ENCODER, **_REST})
def train_tag(**given: Any) -> None:
    """Train a model that tags words.

    --score and the other flags of attention set the self-attentions of --model transformer.

    Example: qkv train tag --data train.conll --out runs/names
    """
    from qkv.tasks.label_training import TAG

    follow(TAG, given)
