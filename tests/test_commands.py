"""Commands in the README and the documentation: each exists with its flags, and the main pages run as printed."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.command import run, succeeded
from typer.main import get_command

import qkv
from qkv.cli.app import app
from qkv.nn.attention import Attention

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
    command: Any = get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0].isupper():  # any command
            return
        command, words = command.commands[words[0]], words[1:]
    if complete:
        command.make_context(command.name, list(words))  # reads them as when it runs
    flags = {"--help", *(name for each in command.params for name in each.opts)}
    assert {word for word in words if word.startswith("--")} <= flags, words
    for flag, file in pairwise(words):
        if flag == "--config" and "/" in file:
            assert (ROOT / file).exists(), file


def expect_python(words: list[str]) -> None:
    if words[0] != "-m":
        assert (ROOT / words[0]).exists(), words
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
        for extra in re.findall(r"\[([\w,]+)\]", word):
            assert all(re.search(rf"^{name} = \[", PROJECT, flags=re.MULTILINE) for name in extra.split(",")), word
    if "-c" in words:
        assert (ROOT / words[words.index("-c") + 1]).exists()


NUMBERS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}
FEW = {"translate": 16, "generate": 12, "classify": 8, "tag": 8, "point": 8}
"""Widths of small models, a multiple of the default number of heads."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages name, a few lines each."""
    monkeypatch.chdir(tmp_path)
    pairs = [(f"Ein Hund läuft {a} {b}.", f"A dog runs {NUMBERS[a]} {NUMBERS[b]}.") for a in NUMBERS for b in NUMBERS]
    german, english = ("".join(f"{side}\n" for side in sides) for sides in zip(*pairs, strict=True))
    texts = {
        **{f"{name}.de": german for name in ("train", "test")},
        **{f"{name}.en": english for name in ("train", "test")},
        **{name: "".join(f"{a}\t{b}\n" for a, b in pairs) for name in ("pairs.tsv", "words.tsv")},
        **dict.fromkeys(("plays.txt", "play.txt"), "KING: who goes there?\n" * 300),
        "films.tsv": "good\ta stirring , funny film\nbad\ta dull film\n" * 8,
        "names.conll": "Ada B-PER\nwrote O\nthe O\nfirst O\nprogram O\n\n" * 16,
        "sort.tsv": "30 10 20\t2 3 1\n1 2 3\t1 2 3\n" * 8,
        "rents.csv": "area,rent\n" + "".join(f"{area},{300 + 8 * area}\n" for area in range(60, 90)),
    }
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    seam = Attention()
    with qkv.record(seam) as trace:
        seam(*torch.randn(3, 1, 2, 5, 4))
    trace.save("trace.safetensors")
    return tmp_path


def run_line(line: str) -> None:
    """Run a line as printed, but train two steps of a small model, and write a page where it would serve one."""
    *before, words = piped(shlex.split(line, comments=True))
    if words[0] != "qkv":
        return
    if words[1] == "train" and words[2] in FEW:
        words += ["--steps", "2", "--width", str(FEW[words[2]])]
    if words[1] == "view" and "--export" not in words:
        words += ["--export", "page.html"]
    feed = "".join(f"{given}\n" for name, given in before if name == "echo")
    succeeded(run(*words[1:], feed=feed))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::qkv.tasks.cut.CutWarning")  # two steps teach no end
def test_the_readme_runs_from_top_to_bottom(place: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = blocks(ROOT / "README.md")
    assert len(lines) > 15
    for line in lines:
        run_line(line)
    assert {"dog.html", "curve.svg"} <= {path.name for path in place.iterdir()}
    (later,) = (block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "qkv.load" in block)
    exec(compile(later.replace("steps=200", "steps=2, width=16"), "README.md", "exec"), {"qkv": qkv})
    (exported,) = re.findall(r"`(qkv export [^`]*)`", text)
    run_line(exported)
    run_line("echo 'Ein Hund.' | qkv translate runs/de-en runs/de-en --beam 5 --n-best 3")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "export", "view"])
def test_a_page_runs_from_top_to_bottom(name: str, place: Path) -> None:
    if name == "view":  # after the README
        run_line("qkv train translate --source train.de --target train.en --out runs/de-en --model gru")
        run_line("qkv train generate --text plays.txt --out runs/plays")
    lines = [line for line in blocks(ROOT / "docs" / "how_to" / f"{name}.md") if "war" not in line]
    assert len(lines) > 3
    for line in lines:
        run_line(line)
