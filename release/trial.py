"""Install the wheel of a folder in a clean environment, and try what a stranger tries first.

    python -m release.trial [dist]

The environment has no Numba and no compiler's output but the wheel's, and nothing of this repository is on its path.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SENTENCE, TRANSLATION = re.findall(
    r'^echo "([^"]*)" \| qkv translate example.*# → (.*)$',
    (ROOT / "README.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)[0]

IMPORT = """
import sys, qkv
assert "site-packages" in qkv.__file__, qkv.__file__
assert qkv.__version__ == sys.argv[1], qkv.__version__
"""
NO_COMPILER = """
import importlib.util
assert importlib.util.find_spec("numba") is None and importlib.util.find_spec("llvmlite") is None
"""
FIRST_CALLS = """
import torch, qkv
torch.manual_seed(0)
query, key, value = torch.randn(3, 2, 4, 300, 32).unbind()
hidden = torch.randn(32)
calls = {
    "softmax": {},
    "additive": {"score": qkv.scores.Additive(hidden), "mask": qkv.masks.causal()},
    "Gaussian": {"score": qkv.scores.Gaussian(4.0)},
    "entmax": {"normalizer": qkv.normalizers.Entmax(1.5)},
    "sorted": {"score": qkv.scores.Concat(hidden, hidden), "normalizer": qkv.normalizers.Mean()},
}
def double(score):
    if isinstance(score, qkv.scores.Additive):
        return qkv.scores.Additive(hidden.double())
    return qkv.scores.Concat(hidden.double(), hidden.double()) if isinstance(score, qkv.scores.Concat) else score
for name, options in calls.items():
    output = qkv.attention(query, key, value, **options)
    judge = {**options, **({"score": double(options["score"])} if "score" in options else {})}
    exact = qkv.attention(query.double(), key.double(), value.double(), backend="reference", **judge)
    plan = qkv.explain(query, key, value, **options)
    print(f"    {name}: {plan.algorithm}, largest error {(output - exact).abs().max():.1e}")
    torch.testing.assert_close(output.double(), exact, rtol=1e-4, atol=1e-4)
"""
KERNELS = """
import torch, qkv
query, key = torch.randn(2, 512, 64).unbind()
plan = qkv.explain(query, key, key, score=qkv.scores.Additive(torch.randn(64)), backend="fused")
print("   ", plan.algorithm)
"""


def main() -> int:
    """Try the wheel; return 0 if everything answers as it should."""
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")
    with tempfile.TemporaryDirectory() as folder:
        return try_wheel(_fitting(dist), Path(folder))


def _fitting(dist: Path) -> Path:
    machine = {"AMD64": "amd64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
    wheels = [path for path in dist.glob("*.whl") if machine in path.name or "-any" in path.name]
    if len(wheels) != 1:
        raise SystemExit(f"{dist}: expected one wheel for {machine}, got {[path.name for path in wheels]}")
    return wheels[0].resolve()


def try_wheel(wheel: Path, folder: Path) -> int:
    """Install a wheel into an environment below a folder, and run each step there.

    Args:
        wheel: the file.
        folder: an empty folder.

    Returns:
        0 if every step ends as it should, else 1.
    """
    home, work = folder / "environment", folder / "work"
    work.mkdir()
    venv.create(home, with_pip=True)
    scripts = home / ("Scripts" if sys.platform == "win32" else "bin")
    python, qkv = str(scripts / "python"), str(scripts / "qkv")
    number = wheel.name.split("-")[1]
    export = ["view", "example", "--export", "page.html"]
    steps: dict[str, tuple[list[str], str, str]] = {
        "install": (
            [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[view]"],
            "",
            "",
        ),
        "no compiler": ([python, "-c", NO_COMPILER], "", ""),
        "import": ([python, "-c", IMPORT, number], "", ""),
        "first calls": ([python, "-c", FIRST_CALLS], "", ""),
        **({"kernels": ([python, "-c", KERNELS], "", "additive.")} if "linux" in wheel.name else {}),
        "qkv --version": ([qkv, "--version"], "", number),
        "qkv translate example": ([qkv, "translate", "example"], f"{SENTENCE}\n", TRANSLATION),
        "qkv view example": ([qkv, *export], "", ""),
    }
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "QKV_"))}
    for title, (command, feed, expected) in steps.items():
        if not _step(title, command, feed, expected, work, environment):
            return 1
    page = work / "page.html"
    print(f"page.html has {page.stat().st_size:,} bytes")
    shutil.rmtree(folder / "work")
    return 0


def _step(title: str, command: list[str], feed: str, expected: str, work: Path, environment: Mapping[str, str]) -> bool:
    began = time.monotonic()
    done = subprocess.run(
        command, input=feed, cwd=work, env=environment, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    fine = done.returncode == 0 and expected in done.stdout
    print(f"{'passed' if fine else 'FAILED'}  {title}, {time.monotonic() - began:.1f} s")
    if title in ("first calls", "kernels") or not fine:
        print(done.stdout.rstrip() + ("" if fine else f"\n{done.stderr}\nexpected: {expected!r}"))
    return fine


if __name__ == "__main__":
    raise SystemExit(main())
