"""A training step of a small Transformer encoder: the blocks of `qkv.nn` beside PyTorch's layers.

    python -m benchmarks.blocks

Two layers of width 64 with four heads and 256 hidden units read 48 tokens, on one thread. Contenders alternate in
random order; figures are medians of processor time in microseconds. Results go to benchmarks/results/blocks.json.
"""

import random
import statistics
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
from benchmarks.engine.timing import microseconds
from benchmarks.kept import keep
from torch import Tensor, nn

import qkv
from qkv.nn import FeedForward, MultiHeadAttention, NormParts, TransformerBlock

RESULTS = Path(__file__).parent / "results" / "blocks.json"
WIDTH, HEADS, HIDDEN, LAYERS, TOKENS = 64, 4, 256, 2, 48
ROUNDS, SECONDS = 40, 0.02


def contenders(batch: int, after: bool, causal: bool, dropout: float) -> dict[str, Callable[[], object]]:
    """Return a forward and backward pass of each."""
    norms = NormParts(place="after" if after else "before")
    ours, theirs = nn.ModuleList(), nn.ModuleList()
    for _ in range(LAYERS):
        attention, feed_forward = MultiHeadAttention(WIDTH, HEADS, dropout=dropout), FeedForward(WIDTH, HIDDEN, dropout)
        ours.append(TransformerBlock(attention, feed_forward, norms, dropout=dropout))
        theirs.append(nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, dropout, batch_first=True, norm_first=not after))
    x, upstream = torch.randn(2, batch, TOKENS, WIDTH).unbind()
    visible = qkv.masks.causal() if causal else None
    added = nn.Transformer.generate_square_subsequent_mask(TOKENS) if causal else None

    def step(layers: nn.ModuleList, apply: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], object]:
        parameters = list(layers.parameters())

        def run() -> object:
            states = x
            for layer in layers:
                states = apply(layer, states)
            return torch.autograd.grad(states, parameters, upstream)

        return run

    return {
        "qkv": step(ours, lambda layer, states: layer(states, visible)),
        "PyTorch": step(theirs, lambda layer, states: layer(states, src_mask=added, is_causal=causal)),
    }


def main() -> None:
    """Print the microseconds of each and the quartiles of their ratio; store them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    order, report = random.Random(0), {}
    for batch, after, causal, dropout in product((1, 4), (False, True), (False, True), (0.0, 0.1)):
        runs = contenders(batch, after, causal, dropout)
        calls = {
            name: max(2, int(SECONDS * 1e6 / min(microseconds(run, 1) for _ in "12345"))) for name, run in runs.items()
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name in order.sample(list(runs), len(runs)):
                times[name].append(microseconds(runs[name], calls[name]))
        ratios = [ours / theirs for ours, theirs in zip(times["qkv"], times["PyTorch"], strict=True)]
        kind = (
            f"batch {batch}, norms {'after' if after else 'before'}, {'causal' if causal else 'all'}, dropout {dropout}"
        )
        row = {name: round(statistics.median(own)) for name, own in times.items()}
        report[kind] = {**row, "ratio": [round(x, 3) for x in statistics.quantiles(ratios, n=4)]}
        print(f"{kind}: {report[kind]}", flush=True)
    keep(RESULTS, {"torch": torch.__version__, "one thread": report})


if __name__ == "__main__":
    main()
