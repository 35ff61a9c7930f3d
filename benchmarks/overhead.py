"""Small calls: every mechanism at 16 to 256 keys against the same lines in eager PyTorch.

Every score under each of its normalizers; the default normalizers also with a causal mask, with lengths, with dropout,
with a bias and with grouped heads; forward and with backward. Three contenders alternate in one process, in random
order, so that changes of the machine's speed affect all of them: the lines in eager PyTorch, `qkv.attention`, and the
floor, which is the operators of the eager lines that compute anything, replayed without their Python and autograd.
Distances are subtracted in the eager lines, because a difference of products would be wrong far from 0. Figures are
medians over rounds of the processor time of one thread, which leaves out what else the machine does, and the quartiles
of the speeds relative to the eager lines.

    python -m benchmarks.overhead                    every cell
    python -m benchmarks.overhead --only gaussian    those whose name holds this text; others keep what was measured
    python -m benchmarks.overhead --sizes 16 32      some sizes
    python -m benchmarks.overhead --rounds 10        fewer rounds
    python -m benchmarks.overhead --threads 2        with more threads, in wall time; printed, not kept
    python -m benchmarks.overhead --plot             only draw again what was measured
    python -m benchmarks.overhead --write            only write the tables of docs/project/benchmarks.md

Results go to benchmarks/results/overhead.json, by processor, and their picture to benchmarks/results/overhead.svg.
"""

import argparse
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.engine.page import PAGE
from benchmarks.engine.timing import microseconds
from benchmarks.kept import keep, processor, read
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import qkv

RESULTS = Path(__file__).parent / "results" / "overhead.json"
SIZES = (16, 32, 64, 128, 256)
LEADING, GROUPS, WIDTH = (1, 4), 2, 64
ROUNDS, SECONDS = 15, 0.001
DIRECTIONS = ("forward", "with backward")
CONDITIONS = ("plain", "causal", "lengths", "dropout", "bias", "grouped")
DROPOUT = 0.1
AIM = 0.8
"""The least speed relative to the eager lines that is aimed at."""
BEGIN, END = "<!-- small calls: begin, made by python -m benchmarks.overhead --write -->", "<!-- small calls: end -->"
SHOWN = (
    *(f"scaled_dot, softmax, {condition}" for condition in CONDITIONS),
    *(f"scaled_dot, {rule}, {condition}" for rule in ("mean", "sigmoid", "hard") for condition in ("plain", "lengths")),
    *("scaled_dot, entmax, plain", "concat, softmax, plain", "additive, softmax, plain"),
    *("gaussian, sum, plain", "boxcar, sum, plain", "epanechnikov, sum, plain"),
)
"""The mechanisms whose times at the smallest size the page shows."""
TIMES = "floor, PyTorch, qkv"
"""The contenders in the order of `_times`."""

_s, _n = qkv.scores, qkv.normalizers
Parameters = tuple[Tensor, ...]


class Score(NamedTuple):
    """A score in eager PyTorch, (query, key, *parameters) -> scores, and as a value of qkv."""

    lines: Callable[..., Tensor]
    value: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ()
    kernel: bool = False


class Rule(NamedTuple):
    """A normalizer in eager PyTorch, (scores, hidden or None) -> weights, and as a value of qkv."""

    lines: Callable[[Tensor, Tensor | None], Tensor]
    value: Any


def _distance(q: Tensor, k: Tensor) -> Tensor:
    distance: Tensor = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
    return distance


def _dot(q: Tensor, k: Tensor) -> Tensor:
    scale: float = WIDTH**-0.5
    return q @ k.mT * scale


def _additive(q: Tensor, k: Tensor, vector: Tensor, query_weight: Tensor, key_weight: Tensor) -> Tensor:
    a, b = q @ query_weight.mT, k @ key_weight.mT
    return torch.tanh(a[..., :, None, :] + b[..., None, :, :]) @ vector


