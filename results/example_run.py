"""Train the small translator that the package contains: German to English over 500 words, in a minute or two.

    python -m results.example_run             write src/qkv/tasks/example
    python -m results.example_run --judge     measure its weights again, and write the figures

It uses one thread and the seed below. Bits differ between processors; the figures differ very little.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import load, save
from qkv.checkpoint.rotation import locate
from qkv.data.phrases import generate
from qkv.data.tokenizer import Tokenizer
from qkv.tasks.example_run import FOLDER
from qkv.tasks.run import train_run
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE, TranslationSettings

TRAINING, VALIDATION, SEED = 20_000, 500, 0
STEPS = 1500


def main(folder: Path = FOLDER, steps: int = STEPS) -> None:
    """Train, and keep the best checkpoint without the trainer's state."""
    with TemporaryDirectory() as place:
        run = Path(place, "run")
        outcome = train_run(RECIPE, settings_of(Path(place), steps), run)
        if outcome.exit_code:
            raise SystemExit(outcome.exit_code)
        best = load(locate(run), trainer=False)
    shutil.rmtree(folder, ignore_errors=True)
    store(folder, replace(best, trainer=None))


def judge(folder: Path = FOLDER) -> None:
    """Measure stored weights as the training did."""
    contents = load(folder, trainer=False)
    assert contents.tokenizer is not None
    with TemporaryDirectory() as place, torch.no_grad():
        settings = settings_of(Path(place), STEPS)
        task = RECIPE.read(settings, Tokenizer.from_json(contents.tokenizer))
        store(folder, replace(contents, figures=task.validate(Translator.load(folder).model)))


def settings_of(place: Path, steps: int) -> TranslationSettings:
    """Write the sentences to a folder, and return the settings of the training."""
    torch.set_num_threads(1)
    files = {name: place / f"{name}.tsv" for name in ("train", "valid")}
    pairs = generate(TRAINING + VALIDATION, SEED)
    for name, part in (("train", pairs[:TRAINING]), ("valid", pairs[TRAINING:])):
        lines = "".join(f"{pair.source}\t{pair.target}\n" for pair in part)
        files[name].write_text(lines, encoding="utf-8")
    sizes = {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2}
    return RECIPE.load_settings(
        {
            "data": {"data": files["train"], "valid_data": files["valid"]},
            "tokenizer": {"tokenizer": "word", "minimum": 1},
            "model": {"model": "transformer", "dropout": 0.1, **sizes},
            "training": {
                "steps": steps,
                "batch_tokens": 2048,
                "learning_rate": 0.004,
                "warmup": 200,
                "label_smoothing": 0.05,
                "validate_every": max(1, steps // 3),
                "monitor": "exact_match",
                "seed": SEED,
            },
        }
    )


def store(folder: Path, contents: Contents) -> None:
    """Write the checkpoint, and print its figures and its size."""
    save(folder, contents, replace=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(*(f"{figure.name} {figure.value:.4g}" for figure in contents.figures), f"{size / 1000:.0f} kB", sep=", ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--judge", action="store_true", help="measure the weights in the folder again")
    options = parser.parse_args()
    (judge if options.judge else main)(options.folder)
