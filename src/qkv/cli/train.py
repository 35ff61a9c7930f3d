"""`qkv train`: from text files to a trained model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.failure import guarded
from qkv.cli.training import Given, follow


@guarded
def train_translate(
    source: Annotated[Path | None, typer.Option(help="Source sentences, one per line (.gz too).")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    data: Annotated[Path | None, typer.Option(help="Or one file with source<TAB>target on each line.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Sources to validate on; held out if not given.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None,
    valid_data: Annotated[Path | None, typer.Option(help="Or one file with source<TAB>target.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; the same command again resumes.")] = None,
    model: Annotated[str | None, typer.Option(help="transformer (default), gru, lstm or rnn.")] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="additive (default of RNNs), scaled_dot (of the transformer), dot, bilinear, or none (RNNs)."
        ),
    ] = None,
    copy: Annotated[
        str | None, typer.Option(help="Copy words from the source too: mixture, joint, or none (default).")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="bpe (default), word or char; learnt from the training text.")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option(help="The most pieces of the vocabulary (8000).")] = None,
    lowercase: Annotated[bool | None, typer.Option("--lowercase", help="Lower-case all text.")] = None,
    longest: Annotated[int | None, typer.Option(help="The most tokens that a line may have (256).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of updates (3000).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Its peak (0.001).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (default), bfloat16, or auto: the faster one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything that is left to chance (0).")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, ...")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="Settings as a TOML file; flags win.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="Start from the weights of another run.")] = None,
    tokenizer_from: Annotated[
        Path | None, typer.Option(help="Take the tokenizer of another run: such models can translate together.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard (extra: log).")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")] = False,
) -> None:
    """Train a translation model from two parallel files, or one TSV file.

    Everything is learnt in this one command: the vocabulary, the model, and which checkpoint is best.

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
        },
        "tokenizer": {"kind": tokenizer, "size": vocabulary, "lowercase": lowercase},
        "model": {"kind": model, "score": score, "copy": copy},
        "training": {"steps": steps, "learning_rate": learning_rate, "precision": precision, "seed": seed},
    }
    follow(training, flags, Given(config, start, tokenizer_from, out, device, tensorboard, print_config))