def _concat(q: Tensor, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.relu((q @ a)[..., :, None] + (k @ b)[..., None, :])


SCORES: dict[str, Score] = {
    "scaled_dot": Score(_dot, _s.ScaledDot),
    "softcap": Score(lambda q, k: 10 * torch.tanh(_dot(q, k) / 10), lambda: _s.ScaledDot(softcap=10.0)),
    "cosine": Score(lambda q, k: 8 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT, lambda: _s.Cosine(8.0)),
    "bilinear": Score(
        lambda q, k, m: q @ m @ k.mT * WIDTH**-0.5, lambda m: _s.Bilinear(m, WIDTH**-0.5), ((WIDTH, WIDTH),)
    ),
    "additive": Score(_additive, _s.Additive, ((WIDTH,), (WIDTH, WIDTH), (WIDTH, WIDTH))),
    "concat": Score(_concat, _s.Concat, ((WIDTH,), (WIDTH,))),
    "uniform": Score(lambda q, k: q.new_ones(*q.shape[:-1], k.shape[-2]), _s.Uniform, kernel=True),
    "squared_distance": Score(lambda q, k: _distance(q, k).square() / -128, lambda: _s.SquaredDistance(8.0)),
    "gaussian": Score(lambda q, k: torch.exp(_distance(q, k).square() / -128), lambda: _s.Gaussian(8.0), kernel=True),
    "boxcar": Score(lambda q, k: (_distance(q, k) <= 11).to(q.dtype), lambda: _s.Boxcar(11.0), kernel=True),
    "epanechnikov": Score(
        lambda q, k: torch.relu(1 - (_distance(q, k) / 12).square()), lambda: _s.Epanechnikov(12.0), kernel=True
    ),
    "triangle": Score(
        lambda q, k: torch.relu(1 - _distance(q, k) / 12), lambda: _s.Epanechnikov(12.0, power=1), kernel=True
    ),
}


def _hide(x: Tensor, hidden: Tensor | None, by: float) -> Tensor:
    return x if hidden is None else x.masked_fill(hidden, by)


def _share(s: Tensor, hidden: Tensor | None) -> Tensor:
    s = _hide(s, hidden, 0.0)
    # A query far from all keys has no neighbor: 0, not NaN.
    return s / s.sum(-1, keepdim=True).clamp(min=1e-30)


def _mean(s: Tensor, hidden: Tensor | None) -> Tensor:
    return s / s.shape[-1] if hidden is None else _hide(s, hidden, 0.0) / (~hidden).sum(-1, keepdim=True)


def _sigmoid(s: Tensor, hidden: Tensor | None) -> Tensor:
    if hidden is None:
        return torch.sigmoid(s - math.log(s.shape[-1]))
    return _hide(torch.sigmoid(s - (~hidden).sum(-1, keepdim=True).log()), hidden, 0.0)


def _hard(s: Tensor, hidden: Tensor | None) -> Tensor:
    s = _hide(s, hidden, -torch.inf)
    return torch.zeros_like(s).scatter(-1, s.argmax(-1, keepdim=True), 1.0)


def _sparse(name: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The `entmax` package."""

    def lines(s: Tensor, hidden: Tensor | None) -> Tensor:
        import entmax

        weights: Tensor = getattr(entmax, name)(_hide(s, hidden, -1e9), dim=-1)
        return weights

    return lines


RULES: dict[str, Rule] = {
    "softmax": Rule(lambda s, hidden: torch.softmax(_hide(s, hidden, -torch.inf), -1), _n.Softmax()),
    "sum": Rule(_share, _n.Sum()),
    "mean": Rule(_mean, _n.Mean()),
    "identity": Rule(lambda s, hidden: _hide(s, hidden, 0.0), _n.Identity()),
    "sigmoid": Rule(_sigmoid, _n.Sigmoid()),
    "hard": Rule(_hard, _n.Hard()),
    "sparsemax": Rule(_sparse("sparsemax"), _n.Sparsemax()),
    "entmax": Rule(_sparse("entmax15"), _n.Entmax()),
}


class Cell(NamedTuple):
    """One call that is measured."""

    score: str
    rule: str
    condition: str
    size: int
    direction: str

    def __str__(self) -> str:
        return f"{self.score}, {self.rule}, {self.condition}, {self.size} keys, {self.direction}"


def cells(sizes: Sequence[int]) -> Iterator[Cell]:
    """Yield every cell: each pair of score and normalizer plain, the default ones under every condition."""
    for score, entry in SCORES.items():
        for rule in RULES:
            if rule == "sum" and not entry.kernel:
                continue
            usual = rule == ("sum" if entry.kernel else "softmax") or score == "scaled_dot"
            for condition in CONDITIONS if usual else CONDITIONS[:1]:
                if not (condition == "bias" and rule == "sum"):
                    yield from (Cell(score, rule, condition, n, way) for n in sizes for way in DIRECTIONS)


def contenders(cell: Cell) -> dict[str, Callable[[], object]]:
    """Return the floor, the lines in eager PyTorch, and `qkv.attention`."""
    torch.manual_seed(0)
    score, rule, n = SCORES[cell.score], RULES[cell.rule], cell.size
    grouped, gradient = cell.condition == "grouped", cell.direction == DIRECTIONS[1]
    shared = (*LEADING[:-1], GROUPS, n, WIDTH) if grouped else (*LEADING, n, WIDTH)
    tensors = [torch.randn(*LEADING, n, WIDTH), torch.randn(shared), torch.randn(shared)]
    parameters = [WIDTH**-0.5 * torch.randn(shape) for shape in score.shapes]
    bias = torch.randn(LEADING[-1], n, n) if cell.condition == "bias" else None
    leaves = [*tensors, *parameters, *([] if bias is None else [bias])]
    if gradient:
        leaves = [x.requires_grad_() for x in leaves]
    upstream = torch.randn(*LEADING, n, WIDTH)
    ends = torch.full(LEADING[:1], max(1, n * 2 // 3))
    mask = {"causal": qkv.masks.causal(), "lengths": qkv.masks.lengths(ends)}.get(cell.condition)
    dropout = DROPOUT if cell.condition == "dropout" else 0.0

    def lines() -> Tensor:
        query, key, value = tensors
        if grouped:
            key, value = (x.repeat_interleave(LEADING[-1] // GROUPS, -3) for x in (key, value))
        hidden = None
        if cell.condition == "causal":
            hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
        elif cell.condition == "lengths":
            hidden = torch.arange(n) >= ends[:, None, None, None]
        s = score.lines(query, key, *parameters)
        w = rule.lines(s if bias is None else s + bias, hidden)
        return (F.dropout(w, dropout) if dropout else w) @ value

    def auto() -> Tensor:
        return qkv.attention(
            *tensors,
            score=score.value(*parameters),
            normalizer=rule.value,
            mask=mask,
            bias=bias,
            dropout=dropout,
            enable_gqa=grouped,
        )

    def whole(attend: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(), leaves, upstream, allow_unused=True) if gradient else attend()

    return {"floor": replay(whole(lines)), "eager": whole(lines), "auto": whole(auto)}


_VIEWS = {torch.ops.aten._unsafe_view.default, torch.ops.aten.detach.default}


class _Recorder(TorchDispatchMode):
    """Records the operators that run, with their arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Views compute nothing.
        if not (func.is_view or func in _VIEWS):
            self.operators.append((func, *tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))))
        return result


