"""One sequence over several processes: memory, bytes and processor time of a step beside those of one process.

    python -m benchmarks.one_sequence --tokens 8192                  attention alone, 1, 2 and 4 processes
    python -m benchmarks.one_sequence --tokens 32768 --model         a language model of one layer
    python -m benchmarks.one_sequence --draw docs/pictures/one_sequence.svg

Each process computes with one thread, and takes a step of at most 4,096 tokens before those that are measured. Memory
is the largest of all processes, twice: the most bytes of tensors that live at once and were made in a step ("mib"), by
PyTorch's profiler; and in a step without the profiler, whose records take memory too, the peak of resident memory above
that before the step, free pages returned ("resident"), which has the gaps of the heap and buffers of libraries too.
Speed compares processor time: that of one process, divided by the number of processes, over the longest of them; on as
many idle cores that is wall time, but for the wait for messages. Bytes are those that a process sent in a step, and
those of its plan.

Results are kept by processor, in `RESULTS`.
"""

import argparse
import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from benchmarks.kept import keep, processor, read
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import qkv
from qkv.linalg.heap import GrowthLimit
from qkv.models import DecoderConfig, LanguageModel

RESULTS = Path(__file__).parent / "results" / "one_sequence.json"
HEADS, WIDTH, VOCABULARY = 2, 64, 256
WARM = 4096
CASES = [("plain", "contiguous"), ("plain", "zigzag"), ("causal", "contiguous"), ("causal", "zigzag")]


_STEPS = 2
"""How many steps are measured."""
_SMALL = 1 << 12
"""Bytes below which a tensor is not counted."""


