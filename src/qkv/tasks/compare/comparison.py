"""The table of a comparison: means over seeds, what differs beyond chance, and what it cost."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, final

import numpy as np

from qkv.metrics.bootstrap import paired_bootstrap
from qkv.metrics.figure import Figure
from qkv.tasks.compare.grid import Cell
from qkv.tasks.compare.training import Result, Unit
from qkv.tasks.streams import aligned, csv_text, finite

_NOTHING = "–"


@final
@dataclass(frozen=True)
class Row:
    """One cell of a comparison.

    Args:
        cell: the combination of settings.
        results: those of its seeds, by seed.
        p: the paired bootstrap's p-value of "the best cell is no better", on all answers of the seeds that both have;
            None for the best cell, and where nothing was answered.
    """

    cell: Cell
    results: Mapping[int, Result]
    p: float | None = None

    @property
    def main(self) -> list[Figure]:
        """The main figure of each seed that ended."""
        return [result.figures[0] for result in self.results.values() if result.figures]

    @property
    def mean(self) -> float:
        """The mean of the main figure over seeds; NaN if no training ended."""
        return statistics.fmean(figure.value for figure in self.main) if self.main else float("nan")

    @property
    def deviation(self) -> float:
        """The standard deviation over seeds; NaN for fewer than two."""
        return statistics.stdev(figure.value for figure in self.main) if len(self.main) > 1 else float("nan")

    @property
    def stopped(self) -> list[str]:
        """Why trainings could not go on."""
        return [result.stopped for result in self.results.values() if result.stopped]

    @property
    def parameters(self) -> int:
        """The parameters of the model."""
        return max((result.parameters for result in self.results.values()), default=0)

    @property
    def seconds(self) -> float:
        """The mean processor time of a training."""
        return statistics.fmean(result.seconds for result in self.results.values()) if self.results else float("nan")

    def texts(self, axes: Sequence[str]) -> list[str]:
        """Return the row of a table: settings, the figure, seeds, p, parameters and time."""
        spread = "" if np.isnan(self.deviation) else f" ± {self.deviation:.2f}"
        figure = f"{self.mean:.2f}{spread}" if self.main else f"stopped: {self.stopped[0][:60]}" if self.stopped else ""
        p = _NOTHING if self.p is None else "<0.001" if self.p < 1e-3 else f"{self.p:.3f}"
        names = [str(self.cell.values.get(name, _NOTHING)) for name in axes]
        names[0] += " (control)" if self.cell.control else ""
        ended = f"{len(self.main)}" if not self.stopped else f"{len(self.main)} of {len(self.results)}"
        return [*names, figure or _NOTHING, ended, p, f"{self.parameters:,}", f"{self.seconds:.1f}"]


@final
@dataclass(frozen=True, repr=False)
class Comparison:
    """What a comparison gave, the best cell first.

    Args:
        rows: the cells.
        refused: why combinations were not trained, by name.
        missing: how many trainings are not complete.
        unit: what results are numbered by: seeds, or the parts of a cross-validation.
    """

    rows: Sequence[Row]
    refused: Mapping[str, str]
    missing: int = 0
    unit: Unit = "seed"

    @classmethod
    def of(
        cls,
        results: Iterable[tuple[Cell, Mapping[int, Result]]],
        refused: Mapping[str, str],
        missing: int,
        unit: Unit = "seed",
    ) -> "Comparison":
        """Rank cells, and compare each with the best one that is no control.

        Args:
            results: those of each cell, by seed.
            refused: why combinations were not trained, by name.
            missing: how many trainings are not complete.
            unit: what results are numbered by.
        """
        rows = sorted((Row(cell, by_seed) for cell, by_seed in results if by_seed), key=_rank)
        best = next((row for row in rows if not row.cell.control and row.main), None)
        rows = [row if row is best or best is None else Row(row.cell, row.results, _p(best, row, unit)) for row in rows]
        return cls(rows, refused, missing, unit)

    @property
    def axes(self) -> list[str]:
        """The settings that differ."""
        return list(dict.fromkeys(name for row in self.rows for name in row.cell.values)) or ["settings"]

    @property
    def judge(self) -> str:
        """The figure that p is of; "" if none is computed."""
        return next((result.judge for row in self.rows for result in row.results.values() if result.judge), "")

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        figure = next((figure for row in self.rows for figure in row.main), None)
        other = self.judge and figure is not None and self.judge != figure.name
        name = "figure" if figure is None else f"{figure.name} ({figure.unit})" if figure.unit else figure.name
        return [*self.axes, name, f"{self.unit}s", f"p ({self.judge})" if other else "p", "parameters", "CPU s"]

    def table(self) -> list[list[str]]:
        """Return the table as texts, its header first."""
        return [self.header, *(row.texts(self.axes) for row in self.rows)]

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        header, *rows = self.table()
        lines = [header, ["---"] * len(header), *rows]
        return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)

    def to_csv(self) -> str:
        """Return one line for each training: its settings, its figures, its cost."""
        names = list(dict.fromkeys(f.name for row in self.rows for r in row.results.values() for f in r.figures))
        rows: list[list[object]] = [
            [*self.axes, "control", self.unit, *names, "parameters", "steps", "processor_seconds", "stopped"]
        ]
        for row in self.rows:
            for seed, result in row.results.items():
                values = {figure.name: figure.value for figure in result.figures}
                settings = [row.cell.values.get(name, "") for name in self.axes]
                figures = [values.get(name, "") for name in names]
                cost = [result.parameters, result.steps, round(result.seconds, 3), result.stopped]
                rows.append([*settings, row.cell.control, seed, *figures, *cost])
        return csv_text(rows)

    def to_json_value(self) -> dict[str, Any]:
        """Return everything but single answers."""
        rows = [
            {
                "settings": dict(row.cell.values),
                "control": row.cell.control,
                "mean": row.mean,
                "deviation": row.deviation,
                "p": row.p,
                "parameters": row.parameters,
                "processor_seconds": row.seconds,
                "stopped": row.stopped,
                f"{self.unit}s": {
                    str(seed): {figure.name: figure.value for figure in result.figures}
                    for seed, result in row.results.items()
                },
            }
            for row in self.rows
        ]
        value: Any = finite({"rows": rows, "p_of": self.judge, "refused": dict(self.refused), "missing": self.missing})
        return dict(value)

    def __repr__(self) -> str:
        return "\n".join(aligned(self.table()))

    def _repr_html_(self) -> str:
        header, *rows = self.table()
        lines = [
            "".join(f"<{tag}>{escape(text)}</{tag}>" for text in line)
            for tag, line in (("th", header), *(("td", row) for row in rows))
        ]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _rank(row: Row) -> tuple[bool, float]:
    if not row.main:
        return True, 0.0
    return False, -row.mean if row.main[0].higher_is_better else row.mean


def _p(best: Row, row: Row, unit: Unit) -> float | None:
    """Return the p-value of the paired bootstrap on all answers of the seeds, or parts, that both have."""
    seeds = [seed for seed in best.results if seed in row.results and best.results[seed].credits]
    seeds = [seed for seed in seeds if len(best.results[seed].credits) == len(row.results[seed].credits)]
    if not seeds:
        return None
    if unit == "fold":  # each example is answered once
        first, second = (np.concatenate([each.results[fold].credits for fold in seeds]) for each in (best, row))
        return paired_bootstrap(first, second)
    # The answers of one example by several seeds are no independent examples: their mean is one.
    first, second = (np.mean([each.results[seed].credits for seed in seeds], axis=0) for each in (best, row))
    return paired_bootstrap(first, second)
