"""The demonstration: train a model to read dates as people write them, and show its attention."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.checkpoint.disk import make_folder, replace_file
from qkv.data.corpus import Pair
from qkv.data.dates import splits
from qkv.metrics.matches import exact_match
from qkv.tasks.drawing import alignments
from qkv.tasks.notes import as_json, note, working
from qkv.tasks.run import train_run
from qkv.tasks.streams import write_json
from qkv.tasks.translate.predict import Translation, Translator
from qkv.tasks.translate.recipe import RECIPE
from qkv.view.export import save

STEPS = 500
EXAMPLES = 5
_UNSEEN = 1000


def run_demo(out: Path, seed: int = 0, steps: int | None = None) -> int:
    """Train on generated dates, score on unseen dates, and show what the model attends to.

    Args:
        out: folder for data, model and pictures; an interrupted run resumes.
        seed: random seed.
        steps: number of training steps; None for the default.

    Returns:
        The exit code: 0, or that of the interruption.

    Raises:
        QkvError: the folder cannot be used.
    """
    make_folder(out)
    parts = splits(20_000, 500, _UNSEEN, seed)
    files = {name: out / f"{name}.tsv" for name in ("train", "valid", "unseen")}
    for path, pairs in zip(files.values(), (parts.train, parts.validation, parts.test), strict=True):
        _write(path, pairs)
    run = out / "run"
    command = f"qkv train translate --data {files['train']} --valid-data {files['valid']} --out {run} --model gru …"
    note(f"This is the same as `{command}`:")
    tables: dict[str, dict[str, Any]] = {
        "data": {"data": files["train"], "valid_data": files["valid"]},
        "tokenizer": {"tokenizer": "char"},
        "model": {"model": "gru", "score": "additive", "embedding": 64, "hidden": 128, "attention": 64, "dropout": 0.0},
        "training": {
            "steps": STEPS if steps is None else steps,
            "batch_tokens": 4096,
            "learning_rate": 0.008,
            "schedule": "cosine",
            "warmup": 50,
            "label_smoothing": 0.0,
            "validate_every": 100,
            "log_every": 20,
            "monitor": "exact_match",
            "seed": seed,
        },
    }
    outcome = train_run(RECIPE, RECIPE.load_settings(tables), run)
    if outcome.exit_code == 0:
        _show(Translator.load(run), parts.test, out / "attention.html", run)
    return outcome.exit_code


def _write(path: Path, pairs: Sequence[Pair]) -> None:
    replace_file(path, "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode("utf-8"))


def _show(translator: Translator, unseen: Sequence[Pair], page: Path, run: Path) -> None:
    with working("reading unseen dates"):
        translations = translator.translate_fully([pair.source for pair in unseen])
    exact = exact_match([translation.text for translation in translations], [pair.target for pair in unseen]).value
    examples = translator.translate_fully([pair.source for pair in unseen[:EXAMPLES]], attention=True)
    save(page, alignments(examples))
    if as_json():
        write_json([{"run": str(run), "page": str(page), "exact_match": exact, "unseen": len(unseen)}])
        return
    console = Console()
    for example, pair in zip(examples, unseen, strict=False):
        _print_one(console, example, pair)
    console.print(f"[bold]{exact:.1f}%[/bold] of {len(unseen):,} unseen dates are read correctly.")
    console.print(f"Explore what it attends to: {page}", highlight=False)
    yours = f'echo "Friday, the 13th of June 2031" | {program()} translate {run} --show'
    console.print(f"Try your own: {yours}", highlight=False, soft_wrap=True)


def program() -> str:
    """Return how a shell calls this program: with its folder, if that is not on the search path (`make demo`)."""
    here = shutil.which("qkv", path=os.path.dirname(sys.executable))
    if shutil.which("qkv") is not None or here is None:
        return "qkv"
    with suppress(ValueError):  # on another drive
        here = os.path.relpath(here)
    return subprocess.list2cmdline([here]) if sys.platform == "win32" else shlex.quote(here)


def _print_one(console: Console, translation: Translation, pair: Pair) -> None:
    from qkv.view.console import terminal

    right = "✓" if translation.text == pair.target else f"✗ correct: {pair.target}"
    console.print(f"{translation.source}  →  [bold]{translation.text}[/bold] {right}", highlight=False)
    for alignment in alignments([translation]):
        terminal(alignment, console)
    console.print()
