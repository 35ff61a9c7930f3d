"""The cost of attaching and recording a model of transformers: a forward pass by PyTorch's SDPA, by qkv, recorded.

    python -m benchmarks.attached

A Llama shape (width 512, 8 heads on 4, 4 layers, vocabulary 512), one sequence of 2,048 tokens, without gradients. The
three ways alternate in one process; a ratio is that of neighbors to SDPA, with its median and quartiles.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept import keep

import qkv

RESULTS = Path(__file__).parent / "results" / "attached.json"


def models() -> tuple[Any, Any]:
    """The same model on PyTorch's SDPA, and attached."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config).eval()
    model.set_attn_implementation("sdpa")
    return model, qkv.hub.attach(copy.deepcopy(model))


def timed(model: Any, ids: torch.Tensor, recorded: bool) -> float:
    with torch.inference_mode(), qkv.record(model) if recorded else nullcontext():
        start = time.perf_counter()
        model(ids, use_cache=False)
        return time.perf_counter() - start


def measure(length: int, rounds: int) -> dict[str, Any]:
    sdpa, ours = models()
    ids = torch.randint(3, 512, (1, length))
    ways: dict[str, Callable[[], float]] = {
        "SDPA": lambda: timed(sdpa, ids, False),
        "attached": lambda: timed(ours, ids, False),
        "recorded": lambda: timed(ours, ids, True),
    }
    for run in ways.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            found[name].append(run())
    result: dict[str, Any] = {f"{name}, ms": 1000 * statistics.median(times) for name, times in found.items()}
    for name in ("attached", "recorded"):
        ratios = sorted(mine / theirs for mine, theirs in zip(found[name], found["SDPA"], strict=True))
        result[name] = {
            "ratio": statistics.median(ratios),
            "quartiles": [ratios[rounds // 4], ratios[3 * rounds // 4]],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = {"length": given.length, "threads": torch.get_num_threads(), **measure(given.length, given.rounds)}
    keep(given.out, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
