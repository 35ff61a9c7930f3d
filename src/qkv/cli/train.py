"""`qkv train translate`: from parallel text to a trained model."""

from pathlib import Path
from typing import Annotated, Any

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow
from qkv.errors import ConfigError

_Path = Path | None

_FLAGS: dict[str, Any] = {
    "source": Annotated[_Path, f.option("Source sentences, one per line (.gz too).", f.DATA)],
    "target": Annotated[_Path, f.option("Their translations, line by line.", f.DATA)],
    "data": Annotated[_Path, f.option("Or one file with source<TAB>target on each line.", f.DATA)],
    "valid_source": Annotated[_Path, f.option("Sources to validate on; held out if not given.", f.DATA)],
    "valid_target": Annotated[_Path, f.option("Their translations.", f.DATA)],
    "valid_data": Annotated[_Path, f.option("Or one file with source<TAB>target.", f.DATA)],
    "holdout": Annotated[int | None, f.option("Pairs to hold out (a twentieth, at most 1,000).", f.DATA)],
    "source_col": f.SourceColumn,
    "target_col": f.TargetColumn,
    "features_col": f.FeaturesColumn,
    "source_sep": f.SourceSeparator,
    "target_sep": f.TargetSeparator,
    "features_sep": f.FeaturesSeparator,
    "features": f.Features,
    "tokenizer": f.Tokenizer,
    "source_tokenizer": f.SourceTokenizer,
    "target_tokenizer": f.TargetTokenizer,
    "vocabulary": f.Vocabulary,
    "unicode": f.Unicode,
    "lowercase": f.Lowercase,
    "longest": Annotated[int | None, f.option("Maximum tokens per line (256).", f.DATA)],
    "out": f.Out,
    "model": Annotated[str | None, f.option("transformer (default), gru, lstm or rnn.", f.MODEL)],
    "encoder": Annotated[str | None, f.option("The encoder alone, if it is of another kind.", f.MODEL)],
    "decoder": Annotated[str | None, f.option("The decoder alone, in place of --model.", f.MODEL)],
    "encoder_layers": Annotated[int | None, f.option("Layers of the encoder (transformer 3, others 1).", f.MODEL)],
    "decoder_layers": Annotated[int | None, f.option("Layers of the decoder (transformer 3, others 1).", f.MODEL)],
    "width": Annotated[int | None, f.option("Width of the states (transformer 256, others 512).", f.MODEL)],
    "positions": Annotated[
        str | None, f.option("sinusoidal (default), rotary, alibi, relative or none (transformer).", f.MODEL)
    ],
    "memory": Annotated[
        str | None, f.option("Encoder states are keys and values: whole (default) or split in two.", f.MODEL)
    ],
    "wiring": Annotated[
        str | None,
        f.option("Recurrent decoders attend before a step, bahdanau (default), or after, luong.", f.MODEL),
    ],
    "copy": Annotated[
        str | None, f.option("Also copy words from the source: mixture, joint, or none (default).", f.MODEL)
    ],
    "alignment": Annotated[
        str | None,
        f.option("soft (default), or for recurrent models hard: monotonic-0 or monotonic-1 (its order).", f.MODEL),
    ],
    "dropout": f.Dropout,
    **f.SCORES,
    "cross_score": Annotated[
        str | None,
        f.option("Of the attention to the source alone; --score sets all of a Transformer's.", f.ATTENTION),
    ],
    "cross_normalizer": Annotated[str | None, f.option("Of the attention to the source alone.", f.ATTENTION)],
    "encoder_score": Annotated[
        str | None, f.option("Of a Transformer encoder before a recurrent decoder (scaled-dot).", f.ATTENTION)
    ],
    "encoder_normalizer": Annotated[str | None, f.option("Of the same encoder.", f.ATTENTION)],
    "encoder_heads": Annotated[int | None, f.option("Heads of the same encoder (4).", f.ATTENTION)],
    **f.PARTS,
    "window": f.Window,
    **f.LOOP,
    "ensemble": Annotated[
        int | None, f.option("Number of models, with one seed each, that translate together (1).", f.TRAINING)
    ],
    "both_directions": Annotated[
        bool | None,
        f.option("With --ensemble: half of the models write right to left.", f.TRAINING, "--both-directions"),
    ],
}


@guarded
@f.trains(_FLAGS)
def train_translate(**given: Any) -> None:
    """Train a translation model from two parallel files, or one TSV file.

    This one command builds the vocabulary, trains the model, and selects the best checkpoint.

    Example: qkv train translate --source train.de --target train.en --out runs/de-en
    """
    from qkv.tasks.ensembles import RECIPE

    if given["model"] is not None and given["decoder"] is not None:
        hint = "--model sets the kind of both sides, --encoder and --decoder that of one."
        raise ConfigError("--decoder", "no --model beside it", "both", hint)
    follow(RECIPE, given)