def _mib(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


class Measured(NamedTuple):
    """A step of one process.

    Attributes:
        seconds: of processor time.
        mib: the most bytes of tensors of at least 4 KiB that lived at once and were made in the step, in MiB.
        resident: how much the memory of the process grew, in MiB.
        sent, planned: bytes.
    """

    seconds: float
    mib: float
    resident: float
    sent: int = 0
    planned: int = 0


def _measured(step: Callable[[], Any]) -> Measured:
    """Take a step, return its time and resident memory; and another with the profiler, for its tensors."""
    GrowthLimit().release()
    before = _mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    start = time.process_time()
    step()
    seconds, resident = time.process_time() - start, _mib("VmHWM") - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    # When the few numbers that a process receives are freed depends on the others.
    changes = [(at, size) for at, size in changes if abs(size) >= _SMALL]
    return Measured(seconds, max(accumulate(size for _, size in changes)) / 2**20, resident)


def attend(part: qkv.distributed.Shard, tokens: int, mask: str) -> Measured:
    """Measure forward and backward of one attention."""
    masks = {"plain": None, "causal": qkv.masks.causal()}

    def step(*inputs: Tensor) -> None:
        query, key, value = (x.detach().requires_grad_() for x in inputs)
        with nullcontext() if part.size == 1 else part:
            qkv.attention(query, key, value, mask=masks[mask]).sum().backward()

    def inputs(count: int) -> list[Tensor]:
        torch.manual_seed(0)
        return [part.split(x, -2) for x in torch.randn(3, 1, HEADS, count, WIDTH)]

    step(*inputs(min(tokens, WARM)))
    query, key, value = inputs(tokens)
    before = part.peers.sent
    measured = _measured(lambda: step(query, key, value))
    with part:
        plan = qkv.distributed.explain(query, key, value, mask=masks[mask])
    return measured._replace(sent=(part.peers.sent - before) // _STEPS, planned=plan.sent + plan.sent_backward)


def train(part: qkv.distributed.Shard, tokens: int, mask: str) -> Measured:
    """Measure a step of a language model of one layer, its gradients summed over the processes."""
    torch.manual_seed(0)
    shape = {"size": VOCABULARY, "width": HEADS * WIDTH, "heads": HEADS, "layers": 1, "feed_forward": 4 * HEADS * WIDTH}
    model = LanguageModel(DecoderConfig(context=tokens, positions="rotary", dropout=0.0, **shape))  # type: ignore[arg-type]

    def step(text: Tensor) -> None:
        read, following = part.split(text[:, :-1]), part.split(text[:, 1:])
        model.zero_grad(set_to_none=True)
        with nullcontext() if part.size == 1 else part:
            logits = model(read).flatten(0, 1)
            (F.cross_entropy(logits, following.flatten(), reduction="sum") / (text.shape[1] - 1)).backward()
        if part.size > 1:
            _sum_gradients(model)

    text = torch.randint(VOCABULARY, (1, tokens + 1))
    step(text[:, : WARM + 1])
    return _measured(lambda: step(text))


def _sum_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)


def _work(rank: int, size: int, store: str, case: tuple[str, str], tokens: int, model: bool, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    part = qkv.distributed.shard(layout=case[1])  # type: ignore[arg-type]
    result = (train if model else attend)(part, tokens, case[0])
    results: list[Any] = [None] * size
    dist.all_gather_object(results, result)
    if rank == 0:
        Path(out).write_text(json.dumps(results), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _run(size: int, *arguments: Any) -> None:
    """Run the work of each process."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_work, args=(rank, size, *arguments)) for rank in range(size)]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode:
            raise SystemExit(f"a process ended with {process.exitcode}")


def draw(path: Path) -> None:
    """Draw the memory of a step of the model at its longest length on one process, by number of processes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [row for name, row in read(RESULTS)[processor()].items() if name.startswith("model")]
    tokens = max(row["tokens"] for row in rows if row["processes"] == 1)
    found = sorted((row["processes"], row["mib"]) for row in rows if row["tokens"] == tokens)
    counts, mib = zip(*found, strict=True)
    with mpl.rc_context({"svg.hashsalt": "qkv", "font.size": 9}):
        figure, panel = plt.subplots(figsize=(5, 3), layout="constrained")
        panel.bar([f"{count}" for count in counts], mib, color="#1f6fb4", width=0.5, label="measured")
        share = [mib[0] / count for count in counts]
        panel.plot(range(len(counts)), share, "o--", color="#d9731a", label="equal share of one process's")
        for place, amount in enumerate(mib):
            panel.annotate(f"{amount:.0f}", (place, amount), (0, 2), textcoords="offset points", ha="center")
        panel.set(xlabel="processes", ylabel="MiB for activations, each", title=f"One step, {tokens:,} tokens")
        panel.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    """Measure, print, write JSON; or draw what is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--draw", type=Path, help="write the figure of the stored memory here, and measure nothing")
    given = parser.parse_args()
    if given.draw is not None:
        draw(given.draw)
        return
    rows: list[dict[str, Any]] = []
    cases = [("causal", "zigzag")] if given.model else CASES
    for case in cases:
        for size in given.processes:
            with tempfile.TemporaryDirectory() as folder:
                store, out = f"{folder}/store", f"{folder}/out"
                _run(size, store, case, given.tokens, given.model, out)
                results = json.loads(Path(out).read_text(encoding="utf-8"))
            seconds, mib, resident, sent, planned = zip(*results, strict=True)
            row = {"mask": case[0], "layout": case[1], "processes": size, "tokens": given.tokens}
            row |= {"seconds": round(max(seconds), 2), "mib": round(max(mib), 1), "resident": round(max(resident), 1)}
            row |= {} if given.model else {"sent": sent, "planned": planned}
            alone = next(other for other in [*rows, row] if other["mask"] == case[0])
            if alone["processes"] == 1:
                row["speed"] = round(alone["seconds"] / size / row["seconds"], 3)
            rows.append(row)
            print(json.dumps(row), flush=True)
    kind = "model" if given.model else "attention"
    keep(
        RESULTS,
        {f"{kind} of {row['tokens']} tokens, {row['mask']}, {row['layout']}, {row['processes']}": row for row in rows},
    )


if __name__ == "__main__":
    main()
