"""The settings of a published model, beside its weights."""

import shutil
from pathlib import Path

from tests.fuzz.oss_fuzz import reading, run

from qkv.hub.families.load import read_folder
from qkv.hub.folder import CONFIG, WEIGHTS, Folder

SOUND = Path(__file__).parents[1] / "hub" / "families" / "llama" / WEIGHTS


def read(path: Path) -> object:
    weights = path.with_name(WEIGHTS)
    if not weights.exists():
        shutil.copy(SOUND, weights)
    return read_folder(Folder(path.parent))


TestOneInput = reading(CONFIG, read)

if __name__ == "__main__":
    run(TestOneInput)
