"""`qkv train classify` and `qkv train tag`: from labeled files to a trained model."""

from pathlib import Path
from typing import Annotated

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow

_Data = Annotated[Path | None, f.option("label<TAB>text on each line (.gz too).", f.DATA)]
_Columns = Annotated[Path | None, f.option("Words in columns, word first, tag last; .gz too.", f.DATA)]
_Valid = Annotated[Path | None, f.option("The same for validation; default: a tenth is held out.", f.DATA)]
_Longest = Annotated[int | None, f.option("Maximum tokens per text (512).", f.DATA)]
_Model = Annotated[str | None, f.option("gru (default), lstm, rnn, transformer or none.", f.MODEL)]
_Layers = Annotated[int | None, f.option("Layers of the encoder (1).", f.MODEL)]
_Positions = Annotated[
    str | None, f.option("sinusoidal (default), rotary, alibi, relative or none (transformer).", f.MODEL)
]
_Pool = Annotated[str | None, f.option("How words become one vector: attention (default) or mean.", f.MODEL)]
_ENCODER = {"model": "model.encoder"}


@guarded
def train_classify(
    data: _Data = None,
    valid_data: _Valid = None,
    tokenizer: f.Tokenizer = None,
    vocabulary: f.Vocabulary = None,
    lowercase: f.Lowercase = None,
    longest: _Longest = None,
    out: f.Out = None,
    model: _Model = None,
    layers: _Layers = None,
    width: f.Width = None,
    positions: _Positions = None,
    pool: _Pool = None,
    dropout: f.Dropout = None,
    score: f.Score = None,
    normalizer: f.Normalizer = None,
    alpha: f.Alpha = None,
    sinks: f.Sinks = None,
    bandwidth: f.Bandwidth = None,
    power: f.Power = None,
    heads: f.Heads = None,
    window: f.Window = None,
    steps: f.Steps = None,
    epochs: f.Epochs = None,
    batch_tokens: f.BatchTokens = None,
    batch_size: f.BatchSize = None,
    learning_rate: f.Rate = None,
    label_smoothing: f.Smoothing = None,
    patience: f.Patience = None,
    precision: f.Precision = None,
    seed: f.Seed = None,
    device: f.Device = "cpu",
    config: f.Config = None,
    start: f.From = None,
    tokenizer_from: f.TokenizerFrom = None,
    tensorboard: f.Tensorboard = False,
    print_config: f.PrintConfig = False,
) -> None:
    """Train a model that labels texts and shows which words decided.

    --score and the other flags of attention set the pooling, and the self-attentions of --model transformer.

    Example: qkv train classify --data films.tsv --out runs/films
    """
    given = dict(locals())
    from qkv.tasks.label_training import CLASSIFY

    follow(CLASSIFY, given, _ENCODER)


@guarded
def train_tag(
    data: _Columns = None,
    valid_data: _Valid = None,
    tokenizer: f.Tokenizer = None,
    vocabulary: f.Vocabulary = None,
    lowercase: f.Lowercase = None,
    longest: _Longest = None,
    out: f.Out = None,
    model: _Model = None,
    layers: _Layers = None,
    width: f.Width = None,
    positions: _Positions = None,
    dropout: f.Dropout = None,
    score: f.Score = None,
    normalizer: f.Normalizer = None,
    alpha: f.Alpha = None,
    sinks: f.Sinks = None,
    bandwidth: f.Bandwidth = None,
    power: f.Power = None,
    heads: f.Heads = None,
    window: f.Window = None,
    steps: f.Steps = None,
    epochs: f.Epochs = None,
    batch_tokens: f.BatchTokens = None,
    batch_size: f.BatchSize = None,
    learning_rate: f.Rate = None,
    label_smoothing: f.Smoothing = None,
    patience: f.Patience = None,
    precision: f.Precision = None,
    seed: f.Seed = None,
    device: f.Device = "cpu",
    config: f.Config = None,
    start: f.From = None,
    tokenizer_from: f.TokenizerFrom = None,
    tensorboard: f.Tensorboard = False,
    print_config: f.PrintConfig = False,
) -> None:
    """Train a model that tags words.

    --score and the other flags of attention set the self-attentions of --model transformer.

    Example: qkv train tag --data train.conll --out runs/names
    """
    given = dict(locals())
    from qkv.tasks.label_training import TAG

    follow(TAG, given, _ENCODER)
