"""Batches by length among some pairs against batches by length among all: what the translations lose, in BLEU.

A prepared corpus sorts 65,536 pairs at a time, a training from memory all of them. Multi30k has fewer pairs than one
such window, so that the window is made smaller here: 4,096, a seventh of the corpus. Both trainings have the same
settings, seed and number of updates, and hold out about as many pairs. Orders and held-out pairs differ, so the
difference between seeds is shown beside.

    python -m benchmarks.windows FOLDER                         the folder of Multi30k's training and test files
    python -m benchmarks.windows FOLDER --seeds 2 --steps 1000  less of it

Results go to benchmarks/results/windows.json, by processor.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import sacrebleu
from benchmarks.kept import keep

import qkv
from qkv.tasks.corpora import pairs

RESULTS = Path(__file__).parent / "results" / "windows.json"
WINDOW = 4096
SETTINGS: dict[str, Any] = {
    "width": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "heads": 4,
    "feed_forward": 512,
    "batch_tokens": 2048,
}


def score(run: Path, folder: Path) -> float:
    """Return the BLEU of a run's translations of the test set."""
    sources, references = (
        (folder / f"test_2016_flickr.{language}").read_text(encoding="utf-8").splitlines() for language in ("de", "en")
    )
    translations = qkv.load(run, task="translate").translate(sources)
    return round(sacrebleu.corpus_bleu(translations, [references]).score, 2)


def compare(folder: Path, work: Path, seed: int, steps: int) -> dict[str, float]:
    """Train both ways from one seed, and return the BLEU of each; the corpus is prepared by the first call."""
    source, target = folder / "train.de", folder / "train.en"
    qkv.prepare(out=work / "prepared", pairs=True, source=source, target=target, quiet=True)
    settings = {**SETTINGS, "steps": steps, "seed": seed, "quiet": True}
    windows, whole = work / f"windows-{seed}", work / f"whole-{seed}"
    qkv.train("translate", prepared=work / "prepared", out=windows, **settings)
    qkv.train("translate", source=source, target=target, out=whole, **settings)
    return {"sorted in windows": score(windows, folder), "sorted as a whole": score(whole, folder)}


def main() -> None:
    """Train, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    pairs.WINDOW = WINDOW
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as work:
        for seed in range(given.seeds):
            rows.append(compare(given.folder, Path(work), seed, given.steps))
            print(json.dumps(rows[-1]), flush=True)
            keep(RESULTS, {"window": WINDOW, "steps": given.steps, "bleu": rows})


if __name__ == "__main__":
    main()
