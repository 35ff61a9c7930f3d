"""Run a command and record wall time, processor time and the load of the machine.

    python -m results.usage FILE.json COMMAND ...

On a shared machine, processor time shows what the wall time would be on a free one.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def run(command: list[str], kept: Path) -> None:
    """Run a command and write its usage to `kept`; the times of a resumed command add up."""
    before = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    start, used = time.monotonic(), _processor_seconds()
    done = subprocess.run(command, check=False)
    seconds = {"wall_seconds": time.monotonic() - start, "processor_seconds": _processor_seconds() - used}
    record = {name: round(value + before.get(name, 0.0), 1) for name, value in seconds.items()}
    record |= {"load": [round(load, 1) for load in os.getloadavg()], "cores": os.cpu_count()}
    record["threads"] = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if done.returncode:
        raise SystemExit(done.returncode)


def _processor_seconds() -> float:
    """Return the processor time of all finished child processes, including those of earlier commands."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run(sys.argv[2:], Path(sys.argv[1]))
