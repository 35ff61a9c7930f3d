"""What is imported to answer: the model of the run, and nothing that trains or belongs to another task."""

import subprocess
import sys

PROGRAM = """
import sys
import qkv
print(type(qkv.load("example").model).__name__)
print(*(name for name in sys.modules if name.startswith("qkv.")))
"""
OTHERS = (
    "training",
    "recording",
    "hub.families",
    "cli",
    "models.monotonic",
    "models.recurrent_translator",
    "decode.beam",
    "view",
)
MOST = 230
TASKS = ("generate", "classify", "tag", "point", "regress", "prepare")


def test_loading_a_run_imports_its_own_task_and_no_training() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    model, names = done.stdout.splitlines()
    assert model == "TransformerTranslator"
    loaded = set(names.split())
    assert len(loaded) <= MOST
    assert {"qkv.models.translator", "qkv.tasks.translate.predict"} <= loaded
    unwanted = {f"qkv.{name}" for name in OTHERS} | {f"qkv.tasks.{name}" for name in TASKS}
    assert not loaded & unwanted
    assert not [name for name in loaded if name.endswith(".recipe")]
