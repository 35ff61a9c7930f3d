"""Windows and macOS, as far as Linux can show them: what qkv does in a process without what they lack."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fuzz.test_source import FILES, SOURCE
from tests.platforms.names import absent
from tests.platforms.steps import STEPS

ROOT = SOURCE.parent.parent
SYSTEMS = ("win32", "darwin")
# Modules that ask whether a name is there; every other one leaves the differences to qkv.system.
ALLOWED = {
    "system.py": {"os.ST_RDONLY", "os.geteuid", "os.statvfs", "fcntl"},
    "forks.py": {"os.register_at_fork"},
    "compiled/thread_pool.py": {"os.register_at_fork"},
    "compiled/target.py": {"sys.abiflags"},
}


@pytest.fixture(scope="module", params=SYSTEMS)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp(request.param)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-m", "tests.platforms.steps", request.param, str(folder)],
        cwd=ROOT,
        env={**environment, "PYTHONUTF8": "0", "QKV_QUIET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "results.json").exists(), done.stderr
    read: dict[str, str] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return read


@pytest.mark.parametrize("name", STEPS)
def test_without_what_the_system_lacks(results: dict[str, str], name: str) -> None:
    assert results[name] == ""


def used(tree: ast.AST) -> Iterator[str]:
    """Yield the names of modules that a source uses, as `os.fork`, and the modules that it imports."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                yield f"{module}.{name}"
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module, *(f"{module}.{each.name}" for each in names))
            case ast.Import(names=names):
                yield from (each.name for each in names)


def lacking(tree: ast.AST) -> set[str]:
    """Return what a source uses that Windows or macOS lacks."""
    gone = set()
    for system in SYSTEMS:
        for module, names in absent(system).items():
            gone |= {module} if "*" in names else {f"{module}.{name}" for name in names}
    return set(used(tree)) & gone


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_one_module_uses_what_a_system_lacks(path: Path) -> None:
    place = path.relative_to(SOURCE).as_posix()
    assert lacking(ast.parse(path.read_text(encoding="utf-8"))) <= ALLOWED.get(place, set())


@pytest.mark.parametrize(
    "text",
    [
        *("os.fork()", "os.open(x, os.O_NOFOLLOW)", "from os import fchmod", "import fcntl", "from resource import x"),
        *("signal.SIGKILL", "os.sched_getaffinity(0)", "import termios", "import pwd", "os.geteuid()", "time.tzset()"),
    ],
)
def test_the_search_finds_each(text: str) -> None:
    assert lacking(ast.parse(text))
