"""Tokens per second with and without another busy process, by number of threads and by how long OpenMP's threads spin.

    python -m benchmarks.beside                          PyTorch's default against what the command line sets
    python -m benchmarks.beside --spins default 0 1000   other values of GOMP_SPINCOUNT

Each setting has its own process, because OpenMP reads the variable when it is loaded; it sleeps while the others
compute. The busy process is stopped and continued in alternation. Results go to benchmarks/results/beside.json.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kept import keep

from qkv.cli.main import SPINS

RESULTS = Path(__file__).parent / "results" / "beside.json"
TURN = 0.3
"""Seconds per turn."""
JOBS = ("train", "decode", "evaluate")
WORDS, LENGTH, PAIRS = 5000, 16, 256
DEFAULT = "default"


def _jobs() -> dict[str, Callable[[], int]]:
    """Return what to measure, each on the model of results/multi30k_transformer.toml: it returns its tokens."""
    import torch

    from qkv.decode.greedy import greedy
    from qkv.models.configs.translator import TransformerConfig
    from qkv.models.translator import TransformerTranslator
    from qkv.training.loss import output_loss
    from qkv.training.optimizer import build_optimizer, clip_gradient
    from qkv.training_settings import Settings

    torch.manual_seed(0)
    model = TransformerTranslator(TransformerConfig(size=WORDS, width=192, heads=4, feed_forward=512, dropout=0.1))
    source, target = torch.randint(4, WORDS, (PAIRS, LENGTH)), torch.randint(4, WORDS, (PAIRS, LENGTH + 1))
    lengths = torch.full((PAIRS,), LENGTH)
    parameters, optimizer = list(model.parameters()), build_optimizer(model, Settings())

    def loss() -> torch.Tensor:
        states = model.states(source, lengths, target[:, :-1])
        total, count = output_loss(states, model.output.weight, model.output.bias, target[:, 1:], 0, smoothing=0.1)
        return total / count

    def train() -> int:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        clip_gradient(parameters, 1.0)
        optimizer.step()
        return PAIRS * LENGTH

    @torch.no_grad()
    def decode() -> int:
        model.eval()
        return sum(len(each.ids) for each in greedy(model, source, lengths, bos=1, eos=2, limit=LENGTH, never=(0,)))

    @torch.no_grad()
    def evaluate() -> int:
        model.eval()
        loss()
        return PAIRS * LENGTH

    return {"train": train, "decode": decode, "evaluate": evaluate}


def serve(threads: int) -> None:
    """Answer each job on standard input with its tokens per second on standard output."""
    import torch

    torch.set_num_threads(threads)
    jobs = _jobs()
    for line in sys.stdin:
        work, tokens, start = jobs[line.strip()], 0, time.perf_counter()
        while time.perf_counter() < start + TURN:
            tokens += work()
        print(tokens / (time.perf_counter() - start), flush=True)


class Setting:
    """A process with a number of threads and a value of GOMP_SPINCOUNT."""

    def __init__(self, threads: int, spins: str) -> None:
        """Start it."""
        kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        chosen = {} if spins == DEFAULT else {"GOMP_SPINCOUNT": spins}
        self.threads, self.spins, self.speeds = threads, spins, dict[tuple[str, bool], list[float]]()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.beside", "--serve", str(threads)],
            env={**kept, **chosen, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self, job: str) -> float:
        """Return the tokens per second of a turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(job, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{job}: the process ended with status {self._process.wait()}")
        return float(answer)


@contextmanager
def _busy_process() -> Iterator[Callable[[bool], None]]:
    """Start a process that only computes; the function stops and continues it."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield lambda busy: process.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
    finally:
        process.kill()
        process.wait()


def measure(settings: list[Setting], turns: int) -> None:
    """Fill in the speeds of all settings, in alternation."""
    with _busy_process() as let_compute:
        let_compute(False)
        for setting in settings:
            for job in JOBS:
                setting.turn(job)
        for _ in range(turns):
            for job in JOBS:
                for busy in (False, True):
                    let_compute(busy)
                    for setting in settings:
                        setting.speeds.setdefault((job, busy), []).append(setting.turn(job))


def report(settings: list[Setting]) -> list[dict[str, Any]]:
    """Return a row per setting, job and load: median tokens per second, and the share of the best setting."""
    rows = []
    for job in JOBS:
        for busy in (False, True):
            speeds = {setting: statistics.median(setting.speeds[job, busy]) for setting in settings}
            for setting, speed in speeds.items():
                said = {"job": job, "busy": busy, "threads": setting.threads, "spins": setting.spins}
                share = round(speed / max(speeds.values()), 2)
                rows.append({**said, "tokens_per_second": round(speed), "share_of_best": share})
    return rows


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spins", nargs="+", default=[DEFAULT, SPINS], help="values of GOMP_SPINCOUNT")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    settings = [Setting(1, given.spins[0]), *(Setting(2, spins) for spins in given.spins)]
    measure(settings, given.turns)
    rows = report(settings)
    for row in rows:
        beside = "beside a busy process" if row["busy"] else "alone"
        setting = f"{row['threads']} threads, {row['spins']:>8} spins"
        print(
            f"{row['job']:9} {beside:22} {setting} {row['tokens_per_second']:8,} tokens/s {row['share_of_best']:5.2f}"
        )
    keep(RESULTS, {"cores": os.cpu_count(), "rows": rows})


if __name__ == "__main__":
    main()
