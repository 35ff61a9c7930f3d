"""The command `qkv` as the tests call it: within this process, or as a process of its own where that is what counts."""

import os
import subprocess
import sys
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from qkv.cli.main import app

QKV = Path(sys.executable).parent / "qkv"
WIDE = {"COLUMNS": "200"}


def run(*arguments: str | Path, feed: str | bytes = "") -> Result:
    """The command within this process: importing PyTorch anew for each test would take minutes."""
    return CliRunner(env=WIDE).invoke(app, [str(argument) for argument in arguments], input=feed, prog_name="qkv")


def process(*arguments: str | Path, feed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command as a user starts it."""
    return subprocess.run(
        [QKV, *arguments], check=False, input=feed, capture_output=True, timeout=180, env=os.environ | WIDE
    )


def succeeded(done: Result) -> Result:
    """What ended well; of what did not, the reason."""
    assert done.exit_code == 0, (done.stderr, done.exception)
    return done


def refused(done: Result, *words: str) -> None:
    """It ends with exit code 2, and one message that has these words; anything but a typed error is raised again."""
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
