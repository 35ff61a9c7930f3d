"""Read many corrupted files of every kind: `python -m tests.fuzz --mutations 200000`.

Prints a table, and every fault with the key that reproduces it: `python -m tests.fuzz --again "KEY"`. With `--out` the
table is saved after each kind of file, and an interrupted run resumes after the kinds that are done.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.fuzz.campaign import Tally, try_target
from tests.fuzz.targets import targets


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(mutations: int, seed: int, only: str, out: Path | None) -> int:
    chosen = [target for target in targets() if only in target.name]
    shares = sum(target.share for target in chosen)
    start, tallies = time.monotonic(), list[Tally]()
    ended = _ended(out, seed)
    for target in chosen:
        count = -(-mutations * target.share // shares)
        tally = ended.get((target.name, count)) or try_target(target, count, seed)
        tallies.append(tally)
        if out is not None:
            out.write_text(json.dumps({"seed": seed, "kinds": [vars(tally) for tally in tallies]}, indent=1) + "\n")
        say(
            f"{tally.name:32} {tally.tried:8,} tried  {tally.refused:8,} refused  "
            f"{tally.slowest:6.3f} s at most  {len(tally.faults)} faults"
        )
        for fault in tally.faults[:5]:
            say(f"    {fault}")
    faults = sum(len(tally.faults) for tally in tallies)
    tried = sum(tally.tried for tally in tallies)
    say(f"{tried:,} spoilt files, {faults} faults, seed {seed}, {time.monotonic() - start:,.0f} s")
    return 1 if faults else 0


def _ended(out: Path | None, seed: int) -> dict[tuple[str, int], Tally]:
    """The kinds that an earlier run completed, by name and count."""
    if out is None or not out.exists():
        return {}
    kept = json.loads(out.read_text())
    tallies = [Tally(**kind) for kind in kept["kinds"]] if kept["seed"] == seed else []
    return {(tally.name, tally.tried): tally for tally in tallies}


def again(key: str) -> int:
    """Repeat one attempt in this process, with its traceback."""
    name = key.partition(":")[0]
    (target,) = [target for target in targets() if target.name == name]
    with TemporaryDirectory() as base:
        inside = Path(base, "inside")
        inside.mkdir()
        say(repr(target.make(inside)(Random(key))))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets with this in their name")
    parser.add_argument("--out", type=Path, help="keep the tallies as JSON, and go on with those of it")
    parser.add_argument("--again", help="the key of a fault")
    given = parser.parse_args()
    sys.exit(again(given.again) if given.again else main(given.mutations, given.seed, given.only, given.out))
