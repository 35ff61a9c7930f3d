"""What a command used: summed over resumptions, without other commands."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from results.usage import run


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The processor time of all child processes so far, by a clock that only the commands of the test advance."""
    total = SimpleNamespace(ru_utime=7.0, ru_stime=3.0)

    def execute(command: list[str], *, check: bool) -> "subprocess.CompletedProcess[bytes]":
        total.ru_utime += float(command[-1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(**vars(total)))
    monkeypatch.setattr(subprocess, "run", execute)
    return total


def processor_seconds(file: Path) -> float:
    return float(json.loads(file.read_text())["processor_seconds"])


def test_each_command_is_charged_its_own_processor_time(tmp_path: Path) -> None:
    run([sys.executable, "0.4"], tmp_path / "busy.json")
    run([sys.executable, "0"], tmp_path / "idle.json")
    assert [processor_seconds(tmp_path / f"{name}.json") for name in ("busy", "idle")] == [0.4, 0.0]


def test_resumptions_add_up(tmp_path: Path) -> None:
    run([sys.executable, "0.4"], tmp_path / "busy.json")
    run([sys.executable, "0.3"], tmp_path / "busy.json")
    assert processor_seconds(tmp_path / "busy.json") == 0.7
