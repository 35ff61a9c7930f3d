"""Train the small translator that the package contains: German to English over 500 words, in a minute or two.

    python -m results.example_run         write src/qkv/tasks/example

It uses one thread and the seed below. Bits differ between processors; the figures differ very little.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from qkv.checkpoint.folder import load, save
from qkv.checkpoint.rotation import locate
from qkv.data.phrases import generate
from qkv.tasks.example_run import FOLDER
from qkv.tasks.translate.recipe import RECIPE

TRAINING, VALIDATION, SEED = 20_000, 500, 0
STEPS = 1500


def main(folder: Path = FOLDER, steps: int = STEPS) -> None:
    """Train, and keep the best checkpoint without the trainer's state."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        files = {name: Path(place, f"{name}.tsv") for name in ("train", "valid")}
        pairs = generate(TRAINING + VALIDATION, SEED)
        for name, part in (("train", pairs[:TRAINING]), ("valid", pairs[TRAINING:])):
            lines = "".join(f"{pair.source}\t{pair.target}\n" for pair in part)
            files[name].write_text(lines, encoding="utf-8")
        sizes = {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2}
        settings = RECIPE.load_settings(
            {
                "data": {"data": files["train"], "valid_data": files["valid"]},
                "tokenizer": {"kind": "word", "minimum": 1},
                "model": {"kind": "transformer", "dropout": 0.1, **sizes},
                "training": {
                    "steps": steps,
                    "tokens": 2048,
                    "learning_rate": 0.004,
                    "warmup": 200,
                    "label_smoothing": 0.05,
                    "validate_every": max(1, steps // 3),
                    "monitor": "exact_match",
                    "seed": SEED,
                },
            }
        )
        run = Path(place, "run")
        outcome = RECIPE.train(settings, run)
        if outcome.exit_code:
            raise SystemExit(outcome.exit_code)
        best = load(locate(run), trainer=False)
    shutil.rmtree(folder, ignore_errors=True)
    save(folder, replace(best, trainer=None))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(*(f"{figure.name} {figure.value:.4g}" for figure in best.figures), f"{size / 1000:.0f} kB", sep=", ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    main(parser.parse_args().folder)
