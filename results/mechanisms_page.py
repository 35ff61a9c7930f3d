"""The section of `docs/project/results.md` on which scores, normalizers and models learn."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import KERNELS, SCORES
from results.learned import Sample, has_learned
from results.mechanisms import CONTROLS, Cell, Grid, Store, default_normalizer

_MODELS: Mapping[str, str] = {
    "gru": "GRU",
    "rnn": "RNN",
    "lstm": "LSTM",
    "transformer": "Transformer",
    "gru_transformer": "GRU → Transformer",
    "transformer_gru": "Transformer → GRU",
}


class Reason(NamedTuple):
    """Why some cells do not learn.

    Attributes:
        applies: whether it can be the reason for a cell.
        sentence: the reason.
    """

    applies: Callable[[Cell], bool]
    sentence: str


REASONS: Sequence[Reason] = (
    Reason(
        lambda cell: cell.normalizer == "hard",
        "`hard` is a step function of the scores: queries and keys get zero gradient, so what they compare stays as it "
        "is initialized.",
    ),
    Reason(
        lambda cell: cell.score == "boxcar",
        "`boxcar` is constant on either side of its edge: queries, keys and bandwidth get zero gradient.",
    ),
    Reason(
        lambda cell: cell.normalizer == "identity",
        "`identity` divides by nothing: the size of the context grows with the scores and with the length of the "
        "string, and no key gains weight at the expense of the others.",
    ),
    Reason(
        lambda cell: cell.normalizer == "mean",
        "`mean` divides by the number of keys, whatever the scores: no key gains weight at the expense of the others.",
    ),
    Reason(
        lambda cell: cell.normalizer == "sigmoid",
        "`sigmoid` weights each key on its own: no key gains weight at the expense of the others.",
    ),
    Reason(
        lambda cell: cell.score == "nonlocal_concat",
        "`nonlocal-concat` ranks the keys by w_k·k alone, the same for every query: the query only decides which of "
        "them the relu cuts off.",
    ),
    Reason(
        lambda cell: cell.score in KERNELS and cell.normalizer == "softmax",
        "A kernel is between 0 and 1, so `softmax` gives no key more than e times the weight of another: attention "
        "stays blurred, and reading from a blur takes longer (`gaussian`: 89.5 % after 900 updates, not 300).",
    ),
    Reason(
        lambda cell: cell.model == "gru_transformer" and cell.score in ("epanechnikov", "triangular"),
        "These are halfway where the training ends. `triangular`, seed 0: 26.4 % in twice the updates, 50.6 % in four "
        "times; from twice the first bandwidth 0.4 %.",
    ),
    Reason(
        lambda cell: cell.score in ("epanechnikov", "triangular"),
        "`epanechnikov` and `triangular` end at the bandwidth: keys that lie beyond it get zero gradient, and queries "
        "can move out of reach of all keys before the bandwidth adapts. LSTM `triangular`, seed 0: at first no weight "
        "is 0; in the second eighth of the training 99.8 % are, and so it stays; from twice the first bandwidth it "
        "writes 30.6 %, from four times 55.5 %. From twice the first bandwidth, GRU `triangular` (seed 2) writes "
        "96.6 %, not 3.6 %, Transformer `epanechnikov` (seed 1) 95.9 %, not 83.6 %.",
    ),
    Reason(
        lambda cell: cell.model == "transformer" and cell.score == "dot",
        "These are halfway where the training ends. In twice the updates, seed 0: `dot` 97.7 %.",
    ),
    Reason(
        lambda cell: cell.model in ("gru_transformer", "transformer_gru"),
        "These are halfway where the training ends. In twice the updates, seeds 0 and 1: GRU → Transformer `additive` "
        "99.5 % and 98.3 %.",
    ),
)
"""The page gives the first one that applies."""


@dataclass(frozen=True)
class Results:
    """The stored figures.

    Args:
        grid: all cells.
        samples: percentages of strings written exactly, of the cells that have figures.
        stopped: cells with a training that ended because a loss or gradient was not finite.
        seconds: median processor time of a training, by model.
        machine: what they were trained on.
    """

    grid: Grid
    samples: Mapping[Cell, Sample]
    stopped: frozenset[Cell]
    seconds: Mapping[str, float]
    machine: str

    @classmethod
    def read(cls, grid: Grid, store: Store) -> "Results":
        """Read the figures of all cells of a grid."""
        records = {model: store.read(model) for model in grid.models}
        trained: dict[Cell, list[dict[str, Any]]] = {}
        for cell in grid.cells():
            by_seed = records[cell.model]["cells"].get(cell.mechanism, {})
            if by_seed:
                trained[cell] = list(by_seed.values())
        used: dict[str, list[float]] = {}
        for cell, runs in trained.items():
            used.setdefault(cell.model, []).extend(run["processor_seconds"] for run in runs)
        return cls(
            grid,
            {cell: Sample(tuple(run["exact"] for run in runs)) for cell, runs in trained.items()},
            frozenset(cell for cell, runs in trained.items() if any("stopped" in run for run in runs)),
            {model: statistics.median(seconds) for model, seconds in used.items()},
            next((record["machine"] for record in records.values() if "machine" in record), ""),
        )

    @cached_property
    def judged(self) -> list[Cell]:
        """The trained cells other than controls, if all controls of their model are trained."""
        return [cell for cell in self.samples if cell.score not in CONTROLS and self._controls(cell)]

    def learned(self, cell: Cell) -> bool:
        """Return whether a judged cell has learned."""
        return has_learned(self.samples[cell], self._controls(cell), self.grid.settings["data"]["test"])

    def shown(self, cell: Cell) -> str:
        """Return the mean, bold if learned, the standard deviation, and the number of seeds if not all are trained."""
        if cell not in self.samples:
            return ""
        sample = self.samples[cell]
        count = len(sample.values)
        mean = f"{sample.mean:.1f}"
        mean = f"**{mean}**" if cell in self.judged and self.learned(cell) else mean
        spread = f" ± {sample.deviation:.1f}" if count > 1 else ""
        return f"{mean}{spread}" + (f" ({count})" if count < len(self.grid.seeds) else "")

    def _controls(self, cell: Cell) -> list[Sample]:
        """Return the figures of the controls of a cell's model; none if one has no figures."""
        controls = [each for each in self.grid.controls() if each.model == cell.model]
        return [self.samples[each] for each in controls] if all(each in self.samples for each in controls) else []


