"""Train every score, normalizer and model to reverse short strings, and show which combinations learn.

    python -m results.mechanisms                        train what has no stored figures
    python -m results.mechanisms --model gru            one model; may be given several times
    python -m results.mechanisms --at-most 20           at most 20 trainings

Figures are stored in `results/runs/mechanisms` after each training. Ctrl-C loses only the training in progress: run the
command again to continue. Each training has a fixed number of updates on one thread, so it can be repeated; the
processor time is stored with its figures. `python -m results` then writes docs/project/results.md.
"""

import argparse
import json
import os
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qkv.errors import ConfigError, TrainingError
from qkv.metrics.matches import exact_match
from qkv.nn.mechanism import MechanismConfig
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES
from qkv.tasks.run import train_run
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE
from results.row import ROOT
from results.transduction_data import short_parts, write

CONTROLS = ("none", "uniform")

Figures = dict[str, Any]


class Cell(NamedTuple):
    """A combination to train.

    Attributes:
        model: its name in the settings.
        score: its name; "none" for no attention.
        normalizer: its name.
    """

    model: str
    score: str
    normalizer: str

    @property
    def mechanism(self) -> str:
        """Score and normalizer, as the key of the stored figures."""
        return f"{self.score} {self.normalizer}"


@dataclass(frozen=True)
class Grid:
    """What is trained.

    Args:
        settings: the parsed `mechanisms.toml`.
    """

    settings: Mapping[str, Any]

    @classmethod
    def read(cls) -> "Grid":
        """Read `results/mechanisms.toml`."""
        return cls(tomllib.loads((ROOT / "results" / "mechanisms.toml").read_text(encoding="utf-8")))

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        return list(self.settings["models"])

    @property
    def seeds(self) -> list[int]:
        """The seeds of each cell."""
        return list(self.settings["seeds"])

    def controls(self) -> list[Cell]:
        """Return the cells without attention, or with the same weight for every key."""
        return [cell for model in self.models for cell in self._of_scores(model, CONTROLS)]

    def defaults(self) -> list[Cell]:
        """Return each other score with its default normalizer in each model."""
        scores = [score for score in SCORES if score not in CONTROLS]
        return [cell for model in self.models for cell in self._of_scores(model, scores)]

    def others(self) -> list[Cell]:
        """Return the other normalizers, in the models that are trained with every one."""
        names = [
            (model, score, normalizer)
            for model in self.settings["every_normalizer"]
            for normalizer in NORMALIZERS
            for score in SCORES
            if score not in CONTROLS
        ]
        default = set(self.defaults())
        cells = (Cell(*each) for each in names)
        return [cell for cell in cells if cell not in default and _has_meaning(cell.score, cell.normalizer)]

    def cells(self) -> list[Cell]:
        """Return all cells, the controls first."""
        return [*self.controls(), *self.defaults(), *self.others()]

    def trainings(self) -> Iterator[tuple[Cell, int]]:
        """Yield cells and seeds: every cell with the first seed before any has the second."""
        yield from ((cell, seed) for seed in self.seeds for cell in self.cells())

    def tables(self, model: str) -> Figures:
        """Return all settings that the figures of a model depend on, except its mechanism and seed."""
        own = self.settings["models"][model]
        training = {**self.settings["training"], **{name: own[name] for name in ("steps", "warmup")}}
        training |= {"validate_every": own["steps"], "log_every": own["steps"], "keep": 1}
        return {"data": dict(self.settings["data"]), "training": training, "model": dict(own["model"])}

    def _of_scores(self, model: str, scores: Sequence[str]) -> Iterator[Cell]:
        decoder = self.settings["models"][model]["model"]["model"]
        for score in scores:
            if score != "none" or decoder != "transformer":  # without attention, a Transformer reads no source
                yield Cell(model, score, default_normalizer(score))


@cache
def default_normalizer(score: str) -> str:
    """Return the name of the normalizer that a score has by default."""
    return str(MechanismConfig(score=score).normalizer)


@cache
def _has_meaning(score: str, normalizer: str) -> bool:
    try:
        MechanismConfig(score=score, normalizer=normalizer)
    except ConfigError:
        return False
    return True