def replay(call: Callable[[], object]) -> Callable[[], object]:
    """Return a function that runs the operators of a call alone, on the numbers that they had."""
    with (recorder := _Recorder()):
        call()
    operators = [(_bound(func), args, kwargs) for func, args, kwargs in recorder.operators]

    def run() -> None:
        with torch.inference_mode():
            for func, args, kwargs in operators:
                func(*args, **kwargs)

    return run


def _bound(func: Any) -> Callable[..., Any]:
    """Return the function of PyTorch's Python module that calls an operator, which starts faster than the operator."""
    name = func.overloadpacket.__name__
    found: Callable[..., Any] | None = getattr(torch, name, None) or getattr(Tensor, name, None)
    return found if found is not None and func.namespace == "aten" else func


def measure(cell: Cell, rounds: int) -> dict[str, Any]:
    """Return each contender's median, and the quartiles of the ratio of the eager lines to `qkv.attention`."""
    calls = contenders(cell)
    for run in calls.values():
        run()
    counts = {
        own: max(2, int(SECONDS * 1e6 / min(microseconds(run, 1) for _ in range(3)))) for own, run in calls.items()
    }
    times: dict[str, list[float]] = {own: [] for own in calls}
    order = random.Random(0)
    for _ in range(rounds):
        # In one order, each contender would follow the same other one, whose caches and threads it finds.
        for own in order.sample(list(calls), len(calls)):
            times[own].append(microseconds(calls[own], counts[own]))
    speeds = [eager / auto for eager, auto in zip(times["eager"], times["auto"], strict=True)]
    report: dict[str, Any] = {f"{own}_us": round(statistics.median(row), 1) for own, row in times.items()}
    return {**report, "speed": [round(x, 2) for x in statistics.quantiles(speeds, n=4)]}


