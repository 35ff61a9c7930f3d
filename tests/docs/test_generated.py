"""Pages that scripts write from stored results are what the scripts would write.

Prose that is edited on one side only would be lost, or would come back, when somebody measures again.
"""

import json
from pathlib import Path

from benchmarks.engine import page as engine
from benchmarks.kept import read
from benchmarks.launches import __main__ as launches
from results.table import write_table

from benchmarks import first_calls, memory, overhead
from results import hub

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_page_of_memory_is_what_its_script_writes() -> None:
    rows, trainings = (json.loads(text(path)) for path in (memory.RESULTS, memory.TRAINING))
    assert text(memory.PAGE) == memory.page(rows) + memory.training_table(trainings)


def test_the_page_of_first_calls_is_what_its_script_writes() -> None:
    assert text(first_calls.PAGE) == first_calls.page(read(first_calls.RESULTS))


def test_the_page_of_launches_is_what_its_script_writes() -> None:
    assert text(launches.PAGE) == launches.page(json.loads(text(launches.RESULTS)))


def test_the_page_of_results_is_what_its_script_writes(tmp_path: Path) -> None:
    write_table(tmp_path / "results.md")
    assert text(DOCS / "project" / "results.md") == text(tmp_path / "results.md")


def test_the_tables_of_benchmarks_are_what_their_scripts_write(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    before = text(engine.PAGE)
    measured = engine.store.every()
    page.write_text(engine.insert(before, engine.generated(next(iter(measured.values())))), encoding="utf-8")
    overhead.write(page)
    assert text(page) == before
    for path, table in engine.summaries(measured).items():
        assert engine.insert(text(path), table) == text(path)


def test_the_page_of_transformers_shows_the_runs_that_were_made() -> None:
    assert text(hub.PAGE) == hub.written(text(hub.PAGE))
    pyproject = text(ROOT / "pyproject.toml")
    assert f'"transformers>={hub.read()["oldest"]["transformers"].removesuffix(".0")}"' in pyproject
    assert all(run["failed"] == 0 < run["passed"] for run in hub.read().values())
