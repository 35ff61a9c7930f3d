"""The word alignment row: two models of opposite directions, combined and scored against manual alignments."""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from examples.mechanisms.drawing import BLUE, GRAY, ORANGE, keep, panels
from matplotlib.axes import Axes

from qkv.data.corpus import Pair, read_lines, read_pairs
from qkv.metrics.alignment import (
    Link,
    Links,
    alignment_error_rate,
    alignment_precision,
    alignment_recall,
    parse_alignments,
)
from qkv.tasks.translate.aligner import METHODS, Aligner, join, likeliest
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.predict import Translator
from results.row import QKV, ResultRow
from results.usage import run as timed

_LONGEST_DRAWN = 14


@dataclass(frozen=True)
class AlignmentRow(ResultRow):
    """One line of the table.

    Args:
        name, what: as for any row.
        folder: data folder, relative to the given one.
        languages: source and target.
        published: published figures, as text.
        asked: the target, as text.
    """

    folder: str
    languages: tuple[str, str]
    published: str
    asked: str


ROWS = (
    AlignmentRow(
        "hansards",
        "English-French word alignment (Hansards), error",
        "align_enfr_hansards",
        ("en", "fr"),
        "fast_align 15.7 (En→Fr) and 9.5 (both), GIZA++ 5.8 (both), on 1.1 M pairs (lilt/alignment-scripts, the same "
        "224 sentences)",
        "25 (aim 15)",
    ),
)


class Gold(NamedTuple):
    """Sentences with their manual alignments: `links[n]` belongs to `pairs[n]`."""

    pairs: list[Pair]
    links: list[Links]


class Found(NamedTuple):
    """The links of each sentence, source word first, for each direction and for both combined."""

    forward: list[set[Link]]
    backward: list[set[Link]]
    joined: list[set[Link]]


@dataclass(frozen=True)
class Choice:
    """What was chosen on the validation sentences.

    Args:
        forward, backward: which weights of each direction are used.
        how: how the two directions are combined.
        errors: the alignment error rates on the validation sentences.
    """

    forward: AlignmentReading
    backward: AlignmentReading
    how: str
    errors: dict[str, float]


def run_row(row: AlignmentRow, data: Path, run: Path, *, train: bool) -> None:
    """Train both directions, choose how to read alignments from them, and score the links.

    Args:
        row: the row to run.
        data: folder with the data sets.
        run: folder for the two run folders.
        train: whether to train, or only score finished runs again.
    """
    folder, directions = data / row.folder, (row.languages, row.languages[::-1])
    if train and not run.exists():
        (row.kept / "usage.json").unlink(missing_ok=True)
    for source, target in directions if train else ():
        timed(_command(row, folder, run, source, target), row.kept / "usage.json")
    _keep_logs(row, run)
    forward, backward = (Aligner(Translator.load(run / f"{source}-{target}")) for source, target in directions)
    trial, gold = (read_gold(folder / part, row.languages) for part in ("trial", "gold_even"))
    choice = choose(forward, backward, trial)
    found = read_both(forward, backward, gold.pairs, choice)
    record: dict[str, Any] = {
        "figures": {name: figures(links, gold.links) for name, links in found._asdict().items()},
        "chosen": {"forward": str(choice.forward), "backward": str(choice.backward), "how": choice.how},
        "validation": choice.errors,
        "usage": json.loads((row.kept / "usage.json").read_text(encoding="utf-8")),
        "parameters": sum(parameter.numel() for parameter in forward.translator.model.parameters()),
        "commands": _commands(row, choice.how),
        "machine": f"{os.cpu_count()} cores, PyTorch {torch.__version__}",
    }
    row.record.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _picture(row.kept, gold, found.joined)
    print(json.dumps(record["figures"], indent=1))


def _keep_logs(row: AlignmentRow, run: Path) -> None:
    row.kept.mkdir(parents=True, exist_ok=True)
    for source, target in (row.languages, row.languages[::-1]):
        for name, ending in (("metrics", "jsonl"), ("loss", "png")):
            kept = row.kept / f"{name}-{source}-{target}.{ending}"
            shutil.copy(run / f"{source}-{target}" / f"{name}.{ending}", kept)


