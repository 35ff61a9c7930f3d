"""The pointer network rows: sorting numbers, and the convex hull of points in the plane."""

import json
import os
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from examples.mechanisms.drawing import COLORS, GRAY, keep, panels
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.decode.beam import Beam, beam
from qkv.models.pointer import END, PointerConfig, PointerNetwork
from results.hulls import area, from_first, hull, simple

ROOT = Path(__file__).parent.parent
_LARGEST = 100
"""Numbers to sort are integers below this."""
_LOGGED = 500

Answers = list[list[int]]


@dataclass(frozen=True)
class PointingRow:
    """One line of the table.

    Args:
        name: the row's name for `python -m results`.
        what: title shown to the reader.
        asked: target or published figures, as text.
    """

    name: str
    what: str
    asked: str

    @property
    def config(self) -> Path:
        """The settings."""
        return ROOT / "results" / f"{self.name}.toml"

    @property
    def kept(self) -> Path:
        """The folder with the stored figures."""
        return ROOT / "results" / "runs" / self.name

    @property
    def record(self) -> Path:
        """The file with the stored figures."""
        return self.kept / "figures.json"


ROWS = (
    PointingRow("pointer_sort_5", "Sort 5 integers", "99 % per position"),
    PointingRow("pointer_sort_10", "Sort 10 integers", "97 % per position"),
    PointingRow(
        "pointer_hull",
        "Convex hull of 10 points",
        "87.0 % exact, 99.8 % of the area (Vinyals et al. 2015, table 1, trained on 5 to 50 points)",
    ),
)


def run_row(row: PointingRow, data: Path, run: Path, *, train: bool) -> None:
    """Train a pointer network, score it on unseen elements, and store figures and picture in the repository.

    Args:
        row: the row to run.
        data, run, train: unused; the elements are generated here, and there is no run folder.
    """
    settings = tomllib.loads(row.config.read_text(encoding="utf-8"))
    start, task = time.process_time(), settings["data"]["task"]
    model, losses = learn(settings)
    seconds = time.process_time() - start
    torch.manual_seed(settings["training"]["seed"] + 1)
    elements, answers = draw(task, settings["data"]["test"], settings["data"]["size"])
    found = point(model, elements, settings["training"]["beam"])
    record = {
        "figures": sorted_figures(found, answers) if task == "sort" else hull_figures(elements, found, answers),
        "losses": losses,
        "settings": settings,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "processor_seconds": round(seconds, 1),
        "machine": f"{os.cpu_count()} cores, {torch.get_num_threads()} thread, PyTorch {torch.__version__}",
    }
    row.kept.mkdir(parents=True, exist_ok=True)
    row.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if task == "hull":
        _picture(row.kept, elements, found, answers)
    print(json.dumps(record["figures"], indent=1))


def draw(task: str, count: int, size: int) -> tuple[Tensor, Answers]:
    """Generate elements and the positions to point to.

    Args:
        task: "sort": integers, divided by the largest possible one; "hull": points of the unit square.
        count: number of sets.
        size: elements in each set.

    Returns:
        Elements (count, size, 1 or 2), and for each set positions from 1 on: in increasing order, ties in input order;
            or
        the hull's corners.
    """
    if task == "sort":
        numbers = torch.randint(0, _LARGEST, (count, size))
        return numbers[..., None] / _LARGEST, (numbers.argsort(dim=1, stable=True) + 1).tolist()
    points = torch.rand(count, size, 2)
    return points, [[place + 1 for place in hull([(x, y) for x, y in each])] for each in points.tolist()]


