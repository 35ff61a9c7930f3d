"""Compare two checkouts of qkv, alternating: the time of a call in this one relative to the other.

    git worktree add ../before HEAD~20
    python -m benchmarks.versus ../before                            every call (forward, with backward) and whole run
    python -m benchmarks.versus ../before --call gaussian_512 --write FILE
    python -m benchmarks.versus ../before --processor                processor time on one thread, on a shared machine

Each checkout has its own process, which sleeps while the other computes, and its own `benchmarks`. A figure is the
median of the ratios of neighboring turns, with its quartiles; `--noise` compares two processes of this checkout to show
the noise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
TURN = 0.05
"""Seconds per turn."""
PASSES = ("forward", "both")


class Call(NamedTuple):
    """What to time: a mechanism of `CALLS` or of the engine's table, and its size."""

    mechanism: str
    leading: tuple[int, ...]
    queries: int
    keys: int
    width: int = 64
    dtype: str = "float32"


def _heads(n: int, names: str, dtype: str = "float32", suffix: str = "") -> dict[str, Call]:
    """Eight heads of `n` queries and keys."""
    return {f"{name}{suffix}_{n}": Call(name, (1, 8), n, n, dtype=dtype) for name in names.split()}


CALLS: dict[str, Call] = {
    **_heads(12, "scaled_dot lengths"),
    **_heads(16, "scaled_dot causal lengths dropout learned_bias sink gaussian boxcar additive concat mean"),
    **_heads(256, "scaled_dot causal lengths window alibi dropout learned_bias softcap sink cosine bilinear additive"),
    **_heads(256, "concat squared_distance gaussian boxcar epanechnikov triangular uniform mean causal_mean yours"),
    **_heads(256, "sigmoid hard sparsemax entmax entmax_3"),
    **_heads(256, "scaled_dot cosine bilinear additive", "bfloat16", "_half"),
    **_heads(2048, "scaled_dot causal window dropout gaussian additive triangular entmax"),
    "step": Call("scaled_dot", (64, 8), 1, 200),
    "additive_step": Call("projected", (64,), 1, 50, 256),
}


WHOLE = ("train_gpt", "train_translator", "decode_greedy", "decode_beam")
"""Whole runs: one update of the models of `benchmarks.train`, one decoding of those of `benchmarks.decode`."""


def _whole_run(name: str) -> Callable[[], object]:
    import torch

    from benchmarks import decode, train

    torch.manual_seed(0)
    match name:
        case "train_gpt":
            return train.gpt()[train.OURS]
        case "train_translator":
            return train.translator()[train.OURS]
        case _:
            width = 1 if name == "decode_greedy" else decode.BEAM
            return decode.ours(decode.model(), torch.randint(4, decode.SIZE, (decode.BATCH, decode.SOURCE)), width)


def _given(call: Call) -> tuple[Callable[..., dict[str, Any]], Any]:
    """Return two functions: one makes the arguments of `qkv.attention` besides query, key and value, from the tensors
    that the other makes.
    """
    import torch
    from benchmarks.engine.mechanisms import MECHANISMS

    import qkv

    lengths = torch.arange(call.leading[0]) % call.keys + call.keys // 2 + 1
    own: dict[str, dict[str, Any]] = {
        "causal_mean": {"score": qkv.scores.Dot(), "normalizer": qkv.normalizers.Mean(), "mask": qkv.masks.causal()},
        "entmax_3": {"normalizer": qkv.normalizers.Entmax(3.0)},
        "triangular": {"score": qkv.scores.Epanechnikov(12.0, power=1)},
        "lengths": {"mask": qkv.masks.lengths(lengths)},
        "window": {"mask": qkv.masks.window(32, 32)},
        "alibi": {"bias": qkv.biases.alibi(0.1)},
        "yours": {"score": lambda q, k: (q @ k.mT).tanh()},
    }
    if call.mechanism in own:
        return lambda: own[call.mechanism], lambda size: ()
    found = MECHANISMS[call.mechanism]
    return lambda *tensors: {**found.given(*tensors), "dropout": found.dropout}, found.parameters