def read_gold(stem: Path, languages: tuple[str, str]) -> Gold:
    """Read `STEM.en`, `STEM.fr` and `STEM.align`."""
    source, target = (stem.with_name(f"{stem.name}.{language}") for language in languages)
    links = stem.with_name(f"{stem.name}.align")
    pairs = read_pairs(source, target)
    return Gold(pairs, parse_alignments(read_lines(links, blank=True), str(links)))


def choose(forward: Aligner, backward: Aligner, trial: Gold) -> Choice:
    """Choose layer, head and step of each direction, and how to combine them, by the error rate on validation
    sentences.

    Args:
        forward, backward: models of the two directions.
        trial: the validation sentences.

    Returns:
        The choice.
    """
    forward_reading, forward_error = forward.choose(trial.pairs, trial.links)
    backward_reading, backward_error = backward.choose(_turned(trial.pairs), _turned_links(trial.links))
    ways = {}
    for how in METHODS:
        choice = Choice(forward_reading, backward_reading, how, {})
        joined = read_both(forward, backward, trial.pairs, choice).joined
        ways[how] = alignment_error_rate(joined, trial.links).value
    best = min(ways, key=ways.__getitem__)
    errors = {"forward": forward_error.value, "backward": backward_error.value, **ways}
    return Choice(forward_reading, backward_reading, best, errors)


def read_both(forward: Aligner, backward: Aligner, pairs: list[Pair], choice: Choice) -> Found:
    """Align sentences with both models.

    Args:
        forward, backward: models of the two directions.
        pairs: the sentences.
        choice: which weights to use and how to combine them.

    Returns:
        The links, source word first.
    """
    there, back = forward.weights(pairs, choice.forward), backward.weights(_turned(pairs), choice.backward)
    turned = [{(i, j) for j, i in likeliest(weights)} for weights in back]
    return Found([likeliest(weights) for weights in there], turned, join(choice.how, there, back))


def figures(found: list[set[Link]], gold: list[Links]) -> dict[str, float]:
    """Return error rate, precision and recall in percent."""
    scores = (alignment_error_rate, alignment_precision, alignment_recall)
    return {
        name: score(found, gold).value for name, score in zip(("error", "precision", "recall"), scores, strict=True)
    }


def _turned(pairs: list[Pair]) -> list[Pair]:
    return [Pair(pair.target, pair.source, pair.line) for pair in pairs]


def _turned_links(links: list[Links]) -> list[Links]:
    return [
        Links(frozenset((j, i) for i, j in each.sure), frozenset((j, i) for i, j in each.possible)) for each in links
    ]


def _command(row: AlignmentRow, folder: Path, run: Path, source: str, target: str) -> list[str]:
    files = {
        "--source": folder / f"train.{source}.gz",
        "--target": folder / f"train.{target}.gz",
        "--valid-source": folder / f"trial.{source}",
        "--valid-target": folder / f"trial.{target}",
        "--config": row.config,
        "--out": run / f"{source}-{target}",
    }
    return [str(QKV), "train", "translate", *(str(part) for pair in files.items() for part in pair)]


def _commands(row: AlignmentRow, how: str) -> list[str]:
    """Return the equivalent command lines."""
    one, two = row.languages
    trainings = [
        f"qkv train translate --source {row.folder}/train.{source}.gz --target {row.folder}/train.{target}.gz "
        f"--valid-source {row.folder}/trial.{source} --valid-target {row.folder}/trial.{target} "
        f"--config results/{row.name}.toml --out runs/{row.name}/{source}-{target}"
        for source, target in ((one, two), (two, one))
    ]
    gold, trial = f"{row.folder}/gold_even", f"{row.folder}/trial"
    align = (
        f"qkv align runs/{row.name}/{one}-{two} --reverse runs/{row.name}/{two}-{one} --symmetrize {how} "
        f"--source {gold}.{one} --target {gold}.{two} --gold {gold}.align "
        f"--valid-source {trial}.{one} --valid-target {trial}.{two} --valid-gold {trial}.align"
    )
    return [*trainings, align]


