"""The pointer network rows: sorting numbers, and the convex hull of points in the plane, from text files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.mechanisms.drawing import COLORS, GRAY, keep, panels

from qkv.data.corpus import read_tsv
from qkv.data.pointing import parse_pairs
from qkv.metrics.figure import Figure
from qkv.tasks.load import load
from results import usage
from results.elements import lines
from results.hulls import Point, area, from_first, simple
from results.row import QKV, ResultRow

Answers = list[list[int]]


@dataclass(frozen=True)
class PointingRow(ResultRow):
    """One line of the table.

    Args:
        name, what: as for any row.
        asked: target or published figures, as text.
        task: "sort" or "hull", see `results.elements`.
        size: elements per line.
        count: training lines.
        beam: beam width of the test.
        test: test lines, which are other than those of training.
    """

    asked: str
    task: str
    size: int
    count: int
    beam: int = 1
    test: int = 2000


ROWS = (
    PointingRow("pointer_sort_5", "Sort 5 integers", "99 % per position", "sort", 5, 50_000),
    PointingRow("pointer_sort_10", "Sort 10 integers", "99 % per position", "sort", 10, 100_000),
    PointingRow("pointer_sort_20", "Sort 20 integers", "none", "sort", 20, 100_000),
    PointingRow(
        "pointer_hull",
        "Convex hull of 10 points",
        "87.0 % exact, 99.8 % of the area (Vinyals et al. 2015, table 1, trained on 5 to 50 points)",
        "hull",
        10,
        300_000,
        beam=3,
    ),
)


def run_row(row: PointingRow, data: Path, run: Path, *, train: bool) -> None:
    """Write the files, train a pointer network, score it on unseen lines, and store figures and picture.

    Args:
        row: the row to run.
        data: unused; the elements are generated here.
        run: folder for files and model.
        train: whether to train, or only to score what was trained.
    """
    files = write_files(row, run)
    if train:
        usage.run([str(QKV), *_training(row, files[0], run / "model")], row.kept / "usage.json")
    pointer = load(run / "model", task="point")
    items, _ = parse_pairs(read_tsv(files[1]), (str(files[1]),) * 2, pointer.kind)
    found, figures = pointer.evaluate(items, row.beam)
    points = [[(float(vector[0]), float(vector[-1])) for vector in item.elements] for item in items]
    answers = [list(item.target) for item in items]
    positions = [list(each) for each in found]
    record = {
        "figures": _sort_figures(figures) if row.task == "sort" else hull_figures(points, positions, answers),
        "parameters": sum(parameter.numel() for parameter in pointer.model.parameters()),
    }
    row.kept.mkdir(parents=True, exist_ok=True)
    row.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if row.task == "hull":
        _picture(row.kept, points, positions, answers)
    print(json.dumps(record["figures"], indent=1))


def _training(row: PointingRow, data: Path, out: Path) -> list[str]:
    order = ["--order", "cycle"] if row.task == "hull" else []
    return ["train", "point", "--data", str(data), *order, "--config", f"results/{row.name}.toml", "--out", str(out)]


def write_files(row: PointingRow, run: Path) -> tuple[Path, Path]:
    """Write the training lines and the test lines."""
    run.mkdir(parents=True, exist_ok=True)
    found = run / "train.tsv", run / "test.tsv"
    for path, count, seed in zip(found, (row.count, row.test), (0, 1), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines(row.task, row.size, count, seed)), encoding="utf-8")
    return found


def _sort_figures(figures: Sequence[Figure]) -> dict[str, float]:
    return {"position": figures[0].value, "exact": figures[1].value}


def hull_figures(elements: Sequence[Sequence[Point]], found: Answers, answers: Answers) -> dict[str, float]:
    """Return percentages of exact hulls, of polygons without crossing sides, and of the hull area that they cover.

    The same polygon from another starting corner is the same hull. Polygons with crossing sides cover nothing.
    """
    exact, sound, covered = 0, 0, 0.0
    for points, one, other in zip(elements, found, answers, strict=True):
        corners, right = [place - 1 for place in one], [place - 1 for place in other]
        exact += from_first(corners) == right
        if simple(points, corners):
            sound += 1
            covered += abs(area(points, corners)) / area(points, right)
    count = len(answers)
    return {"exact": 100 * exact / count, "simple": 100 * sound / count, "area": 100 * covered / count}


def _picture(folder: Path, elements: Sequence[Sequence[Point]], found: Answers, answers: Answers) -> None:
    """Draw two correct and two wrong hulls, if there are that many."""
    pairs = enumerate(zip(found, answers, strict=True))
    wrong = [place for place, (one, other) in pairs if from_first(one) != other]
    right = [place for place in range(len(answers)) if place not in wrong]
    figure, axes = panels(4, width=2.2, height=2.4)
    for axis, place in zip(axes, (*right[:2], *wrong[:2]), strict=False):
        points = elements[place]
        axis.plot(*zip(*points, strict=True), "o", color=GRAY, ms=4)
        axis.plot(*_closed_path(points, answers[place]), color=GRAY, lw=4, alpha=0.4)
        axis.plot(*_closed_path(points, found[place]), color=COLORS[0], lw=1.4)
        axis.set(title="correct" if place in right else "wrong", xticks=[], yticks=[], aspect="equal")
    keep(figure, folder, "hulls")


def _closed_path(points: Sequence[Sequence[float]], corners: Sequence[int]) -> tuple[list[float], list[float]]:
    path = [points[place - 1] for place in (*corners, *corners[:1])]
    return [x for x, _ in path], [y for _, y in path]


_HEAD = """## Pointer networks

`qkv train point` on generated text files, scored on 2,000 unseen lines, hulls with a beam of 3. Integers are from 0 to
99. A hull is exact if all its corners are right and in order, whatever the starting corner. How it works:
[point.md](../how_to/point.md).

| task | target or published | ours | parameters | processor time |
|---|---|---|---|---|
"""
_LABELS = {"position": "per position", "exact": "exact", "simple": "without crossing sides", "area": "of the area"}


def section() -> str:
    """Return the section of the page on pointer networks."""
    table = "".join(_line(row) for row in ROWS)
    hulls = next(row for row in ROWS if row.name == "pointer_hull")
    picture = "![Correct and wrong hulls](../../results/runs/pointer_hull/hulls.svg)\n\n"
    commands = "".join(_commands(row) for row in ROWS)
    return f"{_HEAD}{table}\n{commands}\n{picture if hulls.record.exists() else ''}"


def _commands(row: PointingRow) -> str:
    config = f"results/{row.name}.toml"
    folder = Path("runs", row.name)
    made = f"--size {row.size} --count {row.count} --out {folder / 'train.tsv'}"
    training = _training(row, folder / "train.tsv", folder / "model")
    return (
        f"- {row.what.lower()}, settings [`{config}`](../../{config}):\n"
        f"  - `python -m results.elements {row.task} {made}`\n"
        f"  - `qkv {' '.join(training)}`\n"
    )


def _line(row: PointingRow) -> str:
    if not row.record.exists():
        return f"| {row.what} | {row.asked} | not run | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    figures = ", ".join(f"**{value:.1f}** % {_LABELS[name]}" for name, value in record["figures"].items())
    used = json.loads((row.kept / "usage.json").read_text(encoding="utf-8"))
    size, minutes = record["parameters"] / 1e3, used["processor_seconds"] / 60
    return f"| {row.what} | {row.asked} | {figures} | {size:.0f} thousand | {minutes:.1f} min |\n"