@dataclass(frozen=True)
class Store:
    """The stored figures, one file for each model.

    Args:
        folder: where the files are.
    """

    folder: Path

    @classmethod
    def kept(cls) -> "Store":
        """Return the figures in the repository."""
        return cls(ROOT / "results" / "runs" / "mechanisms")

    def read(self, model: str) -> Figures:
        """Return the settings, and the figures by mechanism and seed, of one model; both are empty if it has none."""
        path = self._path(model)
        empty: Figures = {"settings": {}, "cells": {}}
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty

    def has(self, cell: Cell, seed: int) -> bool:
        """Return whether a training has figures."""
        return str(seed) in self.read(cell.model)["cells"].get(cell.mechanism, {})

    def expect_settings(self, model: str, tables: Figures) -> None:
        """Refuse to mix figures of different settings.

        Raises:
            SystemExit: the stored figures of the model have other settings.
        """
        if self.read(model)["settings"] not in ({}, tables):
            raise SystemExit(f"{self._path(model)} has figures of other settings: delete it, or restore the settings.")

    def add(self, cell: Cell, seed: int, tables: Figures, figures: Figures) -> None:
        """Store the figures of one training; the file is replaced as a whole."""
        record = self.read(cell.model)
        record["settings"] = tables
        record["machine"] = f"{os.cpu_count()} cores, 1 thread, PyTorch {torch.__version__}"
        record["cells"].setdefault(cell.mechanism, {})[str(seed)] = figures
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self._path(cell.model).with_suffix(".new")
        new.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(self._path(cell.model))

    def _path(self, model: str) -> Path:
        return self.folder / f"{model}.json"


def run(grid: Grid, store: Store, models: Sequence[str], at_most: int | None = None) -> None:
    """Train what has no figures yet, and store the figures of each training.

    Args:
        grid: what to train.
        store: where figures are stored.
        models: the models to train.
        at_most: the largest number of trainings; None for no limit.

    Raises:
        SystemExit: the stored figures have other settings.
    """
    for model in models:
        store.expect_settings(model, grid.tables(model))
    missing = [(cell, seed) for cell, seed in grid.trainings() if cell.model in models and not store.has(cell, seed)]
    for cell, seed in missing[:at_most]:
        tables = grid.tables(cell.model)
        figures = one_training(cell, seed, tables)
        if figures is None:
            return
        store.add(cell, seed, tables, figures)
        print(*cell, seed, json.dumps(figures), flush=True)


def one_training(cell: Cell, seed: int, tables: Figures) -> Figures | None:
    """Train one cell as `qkv train translate` does, and reverse new strings.

    Args:
        cell: model, score and normalizer.
        seed: of weights and batches; the strings are the same for every seed.
        tables: the settings, as of `Grid.tables`.

    Returns:
        In percent of new strings, those written exactly, and the letters in their right place; and the processor time
        of the training. If the loss or a gradient became infinite, 0 and the message. None if interrupted.
    """
    sizes = tables["data"]
    parts = short_parts(sizes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {"data": folder / "train.tsv", "valid_data": folder / "valid.tsv"}
        write(parts.train, files["data"])
        write(parts.valid, files["valid_data"])
        model = {**tables["model"], "score": cell.score, "normalizer": cell.normalizer}
        training = {**tables["training"], "seed": seed}
        settings = RECIPE.load_settings(
            {"data": files, "tokenizer": {"tokenizer": "char"}, "model": model, "training": training}
        )
        start = time.process_time()
        try:
            outcome = train_run(RECIPE, settings, folder / "run")
        except TrainingError as error:
            return {"exact": 0.0, "letters": 0.0, "stopped": str(error), **_since(start)}
        used = _since(start)
        if outcome.reason == "interrupted":
            return None
        found = Translator.load(folder / "run").translate_fully([pair.source for pair in parts.test])
    texts, answers = [each.text for each in found], [pair.target for pair in parts.test]
    return {"exact": exact_match(texts, answers).value, "letters": letters_in_place(texts, answers), **used}


def letters_in_place(texts: Sequence[str], answers: Sequence[str]) -> float:
    """Return the percentage of letters of the answers that the texts have at the same place.

    Example:
        >>> letters_in_place(["abd", ""], ["abc", "e"])
        50.0
    """
    right = sum(a == b for text, answer in zip(texts, answers, strict=True) for a, b in zip(text, answer, strict=False))
    return round(100 * right / sum(map(len, answers)), 2)


def _since(start: float) -> dict[str, float]:
    return {"processor_seconds": round(time.process_time() - start, 1)}


def main() -> None:
    """Parse the command line and train."""
    grid = Grid.read()
    parser = argparse.ArgumentParser(prog="python -m results.mechanisms", description=__doc__)
    parser.add_argument("--model", choices=grid.models, action="append", help="one model; all by default")
    parser.add_argument("--at-most", type=int, help="the largest number of trainings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run(grid, Store.kept(), options.model or grid.models, options.at_most)


if __name__ == "__main__":
    main()
