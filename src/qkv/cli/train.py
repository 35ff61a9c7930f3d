"""`qkv train`: from text files to a trained model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.failure import guarded


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
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log for TensorBoard (extra: log).")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")] = False,
) -> None:
    """Train a translation model from two parallel files, or one TSV file.

    Everything is learnt in this one command: the vocabulary, the model, and which checkpoint is best.

    Example: qkv train translate --source train.de --target train.en --out runs/de-en
    """
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
    _train(_given(flags), config, out, device, tensorboard=tensorboard, print_config=print_config)


def _given(flags: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Only what was written on the command line."""
    return {table: {name: item for name, item in row.items() if item is not None} for table, row in flags.items()}


def _train(
    flags: dict[str, dict[str, Any]],
    config: Path | None,
    out: Path | None,
    device: str,
    *,
    tensorboard: bool,
    print_config: bool,
) -> None:
    from qkv.tasks.settings import merge, read_toml, to_toml
    from qkv.tasks.training import load_settings, show_settings, train

    settings = load_settings(merge(read_toml(config), flags) if config is not None else flags)
    if print_config:
        typer.echo(to_toml(show_settings(settings)))
        return
    outcome = train(settings, out, device, tensorboard=tensorboard)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
