"""`qkv train point`: from lines of elements and positions to a trained pointer network."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.cli.training import follow

_RENAMED = {
    "elements": "data.elements",
    "order": "data.order",
    "vocabulary": "data.vocabulary",
    "model": "model.encoder",
    "decoder": "model.cell",
    "width": "model.hidden",
}


@guarded
def train_point(
    source: Annotated[
        Path | None, typer.Option(help="Elements separated by spaces, one line per example (.gz too).")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Positions of elements, from 1, line by line.")] = None,
    data: Annotated[Path | None, typer.Option(help="Or one file with elements<TAB>positions on each line.")] = None,
    valid_source: Annotated[Path | None, typer.Option(help="Elements to validate on; held out if not given.")] = None,
    valid_target: Annotated[Path | None, typer.Option(help="Their positions.")] = None,
    valid_data: Annotated[Path | None, typer.Option(help="Or one file with elements<TAB>positions.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Run the same command again to resume.")] = None,
    elements: Annotated[
        str | None, typer.Option(help="numbers (or vectors as 0.3,0.7) or words; default: as in the first line.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="What makes an answer exact: the same sequence (default), cycle (corners) or set."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The encoder: transformer (default), lstm, gru or rnn; these are the decoder too."),
    ] = None,
    decoder: Annotated[str | None, typer.Option(help="The decoder: gru (default), lstm or rnn.")] = None,
    score: Annotated[
        str | None,
        typer.Option(help="additive (default), bilinear, dot, scaled_dot, cosine or gaussian (learned bandwidth)."),
    ] = None,
    once: Annotated[
        bool | None, typer.Option("--once/--repeats", help="Whether each element is pointed at at most once (yes).")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of states (64).")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the encoder (3; recurrent: 1).")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of the transformer's attentions (4).")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout in training (0).")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Maximum number of words (30000).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of training steps (5000).")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Elements per batch (2048).")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate (0.002).")] = None,
    patience: Annotated[
        int | None, typer.Option(help="End after this many validations without improvement; 0 for never (0).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed (0).")] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="Settings as a TOML file; flags override it.")] = None,
    start: Annotated[Path | None, typer.Option("--from", help="Initialize with the weights of another run.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard (extra: log).")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show all settings as TOML and exit.")] = False,
) -> None:
    """Train a pointer network: sorting, convex hulls, spans, and whatever else selects elements of its input.

    Example: qkv train point --data sort.tsv --out runs/sort
    """
    given = {**locals(), "tokenizer_from": None}
    from qkv.nn.mechanism import ALIASES
    from qkv.tasks import point_training

    # A normalized Gaussian kernel is the softmax of a squared distance.
    given["score"] = {**ALIASES, "gaussian": "squared_distance"}.get(score, score) if score else score

    follow(point_training, given, _RENAMED)
