"""Bytes by purpose of a training, that of results/multi30k_transformer.toml: its peak, and what the peak consists of.

    python -m benchmarks.training_memory --data ../shared/data/multi30k --steps 520
    python -m benchmarks.memory --write                                      the table in docs/understanding/memory.md

Resident memory of one process that trains as the command line does. After the training, free pages are returned and the
peak is reset, and one more update and one more validation show what each takes for itself. Results go to
benchmarks/results/training_memory.json, a row for each precision.
"""

import argparse
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

from benchmarks.kept import processor

from qkv.cli.main import set_defaults
from qkv.tasks.run import train_run

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "training_memory.json"
CONFIG = ROOT / "results" / "multi30k_transformer.toml"


def _mib(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def _taken(limit: Any, run: Any) -> tuple[float, float]:
    """Return resident memory without free pages before a function runs, and how much its peak is above that."""
    limit.release()
    before = _mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    run()
    return before, _mib("VmHWM") - before


def measure(data: Path, steps: int, precision: Literal["float32", "bfloat16"]) -> dict[str, Any]:
    """Train in this process, and return MiB by purpose."""
    import torch

    from qkv.linalg.heap import GrowthLimit
    from qkv.settings import merge, read_toml
    from qkv.tasks.translate.recipe import RECIPE
    from qkv.training import trainer
    from qkv.training.precision import computing

    train = trainer.train
    row: dict[str, Any] = {"updates": steps, "precision": precision}

    def trained(task: Any, model: Any, settings: Any, **given: Any) -> Any:
        row["libraries and data"] = _mib("VmRSS")
        outcome = train(task, model, settings, **given)
        row["peak"], row["updates"] = _mib("VmHWM"), outcome.step
        batch = task.collate(
            max(task.batches(tokens=settings.batch_tokens, seed=0, epoch=0), key=len), torch.device("cpu")
        )

        def update() -> None:
            model.zero_grad(set_to_none=True)
            with computing(precision, torch.device("cpu")):
                loss, _ = task.objective(model, batch)
            loss.backward()

        update()
        gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None) / 2**20
        weights = sum(p.nbytes for p in model.parameters()) / 2**20
        moments = (outcome.checkpoint / "trainer.safetensors").stat().st_size / 2**20
        row["weights, gradients, moments"] = weights + gradients + moments
        limit = GrowthLimit()
        before, row["one update"] = _taken(limit, update)
        model.eval()
        with torch.no_grad():
            _, row["one validation"] = _taken(limit, lambda: task.validate(model))
        row["compiled code and products"] = before - row["libraries and data"] - row["weights, gradients, moments"]
        return outcome

    trainer.train = trained
    given = {
        "data": {name: str(data / file) for name, file in _FILES.items()},
        "training": {"steps": steps, "validate_every": steps, "precision": precision},
    }
    settings = RECIPE.load_settings(merge(read_toml(CONFIG), given))
    with tempfile.TemporaryDirectory() as folder:
        train_run(RECIPE, settings, Path(folder) / "run")
    row |= {"capacity": os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], "threads": torch.get_num_threads()}
    return {name: round(value) if isinstance(value, float) else value for name, value in row.items()}


_FILES = {"source": "train.de", "target": "train.en", "valid_source": "val.de", "valid_target": "val.en"}


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "multi30k")
    parser.add_argument("--steps", type=int, default=520)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args()
    set_defaults()
    row = measure(given.data, given.steps, given.precision)
    row["processor"] = processor()
    print(json.dumps(row, indent=1))
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    merged = {(each["processor"], each["precision"]): each for each in [*known, row]}
    RESULTS.write_text(json.dumps(list(merged.values()), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
