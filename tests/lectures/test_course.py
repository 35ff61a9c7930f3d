"""The lectures page links to names that exist, and examples run by their names."""

import ast
import re
import runpy
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "project" / "lectures.md"
LINKS = re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8"))


def test_examples_run_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As documented: by name, with figures in a folder of the reader's, and nothing that is tracked overwritten."""
    command = [sys.executable, ROOT / "examples" / "run.py", "lookup"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [str(command[1]), "lookup", "--out", "figures"])
    runpy.run_path(str(command[1]), run_name="__main__")
    for folder in ("pictures", "figures"):
        assert [path.name for path in (tmp_path / folder).iterdir()] == ["lookup.svg"]


def test_an_unknown_example_is_told_the_names(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "run.py", "kernel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'Did you mean "kernels"?' in done.stderr


def test_every_script_of_the_examples_has_a_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    helpers = ("drawing", "run", "__init__")
    names = {path.stem for path in (ROOT / "examples").rglob("*.py") if path.stem not in helpers}
    assert set(done.stderr.removeprefix("Give the name of an example. There are ").strip(".\n").split(", ")) == names


@lru_cache
def names(path: Path) -> set[str]:
    """Functions, classes, and methods as `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_every_name_on_the_page_is_where_its_link_leads() -> None:
    named = [(label.strip("`"), target) for label, target in LINKS if label.startswith("`") and target.endswith(".py")]
    assert len(named) > 100
    for name, target in named:
        assert name in names((PAGE.parent / target).resolve()), f"{name} in {target}"


def test_every_row_leads_somewhere() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) > 100
    headings = {index - 1 for index, line in enumerate(rows) if line.startswith("| ---")}
    for index, row in enumerate(rows):
        if index not in headings and not row.startswith("| ---"):
            assert "](" in row, row


def test_every_chapter_is_on_the_page() -> None:
    chapters = {f"../course/{path.name}" for path in (ROOT / "docs" / "course").glob("[0-9]_*.md")}
    assert chapters <= {target for _, target in LINKS}
