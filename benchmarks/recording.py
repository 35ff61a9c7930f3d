"""The cost of recording: a training step and a greedy decoding, with and without `qkv.record`.

    python -m benchmarks.recording

A Transformer (width 256, 4 heads, 3 + 3 layers, vocabulary 8,000), batch 32, 20 tokens per side; every attention is
recorded. Runs with and without alternate in one process; a ratio is that of neighbors, with its median and quartiles.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept import keep
from torch import Tensor, nn

import qkv
from qkv.decode.greedy import greedy
from qkv.models.configs.translator import TransformerConfig
from qkv.models.translator import TransformerTranslator

RESULTS = Path(__file__).parent / "results" / "recording.json"
SIZE, BATCH, LENGTH = 8000, 32, 20


def model() -> TransformerTranslator:
    torch.manual_seed(0)
    config = TransformerConfig(size=SIZE, width=256, heads=4, feed_forward=1024, encoder_layers=3, decoder_layers=3)
    return TransformerTranslator(config)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    source, target = torch.randint(4, SIZE, (2, BATCH, LENGTH)).unbind()
    return source, torch.full((BATCH,), LENGTH), target


def training() -> tuple[nn.Module, Callable[[], object]]:
    learner, given = model(), batch()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        logits = learner(*given)
        nn.functional.cross_entropy(logits.flatten(0, 1), given[2].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return learner, step


def decoding() -> tuple[nn.Module, Callable[[], object]]:
    decoder, (source, lengths, _) = model().eval(), batch()
    return decoder, lambda: greedy(decoder, source, lengths, bos=1, eos=SIZE, limit=LENGTH)


def timed(network: nn.Module, work: Callable[[], object], on: bool) -> float:
    with qkv.record(network) if on else nullcontext():
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


def measure(network: nn.Module, work: Callable[[], object], rounds: int) -> dict[str, Any]:
    for on in (False, True):
        timed(network, work, on)
    pairs = [(timed(network, work, False), timed(network, work, True)) for _ in range(rounds)]
    ratios = sorted(on / off for off, on in pairs)
    return {
        "off, ms": 1000 * statistics.median(off for off, _ in pairs),
        "on, ms": 1000 * statistics.median(on for _, on in pairs),
        "ratio": statistics.median(ratios),
        "quartiles": [ratios[rounds // 4], ratios[3 * rounds // 4]],
        "hooks left behind": sum(len(module._forward_hooks) for module in network.modules()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    for name, case in (("training step", training), ("decoding", decoding)):
        results[name] = measure(*case(), given.rounds)
        print(f"{name}: {results[name]}")
    keep(given.out, results)


if __name__ == "__main__":
    main()
