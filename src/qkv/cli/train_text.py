"""`qkv train generate`: from a text file to a trained language model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkv.cli.failure import guarded
from qkv.cli.training import Given, follow


@guarded
def train_generate(
    text: Annotated[Path | None, typer.Option(help="A file of plain text (.gz too).")] = None,
    valid_text: Annotated[
        Path | None, typer.Option(help="Another file for validation; default: the end is held out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Run the same command again to resume.")] = None,
    tokens: Annotated[str | None, typer.Option(help="characters (default) or subwords, learned from the text.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Maximum vocabulary size (8000).")] = None,
    context: Annotated[int | None, typer.Option(help="Context length in tokens (256).")] = None,
    positions: Annotated[
        str | None, typer.Option(help="rotary (default), learned, sinusoidal, alibi, relative or none.")
    ] = None,
    score: Annotated[str | None, typer.Option(help="scaled_dot (default), dot, bilinear or additive.")] = None,
    window: Annotated[
        int | None, typer.Option(help="Number of earlier positions that attention sees; default: all.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks (4).")] = None,
    width: Annotated[int | None, typer.Option(help="Width of the model (192).")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads per attention (6).")] = None,
    key_heads: Annotated[int | None, typer.Option(help="Heads of keys and values, shared by groups of heads.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout in training (0.1).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps (2000).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate (0.006).")] = None,
    precision: Annotated[str | None, typer.Option(help="float32 (default), bfloat16, or auto: the faster one.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (0).")] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="Settings as a TOML file; flags override it.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="Initialize with the weights of another run.")] = None,
    tokenizer_from: Annotated[Path | None, typer.Option(help="Use the tokenizer of another run, of any task.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard (extra: log).")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")] = False,
) -> None:
    """Train a language model on a text file; it learns to continue any text.

    Example: qkv train generate --text plays.txt --out runs/plays
    """
    from qkv.tasks.language_training import RECIPE, token_kind

    model = {
        "context": context,
        "positions": positions,
        "score": score,
        "window": window,
        "layers": layers,
        "width": width,
        "heads": heads,
        "key_heads": key_heads,
        "dropout": dropout,
    }
    flags: dict[str, dict[str, Any]] = {
        "data": {"text": text, "valid_text": valid_text},
        "tokenizer": {"kind": token_kind(tokens), "size": vocabulary},
        "model": model,
        "training": {"steps": steps, "learning_rate": learning_rate, "precision": precision, "seed": seed},
    }
    follow(RECIPE, flags, Given(config, start, tokenizer_from, out, device, tensorboard, print_config))