def section() -> str:
    """Return the section of the page on which mechanisms learn."""
    results = Results.read(Grid.read(), Store.kept())
    head = "## Which mechanisms learn\n\n"
    if not results.samples:
        return f"{head}Not run.\n\n"
    return f"""{head}{_introduction(results)}
### Each score with its default normalizer

{_by_model(results)}
{"".join(_by_normalizer(results, model) for model in results.grid.settings["every_normalizer"])}### What does not learn

{_unlearned(results)}
{_details(results)}
"""


def _introduction(results: Results) -> str:
    data, seeds = results.grid.settings["data"], results.grid.seeds
    cells, judged = results.grid.cells(), results.judged
    learned = sum(map(results.learned, judged))
    complete = sum(len(sample.values) == len(seeds) for sample in results.samples.values())
    return f"""Strings of {data["shortest"]} to {data["longest"]} letters, to write backward (`results.reverse`):
{data["train"]:,} for training, and {data["test"]:,} others for testing. A figure is the percentage of test strings that
are written exactly, mean ± standard deviation over {len(seeds)} seeds; where fewer were trained, their number is in
parentheses. Every model is trained as by `qkv train translate`, at width 64, with a number of updates fixed for each
kind of model.

The controls cannot choose where to look: `none` (recurrent decoders only) and `uniform`, the mean of all positions. A
cell in **bold** has learned: its mean is three standard deviations above that of both controls of its model. The
standard deviation is the largest of three: over the cell's seeds, over the control's seeds, and {_floor(data["test"])}
points, the largest that the percentage of {data["test"]:,} strings can have by chance.

{len(results.samples)} of {len(cells)} cells are trained, {complete} of them with all {len(seeds)} seeds; {learned} of
{len(judged)} cells that are no controls have learned.
"""


def _floor(strings: int) -> str:
    return f"{50 / strings**0.5:.1f}"


def _by_model(results: Results) -> str:
    models = results.grid.models
    names = [*CONTROLS, *(score for score in SCORES if score not in CONTROLS)]
    rows = {}
    for score in names:
        normalizer = default_normalizer(score)
        cells = [Cell(model, score, normalizer) for model in models]
        rows[f"`{_flag(score)}`"] = [_place(results, cell) for cell in cells]
    return _table("score", [_MODELS.get(model, model) for model in models], rows)


def _by_normalizer(results: Results, model: str) -> str:
    rows = {}
    for score in SCORES:
        if score not in CONTROLS:
            rows[f"`{_flag(score)}`"] = [_place(results, Cell(model, score, name)) for name in NORMALIZERS]
    table = _table("score", [f"`{name}`" for name in NORMALIZERS], rows)
    return f"### Each score with each normalizer, {_MODELS.get(model, model)}\n\n{table}\n"


def _place(results: Results, cell: Cell) -> str:
    """Return what the table says of a cell; a dash if it has no meaning."""
    return results.shown(cell) if cell in results.grid.cells() else "–"


def _table(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    lines = [f"| {corner} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def _unlearned(results: Results) -> str:
    """Return a list of reasons with the cells that they explain, and of the cells that none explains."""
    cells = [cell for cell in results.judged if not results.learned(cell)]
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        sentence = next((reason.sentence for reason in REASONS if reason.applies(cell)), "")
        found.setdefault(sentence, []).append(cell)
    unexplained = found.pop("", [])
    lines = [f"- {sentence} {_listed(found[sentence])}" for _, sentence in REASONS if sentence in found]
    if unexplained:
        lines.append(f"- Not explained: {_listed(unexplained)}")
    return "\n".join(lines or ["No cell that was judged."]) + "\n"


def _listed(cells: Sequence[Cell]) -> str:
    names = [f"{_MODELS.get(cell.model, cell.model)} {_flag(cell.score)} {cell.normalizer}" for cell in cells]
    return f"{len(cells)} cell{'s' if len(cells) > 1 else ''}: {', '.join(names)}."


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _details(results: Results) -> str:
    models = results.grid.settings["models"]
    each = ", ".join(
        f"{_MODELS.get(model, model)} {models[model]['steps']} updates, {seconds:.0f} s"
        for model, seconds in results.seconds.items()
    )
    what = "ended by a loss or gradient that was not finite"
    stopped = f"- {what}: {_listed(sorted(results.stopped))}\n" if results.stopped else ""
    command = "`python -m results.mechanisms`, which can be interrupted and continued; the page: `python -m results`"
    return f"""{stopped}- command: {command}
- settings: [`results/mechanisms.toml`](../../results/mechanisms.toml); figures of each seed:
  [`results/runs/mechanisms`](../../results/runs/mechanisms)
- updates, and median processor time of a training with its validation: {each}
- machine: {results.machine}
"""