def _runs(call: Call) -> dict[str, Callable[[], object]]:
    import torch
    from benchmarks.engine.mechanisms import Size

    import qkv

    torch.manual_seed(0)
    dtype = getattr(torch, call.dtype)
    shapes = [(*call.leading, n, call.width) for n in (call.queries, call.keys, call.keys)]
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    given, parameters = _given(call)
    size = Size(call.leading, call.queries, call.keys, call.width, call.width)
    own = [x.detach().to(dtype) for x in parameters(size)]
    learned = [x.clone().requires_grad_() for x in tensors]
    own_learned = [x.clone().requires_grad_() for x in own]
    grad = torch.randn(*shapes[0][:-1], call.width).to(dtype)

    def forward() -> object:
        with torch.no_grad():
            return qkv.attention(*tensors, **given(*own))

    def both() -> object:
        output = qkv.attention(*learned, **given(*own_learned))
        return torch.autograd.grad(output, [*learned, *own_learned], grad, allow_unused=True)

    return {"forward": forward, "both": both}


def serve(threads: int, clock: Callable[[], float]) -> None:
    """Answer each line of standard input with a line of JSON on standard output."""
    import torch

    torch.set_num_threads(threads)
    run: Callable[[], object] = list
    count = 1
    for line in sys.stdin:
        asked = json.loads(line)
        if "call" in asked:
            given = asked["call"]
            run = _whole_run(given) if isinstance(given, str) else _runs(Call(*given))[asked["what"]]
            for _ in range(3):
                run()
            start = clock()
            run()
            count = max(1, int(TURN / (clock() - start)))
        start = clock()
        for _ in range(count):
            run()
        print(json.dumps((clock() - start) / count), flush=True)


class Checkout:
    """A process that times calls in one checkout."""

    def __init__(self, root: Path, threads: int, processor: bool) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
        # `-P`: this file's own folder does not come before those of the checkout.
        command = [sys.executable, "-P", __file__, "--serve", str(threads), *(["--processor"] if processor else [])]
        self._process = subprocess.Popen(
            command, cwd=root, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question: dict[str, Any]) -> float:
        """Return the seconds of one call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{question}: the process ended with status {self._process.wait()}")
        return float(json.loads(answer))


def compare(ours: Checkout, theirs: Checkout, names: Iterable[str], turns: int) -> Iterator[dict[str, Any]]:
    """Yield, for each call, the milliseconds of both checkouts and the quartiles of their ratio."""
    asked = [(name, what) for name in names for what in (PASSES if name in CALLS else ("whole",))]
    for name, what in asked:
        question = {"call": CALLS.get(name, name), "what": what}
        theirs.ask(question)
        ours.ask(question)
        pairs = [(theirs.ask({}), ours.ask({})) for _ in range(turns)]
        low, middle, high = statistics.quantiles((mine / other for other, mine in pairs), n=4)
        before, now = (statistics.median(side) * 1e3 for side in zip(*pairs, strict=True))
        yield {"call": name, "pass": what, "before": before, "now": now, "ratio": [low, middle, high]}


def main() -> None:
    """Compare, print a row per call, store them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?", help="another checkout")
    parser.add_argument("--call", action="append", choices=[*CALLS, *WHOLE], help="these alone")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor", action="store_true", help="processor time on one thread")
    parser.add_argument("--noise", action="store_true", help="compare this checkout with itself")
    parser.add_argument("--write", type=Path, help="store the rows here as JSON")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, time.process_time if given.processor else time.perf_counter)
        return
    if given.other is None and not given.noise:
        parser.error("the other checkout is missing")
    other = ROOT if given.noise else given.other.resolve()
    threads = 1 if given.processor else given.threads
    ours, theirs = Checkout(ROOT, threads, given.processor), Checkout(other, threads, given.processor)
    rows = []
    for row in compare(ours, theirs, given.call or [*CALLS, *WHOLE], given.turns):
        low, middle, high = row["ratio"]
        times = f"{row['before']:9.3f} {row['now']:9.3f} ms"
        print(f"{row['call']:22} {row['pass']:8} {times}   {middle:.2f} [{low:.2f}, {high:.2f}]", flush=True)
        rows.append(row)
    if given.write is not None:
        given.write.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
