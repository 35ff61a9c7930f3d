"""Windows and macOS, as far as Linux can show them: what qkv does in a process without what they lack."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.platforms.names import absent
from tests.platforms.steps import STEPS
from tests.source_rules import SOURCE

ROOT = SOURCE.parent.parent
SYSTEMS = ("win32", "darwin")
OF_BOTH = (
    "attention_is_what_the_equation_says_without_compiled_kernels",
    "links_pipes_and_other_folders_are_refused",
)
"""Steps that the fast suite takes on macOS too, which lacks only what Windows lacks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steps_of(tmp_path_factory, "win32", f"darwin:{','.join(OF_BOTH)}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steps_of(tmp_path_factory, "darwin")


def steps_of(tmp_path_factory: pytest.TempPathFactory, *arguments: str) -> Path:
    folder = tmp_path_factory.mktemp("systems")
    environment = {name: value for name, value in os.environ.items() if name != "QKV_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-m", "tests.platforms.steps", str(folder), *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    systems = [argument.partition(":")[0] for argument in arguments]
    assert all((folder / system / "results.json").exists() for system in systems), done.stderr
    return folder


@pytest.mark.parametrize(
    ("system", "name"), [*(("win32", name) for name in STEPS), *(("darwin", name) for name in OF_BOTH)]
)
def test_without_what_the_system_lacks(folder: Path, system: str, name: str) -> None:
    results = json.loads((folder / system / "results.json").read_text(encoding="utf-8"))
    assert results[name] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_without_what_macos_lacks(whole: Path, name: str) -> None:
    results = json.loads((whole / "darwin" / "results.json").read_text(encoding="utf-8"))
    assert results[name] == ""


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_list_of_names_is_that_of_the_system(system: str) -> None:
    """What CPython's documentation says, for a few names: the list comes from stubs that are read, not imported."""
    names = absent(system)
    here = {"sched_getaffinity", "posix_fadvise", "O_PATH", "memfd_create"}
    posix = {"O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "geteuid", "getuid", "register_at_fork", "fork"}
    assert here <= names["os"]
    assert (posix <= names["os"]) is (system == "win32")
    assert not {"open", "replace", "stat", "getpid", "O_APPEND", "fsync"} & names["os"]
    assert [module for module in ("fcntl", "resource", "termios", "pwd") if names.get(module) == {"*"}] == (
        ["fcntl", "resource", "termios", "pwd"] if system == "win32" else []
    )


def test_the_classifiers_claim_what_the_documentation_says_ran() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| (3\.\d+) \| [^|]+ \| ran: ", page, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = [each.split(" :: ") for each in project["classifiers"]]
    assert {version for _, version in rows} == {last for *first, last in claimed if "Python" in first and "." in last}
    assert {system for system, _ in rows} == {last for *first, last in claimed if "Operating System" in first}
