"""Peak memory of attention, forward and backward, as keys grow: one head, D = V = 64, float32, backend "auto".

Each mechanism and size runs in a fresh process: it creates the inputs, runs a small problem to load lazy imports,
resets the peak of resident memory and measures the growth. Gradients and output are part of the growth.

    python -m benchmarks.memory                                # all mechanisms, Q = K = 16,384, 32,768, 65,536
    python -m benchmarks.memory --queries 1024 --only dropout  # fewer queries for a slow mechanism
    python -m benchmarks.memory --write                        # docs/understanding/memory.md from stored results

Results go to benchmarks/results/memory.json: one entry per mechanism and size, merged with the existing ones.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import qkv

RESULTS = Path(__file__).parent / "results" / "memory.json"
TRAINING = Path(__file__).parent / "results" / "training_memory.json"
PAGE = Path(__file__).parent.parent / "docs" / "understanding" / "memory.md"
WIDTH, HIDDEN = 64, 32
SIZES = (16_384, 32_768, 65_536)
LIMIT_MIB = 512


def _network(query: Tensor, key: Tensor) -> Tensor:
    return torch.tanh(query @ key.mT / 8)


MECHANISMS: dict[str, Callable[[], dict[str, Any]]] = {
    "scaled dot": dict,
    "scaled dot, causal": lambda: {"mask": qkv.masks.causal()},
    "scaled dot, window": lambda: {"mask": qkv.masks.window(256, 0)},
    "scaled dot, causal with length": lambda: {"mask": qkv.masks.causal() & qkv.masks.lengths(50_000)},
    "scaled dot, predicate": lambda: {"mask": qkv.masks.window(64, 0) | qkv.masks.lengths(32)},
    "dropout": lambda: {"dropout": 0.1},
    "sink": lambda: {"normalizer": qkv.normalizers.Softmax(torch.zeros((), requires_grad=True))},
    "softcap": lambda: {"score": qkv.scores.ScaledDot(softcap=10.0)},
    "cosine, sparsemax": lambda: {"score": qkv.scores.Cosine(4.0), "normalizer": qkv.normalizers.Sparsemax()},
    "scaled dot, entmax": lambda: {"normalizer": qkv.normalizers.Entmax()},
    "scaled dot, sigmoid": lambda: {"normalizer": qkv.normalizers.Sigmoid()},
    "scaled dot, hard": lambda: {"normalizer": qkv.normalizers.Hard()},
    "dot, mean": lambda: {"score": qkv.scores.Dot(), "normalizer": qkv.normalizers.Mean()},
    "additive": lambda: {
        "score": qkv.scores.Additive(torch.randn(HIDDEN), torch.randn(HIDDEN, WIDTH), torch.randn(HIDDEN, WIDTH))
    },
    "concat": lambda: {"score": qkv.scores.Concat(torch.randn(WIDTH), torch.randn(WIDTH), "leaky_relu")},
    "squared distance": lambda: {"score": qkv.scores.SquaredDistance(8.0)},
    "gaussian": lambda: {"score": qkv.scores.Gaussian(8.0)},
    "boxcar": lambda: {"score": qkv.scores.Boxcar(11.0)},
    "epanechnikov": lambda: {"score": qkv.scores.Epanechnikov(12.0)},
    "callable": lambda: {"score": _network},
}


def _status(field: str) -> int:
    """Return a memory figure of this process in KiB."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _inputs(queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(1, rows, WIDTH, requires_grad=True) for rows in (queries, keys, keys))
    return query, key, value


def _run(inputs: tuple[Tensor, Tensor, Tensor], given: dict[str, Any]) -> None:
    qkv.attention(*inputs, **given).sum().backward()


