"""Make small changes to the source, one at a time, and check whether the tests of the changed package fail.

    python -m tests.mutation --count 154 --seed 0 --out mutants.json

The fast tests of each package run once under coverage, unchanged: they must pass, and the run records which test runs
which function. Then each mutant is made in a copy of the project and judged by those of its package's tests that run
its function; a mutant of a compiled kernel first by the test that runs kernels as plain Python. A mutant is killed if a
test fails or takes several times as long. Survivors are printed with their line: each is either the same program in
another form, or a missing test. With `--out`, an interrupted run can be resumed.
"""

import argparse
import json
import shutil
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutation.judge import enter, in_process, judge
from tests.mutation.mutants import PACKAGES, ROOT, Mutant, draw
from tests.mutation.reach import Reach, observe

PARTS = ("src", "tests", "pyproject.toml", "README.md", "constraints.txt", "Makefile", "docs", "examples")


def main(count: int, seed: int, only: str, out: Path | None) -> None:
    chosen = [mutant for mutant in draw(count, seed) if only in mutant.package]
    if not chosen:
        raise SystemExit(f"none of the {count} mutants is in a package with {only!r} in its name: draw more by --count")
    results = json.loads(out.read_text(encoding="utf-8")) if out is not None and out.exists() else []
    known = {result["name"]: result["fate"] for result in results}
    with TemporaryDirectory() as base:
        copy = _copy(Path(base))
        reach = _reach(sorted({mutant.package for mutant in chosen}), copy, out)
        for mutant in chosen:
            if mutant.name not in known:
                known[mutant.name] = judge(mutant, PACKAGES[mutant.package], reach, copy)
                results.append(_result(mutant, known[mutant.name]))
                _say(f"{known[mutant.name]:14} {mutant.name}")
            if out is not None:
                out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fates = Counter(known[mutant.name] for mutant in chosen)
    changed = len(chosen) - fates["no change"]
    _say(f"{fates['killed'] + fates['killed by time']} of {changed} killed: {dict(fates)}")


def _copy(base: Path) -> Path:
    copy = base / "copy"
    for part in PARTS:
        source = ROOT / part
        copy.mkdir(exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / part)
    return copy


def _reach(packages: list[str], copy: Path, out: Path | None) -> Reach:
    """What the tests reach; saved next to the results, since it takes minutes."""
    path = out.with_suffix(".reach.json") if out is not None else copy / "reach.json"
    if not path.exists():
        tests = sorted({test for package in packages for test in (*PACKAGES[package], f"src/qkv/{package}")})

        def look() -> int:
            enter(copy)
            return observe(copy, tests, path.absolute())

        log = copy.parent / "log"
        if in_process(look, 3 * 3600, str(log)) != 0:
            path.unlink(missing_ok=True)
            raise SystemExit(f"the tests fail without any change:\n{log.read_text(encoding='utf-8')[-4000:]}")
    return Reach.read(path)


def _result(mutant: Mutant, fate: str) -> dict[str, object]:
    return {name: value for name, value in asdict(mutant).items() if name != "text"} | {
        "name": mutant.name,
        "fate": fate,
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=154)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="packages with this in their name")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    main(given.count, given.seed, given.only, given.out)
