"""Write requirements.lock: every package of the development environment, pinned with the sum of its file.

    python .ci/lock.py > requirements.lock

The sums are those of the files that this machine's package index gives to this Python on this system.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = """\
# Written by .ci/lock.py for Python {python} on {platform}; install with
#   pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation .
# torch is the CPU build: its file is on https://download.pytorch.org/whl/cpu (--extra-index-url), while PyPI has
# another file, with CUDA, under the same version. For another system or Python, run .ci/lock.py there.
"""


def main() -> None:
    """Ask pip what it would install, and write that."""
    command = ["install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", "-c", "constraints.txt"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command, ".[dev]"], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True
    )
    report = json.loads(done.stdout)
    environment = report["environment"]
    python, platform = environment["python_version"], f"{environment['sys_platform']} {environment['platform_machine']}"
    sys.stdout.write(HEAD.format(python=python, platform=platform))
    for each in sorted(report["install"], key=lambda item: str(item["metadata"]["name"]).lower()):
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        sums = each["download_info"].get("archive_info", {}).get("hashes", {})
        if name != "qkv":
            sys.stdout.write(f"{name}=={version} --hash=sha256:{sums['sha256']}\n")


if __name__ == "__main__":
    main()
