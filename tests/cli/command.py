"""The command `qkv` as the tests call it: in this process, or in a separate one where that matters."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import typer.testing
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

from qkv.cli.app import app
from qkv.tasks import notes

QKV = Path(sys.executable).parent / "qkv"
WIDE = {"COLUMNS": "200"}
commands = cache(get_command)
"""A process makes its commands once. To make them for each test would take longer than many of these."""
typer.testing._get_command = commands  # type: ignore[attr-defined]
# Messages must not depend on the speed of the machine: tests of progress set the time after which it is reported.
notes.SILENCE = 3600.0


def run(*arguments: str | Path, feed: str | bytes = "") -> Result:
    """Run the command in this process: importing PyTorch for every test would take minutes."""
    return CliRunner(env=WIDE).invoke(app, [str(argument) for argument in arguments], input=feed, prog_name="qkv")


def process(*arguments: str | Path, feed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command as a user does."""
    return subprocess.run(
        [QKV, *arguments], check=False, input=feed, capture_output=True, timeout=180, env=os.environ | WIDE
    )


def succeeded(done: Result) -> Result:
    """Standard output of a command that succeeded; raises with the reason if it failed."""
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done


def refused(done: Result, *words: str) -> None:
    """Check for exit code 2 and one message with these words; re-raise anything but a typed error."""
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
