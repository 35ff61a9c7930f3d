"""The cost of the planner's choice against the best backend: all applicable backends, alternating, on one thread.

    python -m benchmarks.choices                           every mechanism and size
    python -m benchmarks.choices --only additive projected

Times are processor time of one thread. Regret is the chosen backend's time over the smallest one: 1 if the choice was
right. Results go to benchmarks/results/choices.json.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.engine.cases import BOTH, FORWARD, Case, make
from benchmarks.engine.comparison import other_backends
from benchmarks.engine.mechanisms import Size
from benchmarks.engine.rows import TABLE, heads
from benchmarks.engine.timing import Patience, by_turns

RESULTS = Path(__file__).parent / "results" / "choices.json"
SIZES = tuple(heads(n) for n in (16, 64, 256, 1024))
STEPS = (
    Size((64,), 1, 50, 256, 256),  # a decoder step
    Size((64,), 20, 20, 256, 256),  # sentences of twenty words
    Size((120,), 1, 17, 256, 1024),  # a step over states of both directions
    Size((16, 8), 1, 512, 64, 64),  # a step over a cache
)
LATE = 5.0
"""A backend whose first call takes more than this many times as long as the fastest one's is not timed further."""
MOST_NUMBERS = 1 << 28
"""A backend that writes more numbers than this is not tried."""


def measure(mechanism: str, size: Size, what: str) -> dict[str, Any]:
    """Return the milliseconds of each backend, and the regret of the chosen one."""
    case = make(mechanism, size)
    chosen = case.plan(what).backend
    names = [chosen, *(name for name in other_backends(case, what) if _possible(name, case))]
    runs = {name: case.run(case.ours(name, case.mechanism.dropout), what) for name in names}
    first = {}
    for name, run in runs.items():
        run()
        start = time.process_time()
        run()
        first[name] = time.process_time() - start
    runs = {name: run for name, run in runs.items() if name == chosen or first[name] < LATE * min(first.values())}
    patience = Patience(0.3, 3, 15)
    times = by_turns(runs, dict.fromkeys(runs, patience), time.process_time)
    ms = {name: round(statistics.median(own), 4) for name, own in times.items()}
    return {
        "mechanism": mechanism,
        "size": str(size),
        "pass": what,
        "chosen": chosen,
        "best": min(ms, key=ms.__getitem__),
        "regret": round(ms[chosen] / min(ms.values()), 2),
        "ms": ms,
    }


def _possible(name: str, case: Case) -> bool:
    pairs = case.size.queries * case.size.keys * torch.Size(case.size.leading).numel()
    return name != "reference" or pairs * case.mechanism.hidden(case.size) <= MOST_NUMBERS


def _sizes(mechanism: str) -> tuple[Size, ...]:
    return STEPS[:-1] if mechanism == "projected" else SIZES + STEPS[-1:] if mechanism != "learned_bias" else SIZES


def _line(row: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {ms:g}" for name, ms in sorted(row["ms"].items(), key=lambda pair: pair[1]))
    return f"{row['regret']:5.2f}  {row['mechanism']}, {row['size']}, {row['pass']}: took {row['chosen']}; {times} ms"


def main() -> None:
    """Measure, print one line per problem, write JSON."""
    mechanisms = ("projected", *TABLE)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=mechanisms, default=mechanisms)
    torch.set_num_threads(1)
    rows = []
    for mechanism in parser.parse_args().only:
        for size in _sizes(mechanism):
            for what in (FORWARD, BOTH):
                row = measure(mechanism, size, what)
                rows.append(row)
                shown = ", ".join(f"{name} {ms:g}" for name, ms in sorted(row["ms"].items(), key=lambda pair: pair[1]))
                print(
                    f"{row['regret']:5.2f}  {mechanism}, {size}, {what}: took {row['chosen']}; {shown} ms", flush=True
                )
    _keep(rows)
    regrets = [row["regret"] for row in rows]
    print(f"{len(rows)} problems, mean regret {statistics.geometric_mean(regrets):.3f}, maximum {max(regrets)}")


def _keep(rows: list[dict[str, Any]]) -> None:
    """Write the rows, and the stored ones of other mechanisms."""
    measured = {row["mechanism"] for row in rows}
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    kept = [row for row in kept if row["mechanism"] not in measured]
    RESULTS.write_text(json.dumps(kept + rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