def _picture(folder: Path, gold: Gold, found: list[set[Link]]) -> None:
    """Draw manual and predicted links of the two longest sentences that fit."""
    sizes = [max(len(pair.source.split()), len(pair.target.split())) for pair in gold.pairs]
    fitting = [place for place, size in enumerate(sizes) if size <= _LONGEST_DRAWN]
    shown = sorted(fitting, key=lambda place: -sizes[place])[:2]
    figure, axes = panels(max(1, len(shown)), width=4.4, height=3.8)
    for axis, place in zip(axes, shown, strict=False):
        _grid(axis, gold.pairs[place], gold.links[place], found[place])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    keep(figure, folder, "links")


def _grid(axis: Axes, pair: Pair, gold: Links, found: set[Link]) -> None:
    source, target = pair.source.split(), pair.target.split()
    possible, sure = gold.possible - gold.sure, gold.sure
    axis.scatter(*_columns(possible), label="possible", marker="s", s=90, facecolors="none", edgecolors=GRAY)
    axis.scatter(*_columns(sure), label="sure", marker="s", s=90, color=GRAY)
    axis.scatter(*_columns(found & gold.possible), label="found", marker="o", s=22, color=BLUE)
    axis.scatter(*_columns(found - gold.possible), label="found, wrong", marker="x", s=30, color=ORANGE)
    axis.set_xticks(range(len(source)), source, rotation=60, ha="right", fontsize=8)
    axis.set_yticks(range(len(target)), target, fontsize=8)
    axis.invert_yaxis()


def _columns(links: Iterable[Link]) -> tuple[list[int], list[int]]:
    pairs = list(links)
    return [i for i, _ in pairs], [j for _, j in pairs]


_HEAD = """## Word alignment

Alignment error rate in percent on manually aligned sentences. Both models are forced to write the given translations.
Layer, head and step of each model, and how the two are combined, were chosen on 37 other sentences.

| row | published | combined | En→Fr | Fr→En | target | parameters | processor time | wall time (load) |
|---|---|---|---|---|---|---|---|---|
"""


def section() -> str:
    """Return the section of the page on word alignment."""
    return f"{_HEAD}{''.join(map(_line, ROWS))}\n{''.join(_details(row) for row in ROWS if row.record.exists())}"


def _line(row: AlignmentRow) -> str:
    if not row.record.exists():
        return f"| {row.what} | {row.published} | not run | | | {row.asked} | | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    usage = record["usage"]
    joined, forward, backward = (record["figures"][name]["error"] for name in ("joined", "forward", "backward"))
    wall = f"{usage['wall_seconds'] / 60:.0f} min ({usage['load'][1]:.0f} on {usage['cores']} cores)"
    return (
        f"| {row.what} | {row.published} | **{joined:.2f}** | {forward:.2f} | {backward:.2f} | {row.asked} "
        f"| 2 × {record['parameters'] / 1e6:.1f} M | {usage['processor_seconds'] / 60:.1f} min | {wall} |\n"
    )


def _details(row: AlignmentRow) -> str:
    record = json.loads(row.record.read_text(encoding="utf-8"))
    folder, chosen = f"../../results/runs/{row.name}", record["chosen"]
    commands = "".join(f"  - `{command}`\n" for command in record["commands"])
    there, back = (f"{one}-{two}" for one, two in (row.languages, row.languages[::-1]))
    both = record["figures"]["joined"]
    errors = ", ".join(f"{name} {value:.1f}" for name, value in record["validation"].items())
    return f"""### {row.what}

- published figures: {row.published}
- precision {both["precision"]:.1f}, recall {both["recall"]:.1f}, combined by {chosen["how"]}
- read from {chosen["forward"]}; the other direction from {chosen["backward"]}
- error on the 37 validation sentences: {errors}
- command: `python -m results --data FOLDER --row {row.name}`, equivalent to
{commands}- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml), seed 0
- machine: {record["machine"]}, {record["usage"]["threads"]} thread
- logs: [{there}]({folder}/metrics-{there}.jsonl), [{back}]({folder}/metrics-{back}.jsonl)

![Loss of training and validation, {there}]({folder}/loss-{there}.png)

![Manual and predicted links of two sentences]({folder}/links.svg)

"""
