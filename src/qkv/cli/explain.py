"""`qkv explain`: how a call of `qkv.attention` would be computed."""

from typing import Annotated

import typer

from qkv.cli.failure import guarded
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES


@guarded
def explain(
    score: Annotated[str, typer.Option(help=f"As for qkv train: {SCORES.described()}.")] = "scaled-dot",
    normalizer: Annotated[str, typer.Option(help=f"{NORMALIZERS.described()}.")] = "",
    mask: Annotated[str, typer.Option(help="none, causal, lengths, window or dense.")] = "none",
    batch: Annotated[int, typer.Option(help="Items in the batch.", min=1)] = 1,
    heads: Annotated[int, typer.Option(help="Heads.", min=1)] = 8,
    queries: Annotated[int, typer.Option(help="Queries per head.", min=0)] = 1024,
    keys: Annotated[int, typer.Option(help="Keys per head.", min=0)] = 1024,
    width: Annotated[int, typer.Option(help="Width of queries, keys and values.", min=1)] = 64,
    dropout: Annotated[float, typer.Option(help="Dropout probability of the weights.")] = 0.0,
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    gradient: Annotated[bool, typer.Option(help="Plan for training, with the backward pass.")] = False,
    backend: Annotated[str, typer.Option(help="auto, or the name of a backend to see why it refuses.")] = "auto",
) -> None:
    """Show which backend computes a mechanism, why, at what cost, and why the others were rejected.

    Example: qkv explain --score additive --queries 4096 --keys 4096 --gradient
    """
    from qkv.tasks.explaining import Question, answer
    from qkv.tasks.streams import write

    question = Question(score, normalizer, mask, batch, heads, queries, keys, width, dropout, dtype, gradient, backend)
    plan = answer(question)
    names = ("backend", "algorithm", "why", "operations", "bytes", "microseconds")
    facts = {name: getattr(plan, name) for name in names}
    write([{**facts, "refusals": dict(plan.refusals)}], str(plan).splitlines())
