"""Run the tests that judge by errors as on other processors: `make test-processors`.

A processor is simulated by the settings of every library that chooses its code by the processor: PyTorch, MKL, oneDNN
and ours. Each is run on one thread and on two, with several seeds of the inputs; the host with more, in turn on one
thread and on two. A setting that this processor lacks is skipped, with a line that says so. Runs go side by side, as
many as there are cores, and their threads wait without spinning.

    python -m tests.processors [--setting avx2] [--seeds 3] [--minutes 60]
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

JUDGED = (
    "tests/contract/test_exact.py",
    "tests/contract/test_any_call.py",
    "tests/contract/test_criterion.py",
    "tests/contract/test_dtypes.py::test_only_inputs_and_outputs_are_rounded_to_half",
    "tests/contract/test_extremes.py::test_roots_of_distances_are_as_exact_as_the_equation",
    "tests/algorithms/additive/test_factored.py",
    "tests/algorithms/sdpa/test_short.py",
    "tests/algorithms/sdpa/test_flash.py::test_gradients_of_large_scores_keep_the_stated_limit",
    "tests/test_biases.py::test_half_precision_is_as_exact_as_with_the_matrix",
)
"""The tests whose verdict comes from the criterion."""
SEEDS, HOST_SEEDS, THREADS = 3, 20, (1, 2)


@dataclass(frozen=True)
class Setting:
    """A processor: what each library is told, and the processor's flag that it needs."""

    name: str
    needs: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    def environment(self, seed: int, threads: int) -> dict[str, str]:
        counts = {"QKV_TEST_SEED": str(seed), "QKV_TEST_THREADS": str(threads)}
        return {**os.environ, **dict(self.variables), **counts, "OMP_WAIT_POLICY": "PASSIVE"}


def _variables(torch: str, mkl: str, onednn: str, kernels: str) -> tuple[tuple[str, str], ...]:
    return (
        ("ATEN_CPU_CAPABILITY", torch),
        ("MKL_ENABLE_INSTRUCTIONS", mkl),
        ("ONEDNN_MAX_CPU_ISA", onednn),
        ("QKV_KERNELS", kernels),
    )


SETTINGS = (
    Setting("host"),
    Setting("avx512", "avx512f", _variables("avx512", "AVX512", "AVX512_CORE", "x86-64-v4")),
    Setting("avx2", "avx2", _variables("avx2", "AVX2", "AVX2", "x86-64-v3")),
    Setting("sse41", "sse4_1", _variables("default", "SSE4_2", "SSE41", "none")),
)


def flags() -> set[str]:
    """The instruction sets of this processor."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    return next((set(line.split(":")[1].split()) for line in lines if line.startswith("flags")), set())


class Run(NamedTuple):
    """The judged tests once."""

    setting: Setting
    seed: int
    threads: int

    def __str__(self) -> str:
        return f"{self.setting.name:7} seed {self.seed:2} threads {self.threads}"

    def judge(self, until: float) -> bool | None:
        """Run the tests and print their last line, all of it if one failed; None if it is later than `until`."""
        begun = time.monotonic()
        if begun > until:
            return None
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", "not slow", *JUDGED]
        environment = self.setting.environment(self.seed, self.threads)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
        more = f"\n{done.stdout[-6000:]}" if done.returncode else ""
        print(f"{self}: {last[0]} ({time.monotonic() - begun:.0f} s){more}", flush=True)  # noqa: T201
        return done.returncode == 0


def runs(chosen: Iterable[Setting], seeds: int | None) -> list[Run]:
    """Every run: each setting once before any is repeated."""
    settings, common = tuple(chosen), seeds or SEEDS
    every = [Run(setting, seed, n) for seed in range(common) for setting, n in product(settings, THREADS)]
    hosts = [setting for setting in settings if setting.name == "host" and not seeds]
    return every + [Run(host, seed, THREADS[seed % 2]) for host in hosts for seed in range(common, HOST_SEEDS)]


def main() -> None:
    """Run everything, and exit with 1 if any test failed or anything was left out for lack of time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", choices=[setting.name for setting in SETTINGS], default="")
    parser.add_argument("--seeds", type=int, help=f"instead of {SEEDS}, on the host {HOST_SEEDS} in all")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no run after that many")
    parsed = parser.parse_args()
    present, until = flags(), time.monotonic() + 60 * parsed.minutes
    chosen = [setting for setting in SETTINGS if parsed.setting in ("", setting.name)]
    for setting in chosen:
        if setting.needs and setting.needs not in present:
            print(f"{setting.name:7} SKIPPED: this processor has no {setting.needs}", flush=True)  # noqa: T201
    every = runs((setting for setting in chosen if setting.needs in ("", *present)), parsed.seeds)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(lambda run: run.judge(until), every))
    failures, left = verdicts.count(False), verdicts.count(None)
    print(f"{failures} of {len(verdicts)} runs failed, {left} were not started for lack of time.")  # noqa: T201
    sys.exit(failures > 0 or left > 0)


if __name__ == "__main__":
    main()
