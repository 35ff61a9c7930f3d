"""Measure rows by name, and write the table into the docs.

    python -m benchmarks.engine                                   every row that is not finished
    python -m benchmarks.engine --row additive_512 --again        one row, measured again
    python -m benchmarks.engine --row translation_rnn --data DIR  a training row; DIR contains the folder multi30k
    python -m benchmarks.engine --list                            the names, and which are finished
    python -m benchmarks.engine --write                           the tables of docs and README, and the plot

Contenders alternate in one run, on two threads in wall time; --cpu uses the processor time of one thread instead, for a
shared machine. Results go row by row to benchmarks/results/engine-PROCESSOR.json.
"""

import argparse
import fnmatch
import os
import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from benchmarks.engine import store
from benchmarks.engine.comparison import Comparison
from benchmarks.engine.page import write_all
from benchmarks.engine.rows import ROWS, Row
from benchmarks.engine.timing import Watch
from benchmarks.engine.training import Training

CLOCKS = {False: (2, time.perf_counter, "two threads"), True: (1, time.process_time, "processor time of one thread")}
"""For `--cpu` or not: threads, clock, and its name on the page."""


def main() -> None:
    """Parse the command line, measure the named rows, store every finished row."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", nargs="+", default=["*"], help="names or patterns such as '*_4096'")
    parser.add_argument("--again", action="store_true", help="measure finished rows again")
    parser.add_argument("--data", type=Path, help="folder with the data sets, for rows that train")
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread")
    parser.add_argument("--seconds", type=float, default=4.0, help="total seconds per contender")
    parser.add_argument("--heads", type=int, help="number of heads instead of eight, to save time")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--write", action="store_true", help="write the docs and the plot from stored results")
    given = parser.parse_args()
    names = [name for name in ROWS if any(fnmatch.fnmatch(name, pattern) for pattern in given.row)]
    if not names:
        parser.error(f"no row is called {', '.join(given.row)}; --list shows all")
    if given.list:
        done = store.read()
        print("\n".join(f"{'done' if name in done else '    '} {name}" for name in names))
    elif given.write:
        write_all()
    else:
        how = How(given.again, given.cpu, given.seconds, given.heads, given.data)
        measure(names, how)


@final
@dataclass(frozen=True)
class How:
    """How rows are measured.

    Attributes:
        again: whether finished rows are measured again.
        cpu: whether to use one thread's processor time, which other programs hardly affect.
        seconds: total seconds per contender.
        heads: number of heads instead of eight.
        data: folder with the data sets.
    """

    again: bool = False
    cpu: bool = False
    seconds: float = 4.0
    heads: int | None = None
    data: Path | None = None


def measure(names: list[str], how: How, path: Path = store.RESULTS) -> None:
    """Measure rows one after another, and store each as soon as it is finished.

    Args:
        names: names of rows.
        how: the clock and the time per contender.
        path: where rows are stored.
    """
    # KeOps reads the OpenMP variable; it has no thread setting of its own.
    threads, clock, kind = CLOCKS[how.cpu]
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    for name in names:
        if how.again or name not in store.read(path):
            print(name, flush=True)
            row = _adapted(ROWS[name], how)
            record = row.measure(lambda line: print(line, flush=True), Watch(clock, how.seconds))
            if "skipped" in record:
                print(f"  skipped: {record['skipped']}")
            else:
                store.keep(name, {**record, "clock": kind, **_circumstances()}, path)


def _adapted(row: Row, how: How) -> Row:
    if isinstance(row, Training):
        return replace(row, data=how.data)
    if how.heads is not None and isinstance(row, Comparison) and row.size.leading == (1, 8):
        return replace(row, size=row.size._replace(leading=(1, how.heads)))
    return row


def _circumstances() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }


if __name__ == "__main__":
    main()
