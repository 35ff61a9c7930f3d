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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("systems")
    environment = {name: value for name, value in os.environ.items() if name != "QKV_KERNELS"}
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-m", "tests.platforms.steps", str(folder), *SYSTEMS],
        cwd=ROOT,
        env={**environment, "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert all((folder / system / "results.json").exists() for system in SYSTEMS), done.stderr
    return folder


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_without_what_the_system_lacks(folder: Path, system: str, name: str) -> None:
    results = json.loads((folder / system / "results.json").read_text(encoding="utf-8"))
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


def test_the_classifiers_claim_what_the_readme_says_ran() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| (3\.\d+) \| [^|]+ \| ran: ", readme, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = [each.split(" :: ") for each in project["classifiers"]]
    assert {version for _, version in rows} == {last for *first, last in claimed if "Python" in first and "." in last}
    assert {system for system, _ in rows} == {last for *first, last in claimed if "Operating System" in first}