def learn(settings: dict[str, Any]) -> tuple[PointerNetwork, dict[int, float]]:
    """Train on new elements at every step, with the learning rate decaying to zero.

    Args:
        settings: tables `data`, `model`, `training`.

    Returns:
        The model, and the mean loss up to some steps.
    """
    data, training = settings["data"], settings["training"]
    torch.manual_seed(training["seed"])
    model = PointerNetwork(PointerConfig(1 if data["task"] == "sort" else 2, **settings["model"]))
    optimizer = torch.optim.Adam(model.parameters(), training["learning_rate"])
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, training["steps"])
    lengths, losses, total = torch.full((training["batch"],), data["size"]), {}, 0.0
    for step in range(1, training["steps"] + 1):
        loss = objective(model, *draw(data["task"], training["batch"], data["size"]), lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        falling.step()
        total += float(loss.detach())
        if step % _LOGGED == 0:
            losses[step], total = total / _LOGGED, 0.0
            print(f"step {step:,}/{training['steps']:,}  loss {losses[step]:.4f}", flush=True)
    return model.eval(), losses


def objective(model: PointerNetwork, elements: Tensor, answers: Answers, lengths: Tensor) -> Tensor:
    """Return the mean cross entropy of each next position and of the end."""
    longest = max(map(len, answers)) + 1
    target = torch.tensor([[*each, END] + [-1] * (longest - len(each) - 1) for each in answers])
    given = torch.cat([torch.full((len(answers), 1), END), target[:, :-1].clamp(min=END)], 1)
    chances = model(elements, lengths, given)
    return F.nll_loss(chances.flatten(0, 1), target.flatten(), ignore_index=-1)


def point(model: PointerNetwork, elements: Tensor, width: int) -> Answers:
    """Return the positions a trained model points to, by beam search."""
    lengths = torch.full(elements.shape[:1], elements.shape[1])
    found = beam(model, elements, lengths, bos=END, eos=END, limit=elements.shape[1] + 1, search=Beam(width))
    return [list(best.ids) for best, *_ in found]


def sorted_figures(found: Answers, answers: Answers) -> dict[str, float]:
    """Return percentages of correct positions and of completely correct rows.

    Example:
        >>> sorted_figures([[1, 2], [2, 1]], [[1, 2], [2, 3]])
        {'position': 75.0, 'exact': 50.0}
    """
    pairs = list(zip(found, answers, strict=True))
    right = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
    exact = sum(one == other for one, other in pairs)
    return {"position": 100 * right / sum(map(len, answers)), "exact": 100 * exact / len(answers)}


def hull_figures(elements: Tensor, found: Answers, answers: Answers) -> dict[str, float]:
    """Return percentages of exact hulls, of polygons without crossing sides, and of the hull area that they cover.

    The same polygon from another starting corner is the same hull. Polygons with crossing sides cover nothing.
    """
    exact, sound, covered = 0, 0, 0.0
    for points, one, other in zip(elements.tolist(), found, answers, strict=True):
        corners, right = [place - 1 for place in one], [place - 1 for place in other]
        exact += from_first(corners) == right
        if simple(points, corners):
            sound += 1
            covered += abs(area(points, corners)) / area(points, right)
    count = len(answers)
    return {"exact": 100 * exact / count, "simple": 100 * sound / count, "area": 100 * covered / count}


def _picture(folder: Path, elements: Tensor, found: Answers, answers: Answers) -> None:
    """Pick two correct and two wrong hulls, if there are that many."""
    pairs = enumerate(zip(found, answers, strict=True))
    wrong = [place for place, (one, other) in pairs if from_first(one) != other]
    right = [place for place in range(len(answers)) if place not in wrong]
    figure, axes = panels(4, width=2.2, height=2.4)
    for axis, place in zip(axes, (*right[:2], *wrong[:2]), strict=False):
        points = elements[place].tolist()
        axis.plot(*zip(*points, strict=True), "o", color=GRAY, ms=4)
        axis.plot(*_round(points, answers[place]), color=GRAY, lw=4, alpha=0.4)
        axis.plot(*_round(points, found[place]), color=COLORS[0], lw=1.4)
        axis.set(title="as it is" if place in right else "not as it is", xticks=[], yticks=[], aspect="equal")
    keep(figure, folder, "hulls")


def _round(points: Sequence[Sequence[float]], corners: Sequence[int]) -> tuple[list[float], list[float]]:
    path = [points[place - 1] for place in (*corners, *corners[:1])]
    return [x for x, _ in path], [y for _, y in path]


_HEAD = """## Pointer networks

`qkv.models.PointerNetwork`, trained on new random elements at every step, scored on 2,000 unseen sets. Integers
are from 0 to 99. A hull is exact if all its corners are right and in order, whatever the starting corner.

| task | target or published | ours | parameters | processor time |
|---|---|---|---|---|
"""
_TOLD = {"position": "per position", "exact": "exact", "simple": "without crossing sides", "area": "of the area"}


def section() -> str:
    """Return the section of the page on pointer networks."""
    lines = "".join(_line(row) for row in ROWS)
    hulls = next(row for row in ROWS if row.name == "pointer_hull")
    picture = "![Correct and wrong hulls](../results/runs/pointer_hull/hulls.svg)\n\n"
    command = "- command: `python -m results --data FOLDER --row pointer_hull` (nothing is read from FOLDER)\n"
    settings = "".join(f"- settings: [`results/{row.name}.toml`](../results/{row.name}.toml)\n" for row in ROWS)
    return f"{_HEAD}{lines}\n{command}{settings}\n{picture if hulls.record.exists() else ''}"


def _line(row: PointingRow) -> str:
    if not row.record.exists():
        return f"| {row.what} | {row.asked} | not run | | |\n"
    record = json.loads(row.record.read_text(encoding="utf-8"))
    figures = ", ".join(f"**{value:.1f}** % {_TOLD[name]}" for name, value in record["figures"].items())
    size, minutes = record["parameters"] / 1e3, record["processor_seconds"] / 60
    return f"| {row.what} | {row.asked} | {figures} | {size:.0f} thousand | {minutes:.1f} min |\n"
