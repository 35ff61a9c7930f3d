"""Text classification rows: trained from several seeds by `qkv train classify`, scored by accuracy."""

import json
import os
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from qkv.data.labeled import read_labeled
from qkv.metrics.matches import accuracy
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.drawing import alignments
from qkv.tasks.load import load
from qkv.view.export import save
from results.row import QKV, ROOT, ResultRow
from results.usage import run as timed

_SHOWN = 8


@dataclass(frozen=True)
class LabelRow(ResultRow):
    """One line of the table.

    Args:
        name, what: as for any row.
        train, test: files below the data folder, label<TAB>text on each line.
        published: published figures, as text.
        source: where the published figures are from.
        asked: the target, as text.
        seeds: seeds of the trainings.
        held_out: how many training texts each seed holds out, different ones for each seed.
        note: further notes for the reader.
    """

    train: Path
    test: Path
    published: str
    source: str
    asked: str
    seeds: tuple[int, ...]
    held_out: int
    note: str
    tried: str


ROWS = (
    LabelRow(
        "sst2",
        "Sentiment of film reviews (SST-2), sentences only",
        Path("sst2", "train.tsv"),
        Path("sst2", "dev.tsv"),
        "74.5 to 81.5 %",
        "Doragd/Text-Classification-PyTorch (74.5) and peithous/pytorch-BinClass-intro (77 to 81.5): models trained on "
        "the 6,920 sentences only, without phrases or pretrained vectors, scored on the test part",
        "80 (aim 82)",
        (0, 1, 2),
        200,
        "Settings were chosen with a tenth of the training sentences held out. For the final runs each seed holds out "
        "200 different sentences, only to monitor training. The weights after the last step are scored once, on the "
        "872 development sentences.",
        """Networks compared on one held-out tenth (seed 0); the standard error of each accuracy is 1.5 points:

| network | accuracy | loss of the best checkpoint |
|---|---|---|
| width 128, dropout 0.5, word dropout 0.3 | 79.9 | 0.439 |
| the same, lower-cased | 79.5 | 0.448 |
| the same, LSTM | 80.5 | 0.443 |
| width 256, dropout 0.6, word dropout 0.4 | 81.1 | 0.428 |
| the same, embeddings added to the states | **81.6** | 0.427 |

What was added to the last of these, on three held-out tenths, each with another seed. A *wide part* is a linear model
of words, word pairs and n-grams that is trained jointly with the network. N-grams are of 3 to 6 characters:

| model | mean accuracy | loss after the last step |
|---|---|---|
| the network | 78.4 | 0.458 |
| with n-grams (30,000 buckets) added to its embeddings | 78.5 | 0.458 |
| with a wide part | **79.4** | 0.430 |
| without an encoder | 75.4 | 0.508 |
| without an encoder, n-grams | 77.4 | 0.487 |
| without an encoder, word pairs | 76.2 | 0.505 |
| linear, words | 78.0 | 0.462 |
| linear, words and n-grams | 79.3 | 0.463 |
| linear, words and word pairs | 77.9 | 0.468 |

On two of the three tenths:

| model | mean accuracy | loss after the last step |
|---|---|---|
| the network | 76.8 | |
| with R-Drop | 77.2 | |
| with n-grams of unseen words too | 77.0 | |
| with the wide part | 78.2 | 0.446 |
| with the wide part, weight decay 1 instead of 0.1 (chosen) | **78.5** | 0.444 |

""",
    ),
)