def draw(figures: dict[str, Any]) -> None:
    """Draw the speed of every cell relative to the eager lines, by size."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(DIRECTIONS), figsize=(11, 5), sharey=True)
    for axis, direction in zip(axes, DIRECTIONS, strict=True):
        for place, size in enumerate(SIZES):
            suffix = f", {size} keys, {direction}"
            speeds = sorted(row["speed"][1] for name, row in figures.items() if name.endswith(suffix))
            offsets = [place + 0.7 * (i / max(1, len(speeds) - 1) - 0.5) for i in range(len(speeds))]
            axis.plot(offsets, speeds, ".", color="C0")
        axis.axhline(1.0, color="0.6", linewidth=1)
        axis.axhline(0.5, color="C3", linewidth=1, linestyle="--")
        axis.set(title=direction, xlabel="keys", yscale="log", xticks=range(len(SIZES)), xticklabels=SIZES)
    axes[0].set_ylabel(f"speed relative to eager PyTorch, {processor()}")
    figure.tight_layout()
    figure.savefig(RESULTS.with_suffix(".svg"), metadata={"Date": None})


def tables(figures: dict[str, Any]) -> str:
    """Return the tables of one processor: every size and direction with its worst cell, and some mechanisms' times."""
    lines = [
        f"| keys | pass | mechanisms | of speed below {AIM} | median speed | fastest | slowest | its µs: {TIMES} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in SIZES:
        for direction in DIRECTIONS:
            suffix = f", {size} keys, {direction}"
            rows = sorted((row["speed"][1], name) for name, row in figures.items() if name.endswith(suffix))
            if rows:
                speeds, (least, worst), (most, best) = [speed for speed, _ in rows], rows[0], rows[-1]
                lines.append(
                    f"| {size} | {direction} | {len(rows)} | {sum(speed < AIM for speed in speeds)} | "
                    f"{statistics.median(speeds):.2f} | {most:.2f}: {best.removesuffix(suffix)} | "
                    f"{least:.2f}: {worst.removesuffix(suffix)} | {_times(figures[worst])} |"
                )
    least = SIZES[0]
    lines += ["", f"| {least} keys | speed, forward | µs: {TIMES} | speed, with backward | µs: {TIMES} |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name in SHOWN:
        rows_of = [figures.get(f"{name}, {least} keys, {direction}") for direction in DIRECTIONS]
        cells_of = [f"{row['speed'][1]:.2f} | {_times(row)}" for row in rows_of if row is not None]
        if len(cells_of) == len(DIRECTIONS):
            lines.append(f"| {name} | {' | '.join(cells_of)} |")
    return "\n".join(lines)


def _times(row: dict[str, Any]) -> str:
    return ", ".join(f"{row[f'{name}_us']:,.0f}" for name in ("floor", "eager", "auto"))


def write(page: Path = PAGE) -> None:
    """Write the tables of every processor that this script measured, between the markers of the page."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN, 1)
    measured = {name: rows for name, rows in read(RESULTS).items() if any("speed" in row for row in rows.values())}
    parts = [f"**{name}**\n\n{tables(rows)}" for name, rows in measured.items()]
    text = "\n\n".join(parts)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def main() -> None:
    """Measure, print, write JSON and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cells whose name holds this text")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of keys")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often the contenders alternate")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads; with more than one, keep nothing")
    parser.add_argument("--print", action="store_true", dest="only_print", help="keep nothing")
    parser.add_argument("--plot", action="store_true", help="draw what was measured")
    parser.add_argument("--write", action="store_true", help="write the tables of the page from what was measured")
    given = parser.parse_args()
    if given.write:
        write()
        return
    torch.set_num_threads(given.threads)
    rows: dict[str, Any] = {}
    for cell in cells(given.sizes) if not given.plot else ():
        if given.only in str(cell):
            rows[str(cell)] = row = measure(cell, given.rounds)
            times = "   ".join(f"{own} {row[f'{own}_us']:.0f} us" for own in ("floor", "eager", "auto"))
            print(f"{row['speed'][1]:.2f}  {cell}: {times}", flush=True)
    if not given.only_print and given.threads == 1:
        if rows:
            keep(RESULTS, rows)
        draw(read(RESULTS)[processor()])


if __name__ == "__main__":
    main()
