"""`qkv train translate`: from parallel text to a trained model."""

from pathlib import Path
from typing import Annotated

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow
from qkv.errors import ConfigError, error_message

_Path = Path | None


@guarded
def train_translate(
    source: Annotated[_Path, f.option("Source sentences, one per line (.gz too).", f.DATA)] = None,
    target: Annotated[_Path, f.option("Their translations, line by line.", f.DATA)] = None,
    data: Annotated[_Path, f.option("Or one file with source<TAB>target on each line.", f.DATA)] = None,
    valid_source: Annotated[_Path, f.option("Sources to validate on; held out if not given.", f.DATA)] = None,
    valid_target: Annotated[_Path, f.option("Their translations.", f.DATA)] = None,
    valid_data: Annotated[_Path, f.option("Or one file with source<TAB>target.", f.DATA)] = None,
    source_col: f.SourceColumn = None,
    target_col: f.TargetColumn = None,
    features_col: f.FeaturesColumn = None,
    source_sep: f.SourceSeparator = None,
    target_sep: f.TargetSeparator = None,
    features_sep: f.FeaturesSeparator = None,
    tokenizer: f.Tokenizer = None,
    vocabulary: f.Vocabulary = None,
    lowercase: f.Lowercase = None,
    longest: Annotated[int | None, f.option("Maximum tokens per line (256).", f.DATA)] = None,
    out: f.Out = None,
    model: Annotated[str | None, f.option("transformer (default), gru, lstm or rnn.", f.MODEL)] = None,
    encoder: Annotated[str | None, f.option("The encoder alone, if it is of another kind.", f.MODEL)] = None,
    decoder: Annotated[str | None, f.option("The decoder alone, in place of --model.", f.MODEL)] = None,
    encoder_layers: Annotated[int | None, f.option("Layers of the encoder (transformer 3, others 1).", f.MODEL)] = None,
    decoder_layers: Annotated[int | None, f.option("Layers of the decoder (transformer 3, others 1).", f.MODEL)] = None,
    width: Annotated[int | None, f.option("Width of the states (transformer 256, others 512).", f.MODEL)] = None,
    positions: Annotated[str | None, f.option("sinusoidal (default) or none (transformer).", f.MODEL)] = None,
    memory: Annotated[
        str | None, f.option("Encoder states are keys and values: whole (default) or split in two.", f.MODEL)
    ] = None,
    wiring: Annotated[
        str | None, f.option("Recurrent decoders attend before a step, bahdanau (default), or after, luong.", f.MODEL)
    ] = None,
    copy: Annotated[
        str | None, f.option("Also copy words from the source: mixture, joint, or none (default).", f.MODEL)
    ] = None,
    alignment: Annotated[
        str | None,
        f.option("soft (default), or for recurrent models hard: monotonic-0 or monotonic-1 (its order).", f.MODEL),
    ] = None,
    dropout: f.Dropout = None,
    score: f.Score = None,
    normalizer: f.Normalizer = None,
    cross_score: Annotated[
        str | None, f.option("Of the attention to the source alone; --score sets all of a Transformer's.", f.ATTENTION)
    ] = None,
    cross_normalizer: Annotated[str | None, f.option("Of the attention to the source alone.", f.ATTENTION)] = None,
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
    ensemble: Annotated[
        int | None, f.option("Number of models, with one seed each, that translate together (1).", f.TRAINING)
    ] = None,
    both_directions: Annotated[
        bool | None,
        f.option("With --ensemble: half of the models write right to left.", f.TRAINING, "--both-directions"),
    ] = None,
    device: f.Device = "cpu",
    config: f.Config = None,
    start: f.From = None,
    tokenizer_from: f.TokenizerFrom = None,
    tensorboard: f.Tensorboard = False,
    print_config: f.PrintConfig = False,
) -> None:
    """Train a translation model from two parallel files, or one TSV file.

    This one command builds the vocabulary, trains the model, and selects the best checkpoint.

    Example: qkv train translate --source train.de --target train.en --out runs/de-en
    """
    given = dict(locals())
    from qkv.tasks.ensembles import RECIPE

    if model is not None and decoder is not None:
        hint = "--model sets the kind of both sides, --encoder and --decoder that of one."
        raise ConfigError(error_message("--decoder", "no --model beside it", "both", hint))
    several = {"ensemble": "ensemble.models", "both_directions": "ensemble.both_directions"}
    follow(RECIPE, given, {"model": "model.kind", "decoder": "model.kind", **several})
