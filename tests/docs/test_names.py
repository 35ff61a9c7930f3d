"""What prose names exists: names of `qkv`, files, tests, flags and targets of the Makefile.

Prose is every page, and the docstrings and comments of every Python file outside the tests.
"""

import ast
import importlib
import importlib.util
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, get_type_hints

import pytest
from tests.cli.command import commands

from qkv.cli.app import app

ROOT = Path(__file__).parents[2]
FILES = frozenset(
    subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
)
PATHS = FILES | {str(folder) for name in FILES for folder in PurePosixPath(name).parents}
ENDS = frozenset("/".join(parts[at:]) for parts in (path.split("/") for path in PATHS) for at in range(len(parts)))
PAGES = sorted(name for name in FILES if name.endswith(".md"))
CODE = sorted(name for name in FILES if name.endswith(".py") and not name.startswith("tests/"))
GENERATED = frozenset(f"reference/{page}.md" for page in ("api/index", "command_line", "settings"))
"""Pages that `make docs` writes."""

COMMENT = re.compile(r"(?:^ *|  )# (.*)", re.MULTILINE)
OWN = "tests/docs/test_names.py"
NAME = re.compile(r"(?<![\w./@-])qkv(?:\.[A-Za-z_]\w*)+(?![\w-])")
FILE = re.compile(r"(?<![\w./<>*-])(?:\.{1,2}/)*((?:[\w.-]+/)*[\w*-]+\.(?:py|md|yml))\b(?!\w)")
FOLDER = re.compile(
    r"(?<![\w./<>-])(?:src|tests|docs|examples|benchmarks|results|release|\.ci|\.github)/[\w./*-]*[\w*]"
)
TEST = re.compile(r"(?<![\w./])(?:(tests/[\w/]+\.py)::)?(test_\w+)\b(?!\.py)")
FLAG = re.compile(r"(?<![\w,-])--[a-z][a-z-]*[a-z]\b")
TARGET = re.compile(r"`make ([a-z][\w-]*)|^make ([a-z][\w-]*)", re.MULTILINE)

EXCEPT = {
    "docs/reference/files.md": {"qkv.trace"},  # a key of a file's metadata
    "docs/how_to/export.md": {"de-en-onnx/answer.py"},  # of an export
    "results/transduction_data.py": {"scripts/generate_reverse_task.py"},  # of another project
    "benchmarks/products.py": {"benchmarks/results/products.json"},  # written
    "benchmarks/overhead.py": {"benchmarks/results/overhead.svg"},
    "examples/run.py": {"PATH/examples/run.py"},
}
"""What a file names though the repository does not hold it."""

THEIR_FLAGS = {
    "pip": {"--index-url", "--extra-index-url", "--no-build-isolation", "--require-hashes"},
    "git": {"--follow"},
    "torchrun": {"--master-addr", "--master-port", "--nnodes", "--node-rank", "--nproc-per-node", "--standalone"},
    "split": {"--additional-suffix", "--number", "--numeric-suffixes"},
    "Slurm": {"--array", "--cpus-per-task", "--requeue", "--wrap"},
    "parallel": {"--retries"},
}
"""Flags of other programs."""


@cache
def prose(name: str) -> str:
    """A page, or the docstrings and comments of a Python file without their examples."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return text if name.endswith(".md") else "\n".join([*code(name).docstrings, *COMMENT.findall(text)])


class Code(NamedTuple):
    """What the tests read of a Python file: to parse all files takes seconds."""

    docstrings: list[str]
    imports: list[ast.ImportFrom]
    programs: list[str]
    """Strings that import from qkv."""


@cache
def code(name: str) -> Code:
    found = Code([], [], [])
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                plain = re.sub(r"^\s*>>>.*?(?:\n\s*\n|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)
                found.docstrings.append(plain)
            case ast.ImportFrom(level=0, module=str(module)) if module.split(".")[0] == "qkv":
                found.imports.append(node)
            case ast.Constant(value=str(text)) if "import " in text and "qkv" in text:
                found.programs.append(text)
    return found


def imported_by(text: str) -> Iterator[str]:
    """Yield what a string imports if it is a program, to be run in another process."""
    try:
        program = ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return
    for statement in ast.walk(program):
        match statement:
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{name.name}".removesuffix(".*") for name in names)
            case ast.Import(names=names):
                yield from (name.name for name in names)


def resolves(name: str) -> bool:
    """Return whether a dotted name is a module, an attribute, or an annotated field of a class."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError as error:
            # What exists may import a library that is an extra, and not installed.
            of_an_extra = error.name is not None and error.name.partition(".")[0] not in ("qkv", "tests", parts[0])
            if end == len(parts) and of_an_extra and importlib.util.find_spec(name) is not None:
                return True
            continue
        for part in parts[end:]:
            if isinstance(value, type) and not hasattr(value, part) and part in get_type_hints(value):
                return True
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def file_exists(path: str, page: str) -> bool:
    """Return whether a path is the end of one in the repository, or leads somewhere from the page; NAME is any name."""
    pattern = re.sub(r"\b[A-Z]{4,}(?=[./])", "*", path)
    if "*" in pattern:
        return any(fnmatch(end, pattern) for end in ENDS)
    return path in ENDS | GENERATED or (ROOT / page).parent.joinpath(path).exists()


