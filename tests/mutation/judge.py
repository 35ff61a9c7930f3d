"""Whether the tests of a package detect a mutant: a forked process runs only those that run its function."""

import ast
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import hypothesis  # noqa: F401 - imported once here, for all the processes that are forked
import pytest
import torch
from tests.mutation.mutants import Mutant
from tests.mutation.reach import COMPILED, OPTIONS, Reach

PATIENCE = 900.0
"""Seconds of wall time after which a mutant counts as killed by time."""
PLAIN, PLAIN_SECONDS = "tests/compiled/test_plain.py", 120.0
"""A test of the compiled kernels that runs them as plain Python, without compiling; and its time limit in seconds."""


class Chosen:
    """A pytest plugin: of the collected tests, run these in this order."""

    def __init__(self, names: list[str]) -> None:
        self.place = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )


def judge(mutant: Mutant, own_tests: tuple[str, ...], reach: Reach, copy: Path) -> str:
    """Return the fate of a mutant.

    Args:
        mutant: the mutant.
        own_tests: the tests of its package.
        reach: which of them run what.
        copy: a copy of the project, where the change is made and undone.

    Returns:
        "killed", "killed by time", "survived", "not reached" if no test runs its function, or "no change" if the
        program is the same, e.g. `return None` changed to `return None`.
    """
    if mutant.text == ast.unparse(ast.parse((copy / mutant.path).read_text(encoding="utf-8"))) + "\n":
        return "no change"
    tests = reach.of(mutant, own_tests)
    if not tests:
        return "not reached"
    files = sorted({name.partition("::")[0] for name in tests})
    path = copy / mutant.path
    sound, stamp = path.read_bytes(), path.stat()
    path.write_text(mutant.text, encoding="utf-8")
    try:
        code = in_process(lambda: _run_plain(copy), PLAIN_SECONDS) if PLAIN in files and _compiled(mutant) else 0
        if code == 0:
            code = in_process(lambda: _run(files, list(tests), copy), 60 + 5 * sum(tests.values()))
    finally:
        path.write_bytes(sound)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return {0: "survived", None: "killed by time"}.get(code, "killed")


def _compiled(mutant: Mutant) -> bool:
    return f"/{COMPILED}/" in mutant.path


def _run_plain(copy: Path) -> int:
    """Run the kernels as plain Python: the same program, so the same failures."""
    os.environ["QKV_KERNELS"] = "python"
    enter(copy)
    return int(pytest.main([*OPTIONS, "-x", PLAIN]))


def _run(files: list[str], tests: list[str], copy: Path) -> int:
    enter(copy)
    # A mutant that is no kernel any more is killed here.
    subprocess.run([sys.executable, "-m", "qkv.compiled.build"], check=True)
    return int(pytest.main([*OPTIONS, "-x", *files], plugins=[Chosen(tests)]))


def enter(copy: Path) -> None:
    """Make this process use the copy of the project."""
    os.chdir(copy)
    source = str(copy / "src")
    os.environ |= {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    sys.path[:0] = [source, str(copy)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "qkv")]:
        del sys.modules[name]
    torch.set_num_threads(1)


def in_process(work: Callable[[], int], seconds: float, log: str = os.devnull) -> int | None:
    """The exit code of `work` in a forked process; None if it exceeds its processor time, or hangs."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        code = 1
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + max(PATIENCE, 3 * seconds)
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