def run_row(row: LabelRow, data: Path, run: Path, *, train: bool) -> None:
    """Train a row from each seed, score all, and store figures, logs and a picture in the repository.

    Args:
        row: the row to run.
        data: folder with the data sets.
        run: where to create the run folders.
        train: whether to train, or only score finished runs again.
    """
    if train and not run.exists():
        (row.kept / "usage.json").unlink(missing_ok=True)
    for seed in row.seeds:
        divide(data / row.train, _parts(run, seed), row.held_out, seed)
    commands = [_command(row, run, seed) for seed in row.seeds]
    for command in commands if train else ():
        timed(command, row.kept / "usage.json")
    row.kept.mkdir(parents=True, exist_ok=True)
    for seed in row.seeds:
        for name, ending in (("metrics", "jsonl"), ("loss", "png")):
            shutil.copy(_folder(run, seed) / f"{name}.{ending}", row.kept / f"{name}-{seed}.{ending}")
    classifiers = [load(_folder(run, seed), task="classify") for seed in row.seeds]
    record: dict[str, Any] = {
        "figures": judge(classifiers, data / row.test),
        "usage": json.loads((row.kept / "usage.json").read_text(encoding="utf-8")),
        "parameters": sum(parameter.numel() for parameter in classifiers[0].model.parameters()),
        "commands": [" ".join(_shown(part, data) for part in command) for command in commands]
        + [f"qkv evaluate runs/{row.name}/seed-{seed} --data {row.test}" for seed in row.seeds],
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    texts = [each.text for each in read_labeled(data / row.test)[:_SHOWN]]
    save(row.kept / "attention.png", alignments(classifiers[0].classify_fully(texts, attention=True)))
    print(json.dumps(record["figures"], indent=1))


def divide(whole: Path, parts: tuple[Path, Path], count: int, seed: int) -> None:
    """Write training and held-out texts to two files.

    Args:
        whole: label<TAB>text on each line.
        parts: the two files to write.
        count: how many texts to hold out.
        seed: seed of the random split.
    """
    texts = read_labeled(whole)
    held = set(Random(f"hold out:{seed}").sample(range(len(texts)), count))
    for path, held_out in zip(parts, (False, True), strict=True):
        some = [text for place, text in enumerate(texts) if (place in held) is held_out]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{text.label}\t{text.text}\n" for text in some), encoding="utf-8")


def judge(classifiers: list[Classifier], test: Path) -> dict[str, Any]:
    """Score models that differ by their seed.

    Args:
        classifiers: the models.
        test: file of labeled texts.

    Returns:
        The accuracy of each in percent, their mean and standard deviation.
    """
    items = read_labeled(test)
    texts, truth = [item.text for item in items], [item.label for item in items]
    found = [accuracy(each.classify(texts), truth).value for each in classifiers]
    return {"each": found, "mean": statistics.mean(found), "spread": statistics.pstdev(found)}


def _folder(run: Path, seed: int) -> Path:
    return run / f"seed-{seed}"


def _parts(run: Path, seed: int) -> tuple[Path, Path]:
    return run / f"train-{seed}.tsv", run / f"valid-{seed}.tsv"


def _command(row: LabelRow, run: Path, seed: int) -> list[str]:
    train, valid = _parts(run, seed)
    flags = {
        "--data": train,
        "--valid-data": valid,
        "--config": row.config,
        "--seed": seed,
        "--out": _folder(run, seed),
    }
    return [str(QKV), "train", "classify", *(str(part) for pair in flags.items() for part in pair)]


def _shown(part: str, data: Path) -> str:
    """Strip this machine's folders from file names."""
    path = Path(part)
    if path == QKV:
        return "qkv"
    for above in (data, ROOT):
        if path.is_absolute() and path.is_relative_to(above):
            return str(path.relative_to(above))
    return f"runs/{path.parent.name}/{path.name}" if path.is_absolute() else part


_HEAD = """## Labels

Accuracy in percent, mean ± standard deviation over seeds. Processor time is the total of all trainings.

| row | published | accuracy | target | parameters | processor time | wall time (load) |
|---|---|---|---|---|---|---|
"""


def section() -> str:
    """Return the section of the page on labeled texts."""
    return f"{_HEAD}{''.join(map(_line, ROWS))}\n{''.join(_details(row) for row in ROWS if row.record.exists())}"


def _line(row: LabelRow) -> str:
    if not row.record.exists():
        return f"| {row.what} | {row.published} | not run | {row.asked} | | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    figures, usage = record["figures"], record["usage"]
    wall = f"{usage['wall_seconds'] / 60:.0f} min ({usage['load'][1]:.0f} on {usage['cores']} cores)"
    return (
        f"| {row.what} | {row.published} | **{figures['mean']:.2f}** ± {figures['spread']:.2f} | {row.asked} "
        f"| {record['parameters'] / 1e6:.1f} M | {usage['processor_seconds'] / 60:.1f} min | {wall} |\n"
    )


def _details(row: LabelRow) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    folder, usage = f"../../results/runs/{row.name}", record["usage"]
    each = ", ".join(f"{value:.2f}" for value in record["figures"]["each"])
    commands = "".join(f"  - `{command}`\n" for command in record["commands"])
    logs = ", ".join(f"[seed {seed}]({folder}/metrics-{seed}.jsonl)" for seed in row.seeds)
    return f"""### {row.what}

- published figures: {row.published}, {row.source}
- {row.note}
- seeds {", ".join(map(str, row.seeds))}: {each}
- command: `python -m results --data FOLDER --row {row.name}`, which writes the files and
  runs
{commands}- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml)
- machine: {record["machine"]}, {usage["threads"]} thread
- logs: {logs}

![Loss of training and validation, and accuracy, seed 0]({folder}/loss-0.png)

![What the model attends to in the first sentences]({folder}/attention.png)

{row.tried}"""
