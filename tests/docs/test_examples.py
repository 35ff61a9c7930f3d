"""Every example of README and documentation runs in its page's order, prints what the page shows, and is right."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.docs.corpora import write_files
from tests.docs.examples import (
    ANSWERS,
    ARROW,
    ROOT,
    Block,
    Shell,
    as_literal,
    blocks,
    commands,
    run_code,
    split_comment,
    train_small,
)

import qkv

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_A_SHELL = {"scale", "serve"}
"""Pages for several processes: `tests/test_documents.py` and `tests/serving/test_page.py` run them in a shell."""
MEASUREMENTS = {"planner"}
"""Pages whose commands are the benchmarks."""
EXAMPLES = [page for page in PAGES if blocks(page, "python", "sh", "")]
QUICK = {"README", "classify"}
"""Of the pages that train a model by a command, those of the fast suite."""


def _parameters() -> list[Any]:
    trains = [page for page in EXAMPLES if any("qkv train" in block.text for block in blocks(page, "sh"))]
    slow = {page for page in trains if page.stem not in QUICK}
    return [pytest.param(page, marks=[pytest.mark.slow] * (page in slow), id=page.stem) for page in EXAMPLES]


@cache
def _trainings() -> dict[str, str]:
    """The first command of each run's name, from all pages: what pages that only use the run rely on."""
    first: dict[str, str] = {}
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.text.splitlines():
                if match := re.match(r"qkv train .*--out (runs/\S+)", line):
                    first.setdefault(match[1], line)
    return first


@pytest.mark.parametrize("page", _parameters())
@pytest.mark.filterwarnings("ignore::qkv.tasks.length.CutWarning")
def test_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, with small models; what models say is judged."""
    if "transformers import" in page.read_text(encoding="utf-8"):
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    shell, scope = Shell(monkeypatch), dict[str, Any]()
    monkeypatch.setattr(qkv, "train", train_small)
    for block in blocks(page, "python", "sh", "toml", ""):
        match block.language:
            case "python":
                run_code(block, page, scope)
            case "toml":
                name = re.findall(r"--config (\w+\.toml)", page.read_text(encoding="utf-8"))[0]
                Path(name).write_text(block.text, encoding="utf-8")
            case _ if page.stem not in IN_A_SHELL | MEASUREMENTS and block.text.startswith(("qkv", "echo", "python")):
                for command in commands(block):
                    _train_before(command.words, shell)
                    shell.run(command)


def _train_before(words: list[str], shell: Shell) -> None:
    """Train the runs that a command uses, and that other pages train."""
    for word in words:
        if re.fullmatch(r"runs/[\w-]+", word) and word not in shell.trained and words[1] != "train":
            (command,) = commands(Block("sh", _trainings()[word], 0))
            shell.run(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_shown_stands_behind_an_arrow(page: Path) -> None:
    """A comment that is a value, behind an expression, would not be compared with it."""
    for block in blocks(page, "python"):
        lines = block.text.splitlines()
        for statement in ast.parse(block.text).body:
            comment = lines[(statement.end_lineno or 1) - 1].encode()[statement.end_col_offset or 0 :].decode()
            text = comment.strip().removeprefix("#").strip()
            if text and isinstance(statement, ast.Expr):
                with pytest.raises(ValueError):
                    as_literal(text)
    for block in blocks(page, "sh"):
        for line in block.text.splitlines():
            code, comment = split_comment(line)
            if re.search(rf"qkv ({'|'.join(ANSWERS)}) ", code) and "train" not in code:
                assert not comment or comment.startswith(ARROW) or not re.search(r"\d|\.$", comment), line


def test_what_is_shown_is_compared() -> None:
    page = Path("page.md")
    run_code(Block("python", "x = [1, 2]\nx  # → [1, 2]\nprint('a')  # → a\nsum(x) / 9  # → 0.33\n", 1), page, {})
    run_code(
        Block(
            "python", "import torch\ntorch.ones(2, 3)  # → (2, 3): rows, columns\nprint(1, '\\n2')\n# → 1 \n# → 2\n", 1
        ),
        page,
        {},
    )
    for wrong in ("x = 1  # → 2", "print('a')  # → b", "[0.5]  # → [0.51]", "print(1)\n# → 1\n# → 2", "2  # → 'a'"):
        with pytest.raises(AssertionError):
            run_code(Block("python", wrong, 1), page, {})


def test_the_first_code_of_the_readme_is_short() -> None:
    first, *_ = blocks(ROOT / "README.md", "python")
    assert len(first.text.splitlines()) <= 10
