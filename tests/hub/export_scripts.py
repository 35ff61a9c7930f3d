"""Run the script of an export folder in a Python without qkv."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

EXPECTS = {"onnx": ("onnxruntime",), "ctranslate2": ("ctranslate2",), "transformers": ("transformers", "torch")}
"""What the script of each kind of folder imports, besides `tokenizers`."""
ALONE = """
import runpy, sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None  # so that importing it fails
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def answers(folder: Path, to: str, lines: Sequence[str], *arguments: str) -> list[str]:
    """Run the script, isolated from settings and folders of this Python, without libraries that it does not expect."""
    missing = {"qkv", "onnx", "onnxscript", *(name for names in EXPECTS.values() for name in names)} - {*EXPECTS[to]}
    command = [sys.executable, "-I", "-c", ALONE, ",".join(sorted(missing)), str(folder / "answer.py"), *arguments]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
