"""Commands in the README and the documentation: each exists with its flags."""

import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import commands

from qkv.cli.app import app
from qkv.tasks.exporting import ANSWER

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "src" / "qkv" / "algorithms" / "README.md"]
PROGRAMS = ("qkv", "python", "make", "pip")
SHELL = ("echo", "printf", "head")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def blocks(page: Path) -> list[str]:
    """The lines of a page's blocks that a shell runs."""
    found = re.findall(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for language, block in found if language in ("sh", "") for line in block.splitlines()]
    return [line for line in lines if line.partition(" ")[0] in (*PROGRAMS, *SHELL)]


def mentions(page: Path) -> list[str]:
    """The commands within the sentences of a page, often without what they require."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [code for code in re.findall(r"`([^`\n]+)`", text) if code.partition(" ")[0] in PROGRAMS and " " in code]


def piped(words: list[str]) -> Iterator[list[str]]:
    """Split words at pipes."""
    while "|" in words:
        at = words.index("|")
        yield words[:at]
        words = words[at + 1 :]
    yield words


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) or mentions(page)], ids=lambda page: page.stem)
def test_every_command_exists_with_its_flags(page: Path) -> None:
    given = [(line, True) for line in blocks(page)] + [(line, False) for line in mentions(page)]
    for line, complete in given:
        for program, *words in piped(shlex.split(line, comments=True)):
            match program:
                case "qkv":
                    expect_qkv(words, complete=complete)
                case "python":
                    expect_python(words)
                case "make":
                    assert re.search(rf"^{words[0]}:", MAKEFILE, flags=re.MULTILINE), words
                case "pip":
                    expect_pip(words)


def expect_qkv(words: list[str], *, complete: bool) -> None:
    command: Any = commands(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0].isupper():  # any command
            return
        if words[0] not in command.commands:  # a run, whose task the page says
            break
        command, words = command.commands[words[0]], words[1:]
    # Of the tasks that a run on a page may have, the first whose command has these flags.
    written = {word for word in words if word.startswith("--")}
    candidates = list(command.commands.values()) if command.name == "evaluate" else [command]
    flags = [{"--help", *(name for item in each.params for name in item.opts)} for each in candidates]
    fitting = [each for each, names in zip(candidates, flags, strict=True) if written <= names]
    assert fitting, words
    if complete:
        fitting[0].make_context(command.name, list(words))  # reads them as when it runs
    for flag, file in pairwise(words):
        if flag == "--config" and "/" in file:
            assert (ROOT / file).exists(), file


def expect_python(words: list[str]) -> None:
    if words[0] != "-m":
        made = Path(words[0]).name == ANSWER  # by an export before it
        assert made or (ROOT / words[0]).exists(), words
        return
    name = words[1]
    specs = [importlib.util.find_spec(each) for each in (name, f"{name}.__main__") if name == each or is_package(name)]
    origins = [Path(each.origin) for each in specs if each is not None and each.origin is not None]
    text = "".join(file.read_text(encoding="utf-8") for file in origins)
    assert text, name
    for flag in (word for word in words if word.startswith("--")):
        assert f'"{flag}"' in text, (name, flag)


def is_package(name: str) -> bool:
    found = importlib.util.find_spec(name)
    return found is not None and found.submodule_search_locations is not None


def expect_pip(words: list[str]) -> None:
    for word in words:
        for extra in re.findall(r"^(?:qkv|\.)\[([\w,]+)\]", word):
            assert all(re.search(rf"^{name} = \[", PROJECT, flags=re.MULTILINE) for name in extra.split(",")), word
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).exists()


@pytest.mark.parametrize(
    ("target", "name"), [("test TORCH=oldest", "torch"), ("test-hub", "transformers"), ("test-gpu", "triton")]
)
def test_a_target_installs_the_oldest_release_that_the_project_allows(target: str, name: str, tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    (floor,) = re.findall(rf'"{name}>=([\d.]+)', PROJECT)
    command = ["make", "--dry-run", *target.split(), f"VENV={tmp_path / 'venv'}"]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert re.search(rf"{name}[=>]={re.escape(floor)}\b", lines)