def measure(name: str, queries: int, keys: int) -> dict[str, Any]:
    """Measure memory growth and time of one mechanism in this process."""
    torch.manual_seed(0)
    given = MECHANISMS[name]()
    _run(_inputs(600, 700), given)
    inputs = _inputs(queries, keys)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    _run(inputs, given)
    seconds = time.perf_counter() - start
    return {
        "mechanism": name,
        "queries": queries,
        "keys": keys,
        "backend": qkv.explain(*inputs, **given).backend,
        "growth_mib": round((_status("VmHWM") - before) / 1024, 1),
        "inputs_mib": round(sum(x.numel() for x in inputs) * 4 / 2**20, 1),
        "seconds": round(seconds, 2),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _in_fresh_process(name: str, queries: int, keys: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", name, str(queries), str(keys)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _write(rows: list[dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    merged = {(row["mechanism"], row["keys"]): row for row in [*known, *rows]}
    RESULTS.write_text(json.dumps(list(merged.values()), indent=1) + "\n")


HEAD = """# How much memory a call takes

Peak growth of resident memory for one forward and backward pass: one head of width 64, float32, backend `auto`. The
output, the gradients and all intermediate results count. Each figure comes from a fresh process. The full matrix alone
would take 1,024, 4,096 and 16,384 MiB, and a backward pass holds several. Generated by `python -m benchmarks.memory
--write` from `benchmarks/results/memory.json`.

The limit at 65,536 × 65,536 is 512 MiB. Slow mechanisms were measured with fewer queries, given in parentheses. The
processor to which the seconds belong was not recorded.

| mechanism | backend | {heads} | seconds, last |
|---|---|{lines}---|
"""


TRAINING_HEAD = """
## A training

Resident memory, in MiB, of the training of `results/multi30k_transformer.toml` (3.5 million parameters, batches of
4,096 tokens, products of {capacity} shapes kept) over so many updates, with a validation every 260
and at the end, by `python -m benchmarks.training_memory --steps UPDATES --precision {precisions}`:

| purpose | {heads} |
|---|{lines}
"""
TRAINING_FOOT = """
An update takes its part for activations, their gradients and the logits of 512 tokens at a time; a validation takes
it for keys, values and scores of the sentences it decodes. Between updates, freed blocks stay in the heap for the
next one. The training returns them to the system when resident memory has grown by 128 MiB, and around each
validation.

**oneDNN keeps compiled products.** PyTorch computes products in bfloat16 by oneDNN, and qkv those in float32 on
processors whose registers of 512 bits MKL does not use (Zen 4, Zen 5). oneDNN compiles a product for each new shape
and keeps 1,024 of them; PyTorch keeps as many once more. That is 0.5 MiB for each batch shape, and it lies between
blocks of the heap that then fit few later tensors: this training grew to 4.4 GiB in 200 updates on one AMD processor.
The command line therefore sets `ONEDNN_PRIMITIVE_CACHE_CAPACITY` and `LRU_CACHE_CAPACITY` to 64, unless they are set.
An update of this training uses about 30 products; compiling one takes 0.25 ms, so shapes that never repeat cost 1 to
2 % of an update. In your own program, set both before you import PyTorch; a model with more different products than
64 needs a larger number.
"""
PURPOSES = (
    "updates",
    "threads",
    "libraries and data",
    "compiled code and products",
    "weights, gradients, moments",
    "one update",
    "one validation",
    "peak",
)


def training_table(rows: list[dict[str, Any]]) -> str:
    """Return the section on the memory of a training, from the results of `benchmarks.training_memory`."""
    rows = sorted(rows, key=lambda row: (row["processor"], row["precision"]))
    heads, precisions = (f"{row['precision']}, {row['processor']}" for row in rows), {row["precision"] for row in rows}
    stated = {name: "/".join(sorted({str(row[name]) for row in rows})) for name in ("capacity",)}
    head = TRAINING_HEAD.format(
        heads=" | ".join(heads), lines="---|" * len(rows), precisions="|".join(sorted(precisions)), **stated
    )
    table = [f"| {name} | {' | '.join(f'{row[name]:,}' for row in rows)} |\n" for name in PURPOSES]
    return "".join([head, *table, TRAINING_FOOT])


def page(rows: list[dict[str, Any]]) -> str:
    """Return the text of docs/understanding/memory.md."""
    lines = [HEAD.format(heads=" | ".join(f"{size:,} keys, MiB" for size in SIZES), lines="---|" * len(SIZES))]
    for name in MECHANISMS:
        found = {row["keys"]: row for row in rows if row["mechanism"] == name and row["keys"] in SIZES}
        if found:
            last = found[max(found)]
            cells = " | ".join(_cell(found.get(size)) for size in SIZES)
            lines.append(f"| {name} | `{last['backend']}` | {cells} | {last['seconds']:,.1f} |\n")
    return "".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    fewer = f" ({row['queries']:,})" if row["queries"] < row["keys"] else ""
    return f"{row['growth_mib']:,.0f}{fewer}"


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, help="at most this many queries; default: as many as keys")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of keys")
    parser.add_argument("--only", nargs="+", choices=list(MECHANISMS), default=list(MECHANISMS))
    parser.add_argument("--write", action="store_true", help="only write the page from stored results")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, queries, keys = given.child
        print(json.dumps(measure(name, int(queries), int(keys))))
        return
    if given.write:
        PAGE.write_text(page(json.loads(RESULTS.read_text())) + training_table(json.loads(TRAINING.read_text())))
        return
    print(f"{'mechanism':32} {'backend':10} " + " ".join(f"{size:>10,}" for size in given.sizes) + "   MiB of growth")
    for name in given.only:
        rows = [_in_fresh_process(name, min(size, given.queries or size), size) for size in given.sizes]
        _write(rows)
        growth = [row["growth_mib"] for row in rows]
        verdict = "" if growth[-1] <= LIMIT_MIB else f"   over {LIMIT_MIB}"
        print(f"{name:32} {rows[-1]['backend']:10} " + " ".join(f"{g:10.1f}" for g in growth) + verdict, flush=True)


if __name__ == "__main__":
    main()
