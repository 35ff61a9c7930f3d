"""What a command used: summed over resumptions, without other commands."""

import json
import sys
from pathlib import Path

from results.usage import run

_BUSY = "import time\nwhile time.process_time() < 0.4: pass"


def test_each_command_is_charged_its_own_processor_time(tmp_path: Path) -> None:
    run([sys.executable, "-c", _BUSY], tmp_path / "busy.json")
    run([sys.executable, "-c", "pass"], tmp_path / "idle.json")
    busy, idle = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("busy", "idle"))
    assert busy["processor_seconds"] >= 0.4 > idle["processor_seconds"]


def test_going_on_adds_up(tmp_path: Path) -> None:
    run([sys.executable, "-c", _BUSY], tmp_path / "busy.json")
    run([sys.executable, "-c", _BUSY], tmp_path / "busy.json")
    assert json.loads((tmp_path / "busy.json").read_text())["processor_seconds"] >= 0.8
