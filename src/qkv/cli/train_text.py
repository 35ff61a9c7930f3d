"""`qkv train generate`: from a text file to a trained language model."""

from pathlib import Path
from typing import Annotated

from qkv.cli import flags as f
from qkv.cli.failure import guarded
from qkv.cli.training import follow


@guarded
def train_generate(
    text: Annotated[Path | None, f.option("A file of plain text (.gz too).", f.DATA)] = None,
    valid_text: Annotated[
        Path | None, f.option("Another file for validation; default: the end is held out.", f.DATA)
    ] = None,
    tokenizer: Annotated[
        str | None,
        f.option("char (default), word, bpe or none (split at spaces).", f.DATA, "--tokenizer", "--tokens"),
    ] = None,
    vocabulary: f.Vocabulary = None,
    lowercase: f.Lowercase = None,
    out: f.Out = None,
    model: Annotated[str | None, f.option("transformer (default), gru, lstm or rnn.", f.MODEL)] = None,
    layers: Annotated[int | None, f.option("Layers (transformer 4, others 1).", f.MODEL)] = None,
    width: Annotated[int | None, f.option("Width of the model (transformer 192, others 256).", f.MODEL)] = None,
    context: Annotated[int | None, f.option("Context length in tokens (256).", f.MODEL)] = None,
    positions: Annotated[
        str | None,
        f.option(
            "rotary (default for products and distances), sinusoidal (default for others), learned, alibi, relative or "
            "none.",
            f.MODEL,
        ),
    ] = None,
    dropout: f.Dropout = None,
    score: f.Score = None,
    normalizer: f.Normalizer = None,
    alpha: f.Alpha = None,
    sinks: f.Sinks = None,
    bandwidth: f.Bandwidth = None,
    power: f.Power = None,
    heads: f.Heads = None,
    key_heads: Annotated[
        int | None, f.option("Heads of keys and values, shared by groups of heads.", f.ATTENTION)
    ] = None,
    window: Annotated[
        int | None, f.option("Number of earlier positions that attention sees; default: all.", f.ATTENTION)
    ] = None,
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
    """Train a language model on a text file; it learns to continue any text.

    Example: qkv train generate --text plays.txt --out runs/plays
    """
    given = dict(locals())
    from qkv.tasks.language_training import RECIPE

    follow(RECIPE, given, {"model": "model.kind"})
