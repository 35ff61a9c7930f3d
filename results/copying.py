"""The copying row: sentences with names that no training text has, for models with and without copying."""

import json
import os
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from qkv.data.corpus import Pair
from qkv.metrics.matches import exact_match
from qkv.tasks.drawing import alignments
from qkv.tasks.run import train_run
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE
from qkv.view.export import save
from results.introductions import splits
from results.row import ResultRow, parts_of_page
from results.transduction_data import write

_BEAM = 4


ROWS = (ResultRow("copying", "Copying unseen names"),)


def run_row(row: ResultRow, data: Path, run: Path, *, train: bool) -> None:
    """Train each model, score it on new names, and store figures and a picture in the repository.

    Args:
        row: the row to run.
        data: unused; the sentences are generated here.
        run: where to create the run folders.
        train: whether to train, or only score finished runs again.
    """
    settings = tomllib.loads(row.config.read_text(encoding="utf-8"))
    sizes = settings["data"]
    sets = splits(sizes["train"], sizes["validation"], sizes["test"], sizes["seed"])
    files = {name: run / f"{name}.tsv" for name in ("data", "valid_data")}
    for path, pairs in zip(files.values(), sets, strict=False):
        write(pairs, path)
    start = time.process_time()
    figures = {name: one_model(name, settings, files, run, sets.test, train) for name in settings["models"]}
    record = {
        "figures": figures,
        "sentences": sizes,
        "processor_seconds": round(time.process_time() - start, 1),
        "machine": f"{os.cpu_count()} cores, {torch.get_num_threads()} thread, PyTorch {torch.__version__}",
    }
    row.kept.mkdir(parents=True, exist_ok=True)
    row.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    first = Translator.load(run / next(iter(settings["models"])))
    save(row.kept / "origin.png", alignments(first.translate_fully([sets.test[0].source], attention=True)))
    print(json.dumps(figures, indent=1))


def one_model(
    name: str, settings: dict[str, Any], files: dict[str, Path], run: Path, test: Sequence[Pair], retrain: bool
) -> dict[str, float]:
    """Train and score one of the models.

    Args:
        name: name of the model.
        settings: settings of the row.
        files: training and validation files.
        run: folder for the row's runs.
        test: sentences with new names.
        retrain: whether to train it first.

    Returns:
        In percent: exact sentences with greedy decoding and with a beam; and the number of parameters.
    """
    own = settings["models"][name]
    training = {**settings["training"], "steps": own["steps"], "learning_rate": own["learning_rate"]}
    training["validate_every"] = own["steps"]
    tables = {"data": files, "tokenizer": settings["tokenizer"], "model": own["model"], "training": training}
    if retrain:
        train_run(RECIPE, RECIPE.load_settings(tables), run / name)
    translator = Translator.load(run / name)
    sources, targets = [pair.source for pair in test], [pair.target for pair in test]
    exact = {}
    for width, kind in ((1, "greedy"), (_BEAM, "beam")):
        found = translator.translate_fully(sources, Decoding(width))
        exact[kind] = exact_match([each.text for each in found], targets).value
    return {**exact, "parameters": sum(parameter.numel() for parameter in translator.model.parameters())}


def section() -> str:
    """Return the section of the page on copying."""
    return parts_of_page(ROWS, _part)


def _part(row: ResultRow, record: Any) -> str:
    sizes = record["sentences"]
    lines = "".join(_line(name, figures) for name, figures in record["figures"].items())
    return f"""Introductions such as "hello , my name is … .", to be answered by "hello … !":
{sizes["train"]:,} for training, and {sizes["test"]:,} for testing with names that occur nowhere else
(`results.introductions`). A sentence counts if every word is right. The target is at least 98 % with copying;
without copying, nearly none can be right.

| model | `--copy` | exact, greedy | exact, beam of {_BEAM} | parameters |
|---|---|---|---|---|
{lines}
- command: `python -m results --data FOLDER --row {row.name}` (nothing is read from FOLDER)
- settings: [`results/{row.name}.toml`](../../results/{row.name}.toml), seed 0, 500 updates each
- processor time: {record["processor_seconds"] / 60:.1f} min for all; machine: {record["machine"]}

![Where each word comes from](../../results/runs/{row.name}/origin.png)

"""


def _line(name: str, figures: dict[str, float]) -> str:
    kind, _, copy = name.partition("_")
    shown = {"gru": "GRU, additive attention", "transformer": "Transformer"}[kind]
    return (
        f"| {shown} | {copy} | **{figures['greedy']:.1f}** % | {figures['beam']:.1f} % "
        f"| {figures['parameters'] / 1e3:.0f} thousand |\n"
    )
