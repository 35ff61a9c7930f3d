"""Spoils the source a little, again and again, and asks the tests of its room whether they notice.

    python -m tests.mutation --count 154 --seed 0 --out mutants.json

The fast tests of the rooms run once under coverage, without any change: they must pass, and it is seen which of them
run which function. Then each mutant is made in a copy of the project, and judged by those of its room's tests that run
its function; one of a compiled kernel first by the test that runs kernels as plain Python. It is killed where one
fails, or takes several times as long. Survivors are printed with their line: each is either the same program in another
form, or a test that is missing. With `--out` a run that was cut off goes on.
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
from tests.mutation.mutants import ROOMS, ROOT, Mutant, draw
from tests.mutation.reach import Reach, observe

PARTS = ("src", "tests", "pyproject.toml", "README.md", "constraints.txt", "Makefile", "docs", "examples")


def main(count: int, seed: int, only: str, out: Path | None) -> None:
    chosen = [mutant for mutant in draw(count, seed) if only in mutant.room]
    results = json.loads(out.read_text(encoding="utf-8")) if out is not None and out.exists() else []
    known = {result["name"]: result["fate"] for result in results}
    with TemporaryDirectory() as base:
        copy, kept = _copy(Path(base)), Path(base, "kept")
        reach = _reach(sorted({mutant.room for mutant in chosen}), copy, kept, out)
        for mutant in chosen:
            if mutant.name not in known:
                known[mutant.name] = judge(mutant, ROOMS[mutant.room], reach, copy, kept)
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


def _reach(rooms: list[str], copy: Path, kept: Path, out: Path | None) -> Reach:
    """What the tests reach; kept beside the results, since it takes minutes."""
    kept.mkdir()
    path = out.with_suffix(".reach.json") if out is not None else copy / "reach.json"
    if not path.exists():
        tests = sorted({test for room in rooms for test in (*ROOMS[room], f"src/qkv/{room}")})

        def look() -> int:
            enter(copy, kept)
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
    parser.add_argument("--only", default="", help="rooms with this in their name")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    main(given.count, given.seed, given.only, given.out)
