"""A plugin of pytest that writes down every refusal that a test expects: typed errors, and messages of commands.

It is loaded by `python -m tests.golden`, in each worker; the folder is named by the environment.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from _pytest.raises import RaisesExc
from click.testing import Result
from typer.testing import CliRunner

from qkv.errors import QkvError

FOLDER = "QKV_GOLDEN_REFUSALS"
BAD_INPUT = 2
_TEMPORARY = re.compile(r"/[^\s\"']*?/pytest-of-[^/]+/pytest-\d+(/popen-gw\d+)?")
_VARYING = re.compile(r"0x[0-9a-f]{8,}|/dev/shm/\S+|/tmp/\S+|127\.0\.0\.1:\d+|process \d+")
_REFUSALS: set[str] = set()


def add(*parts: object) -> None:
    """Write down a refusal, without what changes from run to run."""
    _REFUSALS.add(_VARYING.sub("_", _TEMPORARY.sub("@", " | ".join(map(str, parts)))))


def pytest_configure() -> None:
    """Watch what `pytest.raises` catches, and what commands print before they exit with 2."""
    leave, invoke = RaisesExc.__exit__, CliRunner.invoke

    def watched_exit(self: Any, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, QkvError):
            add(type(error).__name__, error.argument, error.expected, error.got, error.hint)
        return leave(self, kind, error, trace)

    def watched_invoke(self: CliRunner, *arguments: Any, **options: Any) -> Result:
        done = invoke(self, *arguments, **options)
        if done.exit_code == BAD_INPUT:
            add("command", *(line for line in done.stderr.splitlines() if line.startswith("qkv: ")))
        return done

    RaisesExc.__exit__ = watched_exit  # type: ignore[method-assign]
    CliRunner.invoke = watched_invoke  # type: ignore[method-assign]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the refusals of this worker."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "main")
    (Path(os.environ[FOLDER]) / f"{name}.json").write_text(json.dumps(sorted(_REFUSALS)), encoding="utf-8")
