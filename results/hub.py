"""Keep what the last runs of tests/hub gave, by version of transformers, and write it into the page that quotes it.

make test-hub                                   runs the tests with the oldest and the newest version, and keeps both
python -m results.hub oldest REPORT.xml         keeps one run, from the JUnit report that pytest wrote
"""

import json
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "how_to" / "huggingface.md"
BEGIN, END = "<!-- runs: begin, made by make test-hub -->", "<!-- runs: end -->"
RUNS = ("oldest", "newest")
"""The oldest version that the extra `hub` allows, and the newest one."""


def keep(run: str, report: Path) -> None:
    """Keep the counts of a run, with the day and the versions of this environment."""
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for name in counts:
            counts[name] += int(suite.get(name, 0))
    failed = counts["failures"] + counts["errors"]
    kept = read() | {
        run: {
            "transformers": version("transformers"),
            "torch": version("torch").partition("+")[0],
            "day": date.today().isoformat(),
            "passed": counts["tests"] - failed - counts["skipped"],
            "skipped": counts["skipped"],
            "failed": failed,
        }
    }
    KEPT.write_text(json.dumps({name: kept[name] for name in RUNS if name in kept}, indent=1) + "\n", encoding="utf-8")


def read() -> dict[str, Any]:
    """Return the runs that are kept."""
    runs: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return runs


def written(page: str) -> str:
    """Return a page with the table of the runs that are kept; a version whose run is not kept has no row."""
    head = ("transformers", "torch", "day", "passed", "skipped", "failed")
    rows = [head, ("---",) * len(head), *([str(run[name]) for name in head] for run in read().values())]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