@cache
def suite() -> dict[str, frozenset[str]]:
    """The names of a file of tests, by its path."""
    text = {name: (ROOT / name).read_text(encoding="utf-8") for name in FILES if re.fullmatch(r"tests/.*\.py", name)}
    return {name: frozenset(re.findall(r"^ *(?:def|class) (\w+)", text[name], re.MULTILINE)) for name in text}


def is_a_test(name: str, file: str) -> bool:
    """Return whether there is a test, in a file if one is named, or a file of tests of that name."""
    if file:
        return name in suite().get(file, ())
    return any(name in names or PurePosixPath(path).stem == name for path, names in suite().items())


@cache
def flags() -> frozenset[str]:
    """Flags of the command, of other programs, and of the project's scripts, which write them down as strings."""

    def of(command: Any) -> Iterator[str]:
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        for part in getattr(command, "commands", {}).values():
            yield from of(part)

    strings = (
        re.findall(r'"(--[a-z-]+)"', (ROOT / name).read_text(encoding="utf-8")) for name in {*CODE, *suite()} - {OWN}
    )
    return frozenset({"--help", *of(commands(app)), *(flag for found in strings for flag in found)}).union(
        *THEIR_FLAGS.values()
    )


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def stale(page: str, text: str) -> list[str]:
    """Return what the prose of a file names, and does not exist."""
    named = {*NAME.findall(text)} - EXCEPT.get(page, set())
    paths = {*FILE.findall(text), *FOLDER.findall(text)} - EXCEPT.get(page, set())
    return [
        *(name for name in sorted(named) if not resolves(name)),
        *(path for path in sorted(paths) if not file_exists(path.rstrip("/"), page)),
        *(name for file, name in sorted(set(TEST.findall(text))) if not is_a_test(name, file)),
        *(flag for flag in sorted(set(FLAG.findall(text)) - flags())),
        *(f"make {name}" for pair in sorted(set(TARGET.findall(text))) if (name := "".join(pair)) not in targets()),
    ]


def test_the_table_of_folders_follows_the_rules_of_imports() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["containers"] == ["qkv"])
    level = {name: number for number, layer in enumerate(reversed(layers)) for name in re.findall(r"\w+", layer)}
    table = prose("CONTRIBUTING.md").partition("| in `src/qkv` |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(names) == sorted(level)
    assert [level[name] for name in names] == sorted(level.values())


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    assert stale(page, prose(page)) == []


def test_what_docstrings_and_comments_name_exists() -> None:
    assert {name: names for name in CODE if (names := stale(name, prose(name)))} == {}


def test_what_scripts_import_exists() -> None:
    """Benchmarks and result tables too, which no test runs in full: also what functions import."""
    gone = {}
    for name in CODE:
        for node in code(name).imports:
            missing = [part.name for part in node.names if not resolves(f"{node.module}.{part.name}")]
            gone |= {f"{name}:{node.lineno}": missing} if missing else {}
    assert gone == {}


def test_what_programs_in_strings_import_exists() -> None:
    imported = {
        name: sorted(
            {part for text in code(name).programs for part in imported_by(text) if part.split(".")[0] == "qkv"}
        )
        for name in CODE
    }
    assert "qkv.recording.record" in imported["benchmarks/pages.py"]
    assert {name: gone for name, names in imported.items() if (gone := [x for x in names if not resolves(x)])} == {}


@pytest.mark.parametrize(
    ("gone", "there"),
    [
        ("qkv.nn.Atention", "qkv.nn.Attention"),
        ("qkv.nn.MechanismConfig.scores", "qkv.nn.MechanismConfig.score"),
        ("scores/lookup.py", "scores/catalog.py"),
        ("src/qkv/kernels", "src/qkv/algorithms"),
        ("docs/how_to/trains.md", "docs/how_to/train.md"),
        ("tests/test_functional.py::test_none", "tests/docs/test_names.py::test_what_a_page_names_exists"),
        ("test_nothing_at_all", "test_functional"),
        ("--no-such-flag", "--score"),
        ("`make tests`", "`make test`"),
    ],
)
def test_a_name_that_is_gone_is_seen(gone: str, there: str) -> None:
    assert stale("README.md", f"see {there}, or") == []
    assert stale("README.md", f"see {gone}, or") == [gone.strip("`").rpartition("::")[2]]
