"""`qkv train`: from text files to a trained model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.failure import guarded
from qkv.cli.table import (
    FeaturesColumn,
    FeaturesSeparator,
    SourceColumn,
    SourceSeparator,
    TargetColumn,
    TargetSeparator,
    table_flags,
)
from qkv.cli.training import Given, follow


@guarded
def train_translate(
    source: Annotated[Path | None, typer.Option(help="Source sentences, one per line (.gz too).")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    data: Annotated[Path | None, typer.Option(help="Or one file with source<TAB>target on each line.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Sources to validate on; held out if not given.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    valid_data: Annotated[Path | None, typer.Option(help="Or one file with source<TAB>target.")] = None,
    source_col: SourceColumn = None,
    target_col: TargetColumn = None,
    features_col: FeaturesColumn = None,
    source_sep: SourceSeparator = None,
    target_sep: TargetSeparator = None,
    features_sep: FeaturesSeparator = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Run the same command again to resume.")] = None,
    model: Annotated[str | None, typer.Option(help="transformer (default), gru, lstm or rnn.")] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="additive (default for RNNs), scaled_dot (default for transformer), dot, bilinear, location (RNNs) "
            "or none (RNNs)."
        ),
    ] = None,
    alignment: Annotated[
        str | None,
        typer.Option(
            help="soft (default), or for RNNs hard monotonic attention: monotonic-0 or monotonic-1 (its order)."
        ),
    ] = None,
    copy: Annotated[
        str | None, typer.Option(help="Also copy words from the source: mixture, joint, or none (default).")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="bpe (default), word, char or none (symbols between spaces; default for columns)."),
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Maximum vocabulary size (8000).")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase", help="Lower-case all text.")] = None,
    longest: Annotated[int | None, typer.Option(help="Maximum tokens per line (256).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps (3000).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate (0.001).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (default), bfloat16, or auto: the faster one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (0).")] = None,
    ensemble: Annotated[
        int | None, typer.Option(help="Number of models to train, with one seed each, that translate together (1).")
    ] = None,
    both_directions: Annotated[
        bool | None, typer.Option("--both-directions", help="With --ensemble: half of the models write right to left.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="Settings as a TOML file; flags override it.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="Initialize with the weights of another run.")] = None,
    tokenizer_from: Annotated[
        Path | None, typer.Option(help="Use the tokenizer of another run, so that both models can translate together.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard (extra: log).")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")] = False,
) -> None:
    """Train a translation model from two parallel files, or one TSV file.

    This one command builds the vocabulary, trains the model, and selects the best checkpoint.

    Example: qkv train translate --source train.de --target train.en --out runs/de-en
    """
    from qkv.tasks import training

    flags: dict[str, dict[str, Any]] = {
        "data": {
            "source": source,
            "target": target,
            "data": data,
            "valid_source": valid_source,
            "valid_target": valid_target,
            "valid_data": valid_data,
            "longest": longest,
            **table_flags(source_col, target_col, features_col, source_sep, target_sep, features_sep),
        },
        "tokenizer": {"kind": tokenizer, "size": vocabulary, "lowercase": lowercase},
        "model": {"kind": model, "score": score, "alignment": alignment, "copy": copy},
        "training": {"steps": steps, "learning_rate": learning_rate, "precision": precision, "seed": seed},
        "ensemble": {"models": ensemble, "both_directions": both_directions},
    }
    follow(training, flags, Given(config, start, tokenizer_from, out, device, tensorboard, print_config))
