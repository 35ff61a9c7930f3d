"""Train the cells of a comparison, each with each seed, and keep the figures of each training.

OUT/CELL/seed-N/run          an ordinary run, for every command
OUT/CELL/seed-N/figures.json settings, figures and cost, once it is complete
OUT/CELL/seed-N/lock         locked while a process trains it

So any number of processes can run the same command, and a process can be killed at any moment: what it was training is
resumed by the next one that finds it unlocked.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, final

from qkv.checkpoint.disk import make_folder, replace_file
from qkv.checkpoint.json_values import decode_mapping, encode
from qkv.errors import CheckpointError, ConfigError, TrainingError
from qkv.files import read_file
from qkv.metrics.figure import Figure
from qkv.settings import as_dict, build
from qkv.system import locked
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.compare.grid import Cell, settings_of
from qkv.tasks.compare.settings import settings_to_test
from qkv.tasks.folds import write_folds
from qkv.tasks.load import load
from qkv.tasks.recipe import AnyRecipe, Recipe, Tables
from qkv.tasks.run import train_run
from qkv.tasks.settings import EvaluationSettings, TaskSettings
from qkv.tasks.streams import finite

_RUN, _FIGURES, _LOCK = "run", "figures.json", "lock"
_LARGEST = 64 << 20
Unit = Literal["seed", "fold"]
Ended = Literal["stored", "busy", "interrupted"]


@final
@dataclass(frozen=True)
class Result:
    """What one training gave.

    Args:
        figures: the figures of its best checkpoint, the one that chose it first: on the files to test if there are
            some, else on those to validate.
        credits: how good each answer to the files to test is; none without such files, or for a task without answers.
        judge: the figure that they are of: the first one, or another if that does not follow from a mean over answers.
        stopped: why the training could not go on; "" if it ended.
        parameters: of the model.
        steps: updates.
        seconds: of this process's processor, in training.
    """

    figures: tuple[Figure, ...]
    credits: tuple[float, ...]
    stopped: str
    parameters: int
    steps: int
    seconds: float
    judge: str = ""


class Training(NamedTuple):
    """A cell with a seed, to train.

    Attributes:
        cell: the combination.
        seed: the random seed, or the number of the part that is tested on.
        folder: where it is kept.
        tables: its settings.
        test: what to test on; None for the figures of the validation.
        unit: what is counted by `seed`: seeds, or the parts of a cross-validation.
    """

    cell: Cell
    seed: int
    folder: Path
    tables: Tables
    test: EvaluationSettings | None
    unit: Unit = "seed"

    @property
    def digest(self) -> str:
        """A digest of everything that its result depends on; data that was given as values counts by its text."""
        tables = {**self.tables, "test": {} if self.test is None else as_dict(self.test)}
        rows = sorted((table, name, repr(item)) for table, entries in tables.items() for name, item in entries.items())
        return sha256(repr(rows).encode()).hexdigest()


def planned(
    recipe: AnyRecipe, cells: Sequence[Cell], seeds: int, settings: Mapping[str, Any], test: Any, out: Path
) -> list[Training]:
    """Return the trainings of cells: every cell with the first seed before any has the second.

    Args:
        recipe: the task.
        cells: the combinations.
        seeds: how many trainings each has; a task that draws nothing has one.
        settings: of all cells, by name.
        test: what to test on, or None.
        out: the folder of all trainings.
    """
    task = recipe.settings
    drawn = "seed" in task.table_of
    return [
        Training(
            cell,
            seed,
            out / cell.folder / f"seed-{seed}",
            task.in_tables({**settings_of(cell, settings), **({"seed": seed} if drawn else {})}),
            test,
        )
        for seed in range(seeds if drawn else 1)
        for cell in cells
    ]


def planned_folds(
    recipe: AnyRecipe, cells: Sequence[Cell], count: int, settings: Mapping[str, Any], out: Path, device: str
) -> list[Training]:
    """Return the trainings of a cross-validation: every cell without the first part before any without the second.

    Args:
        recipe: the task.
        cells: the combinations.
        count: how many parts.
        settings: of all cells, by name.
        out: the folder of all trainings, in which the parts are written.
        device: compute device.

    Raises:
        ConfigError: the task's data cannot be divided, or has too few different inputs.
    """
    task = recipe.settings
    examples = recipe.examples(recipe.load_settings(task.in_tables(settings_of(cells[0], settings))).data)
    if examples is None:
        able = [name for name in TASKS if recipe_of(name).examples is not Recipe.examples]
        hint = "Compare by seeds, and give files to test on."
        raise ConfigError("folds", f"a task whose data can be divided: {', '.join(able)}", task.name, hint)
    trainings = []
    for number, (train, test) in enumerate(write_folds(examples, count, out), start=1):
        for cell in cells:
            own = {**settings_of(cell, settings), **examples.settings, "data": train}
            folder = out / cell.folder / f"fold-{number}"
            tested = evaluation_of(task, {"data": test}, device)
            trainings.append(Training(cell, number, folder, task.in_tables(own), tested, "fold"))
    return trainings


def result_of(training: Training) -> Result | None:
    """Return the stored result of a training; None if there is none yet.

    Raises:
        CheckpointError: the result is of other settings, or damaged.
    """
    path = training.folder / _FIGURES
    if not path.is_file():
        return None
    stored = {"judge": "", **decode_mapping(read_file(path, _LARGEST, links=False), str(path))}
    if stored.get("settings") != training.digest:
        hint = "Give another folder to compare with other settings or other files to test."
        raise CheckpointError(str(path), "figures of these settings", "those of others", hint)
    try:
        values: Any = {item.name: stored[item.name] for item in fields(Result)}
        figures = tuple(Figure(**{**figure, "value": _number(figure["value"])}) for figure in values["figures"])
        return Result(**{**values, "figures": figures, "credits": tuple(map(_number, values["credits"]))})
    except (KeyError, TypeError) as error:
        raise CheckpointError(str(path), "the figures of a training", "something else", "Remove it.") from error


def _number(stored: float | None) -> float:
    """Return a number of a file, where one that is not finite is null."""
    return math.nan if stored is None else stored


def train_cell(recipe: AnyRecipe, training: Training, device: str) -> Result | Ended:
    """Train a cell with a seed, or resume it.

    Args:
        recipe: the task.
        training: what to train.
        device: compute device.

    Returns:
        The result; or that it was stored, that another process trains it, or that Ctrl-C ended it.

    Raises:
        QkvError: bad input; what is complete stays.
    """
    make_folder(training.folder)
    try:
        with locked(training.folder / _LOCK):
            if result_of(training) is not None:
                return "stored"
            result = _trained(recipe, training, device)
            if result is None:
                return "interrupted"
            entries = {**asdict(result), "settings": training.digest, "cell": dict(training.cell.values)}
            replace_file(training.folder / _FIGURES, encode(finite(entries), _FIGURES))  # type: ignore[arg-type]
            return result
    except BlockingIOError:
        return "busy"


def _trained(recipe: AnyRecipe, training: Training, device: str) -> Result | None:
    start = time.process_time()
    run = training.folder / _RUN
    try:
        outcome = train_run(recipe, recipe.load_settings(training.tables), run, device)
    except TrainingError as error:
        return Result((), (), str(error), 0, 0, time.process_time() - start)
    seconds = time.process_time() - start
    if outcome.exit_code:
        return None
    model = load(run, device)
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    main, credits, judge = outcome.best, (), ""
    figures = outcome.figures if main is None else [main]  # that of a model fitted in one step: all
    if training.test is not None:
        scored = model.score_files(training.test)
        figures = sorted(scored.figures, key=lambda figure: main is None or figure.name != main.name)
        if scored.credits:
            judge = figures[0].name if figures[0].name in scored.credits else next(iter(scored.credits))
            credits = tuple(scored.credits[judge]())
    return Result(tuple(figures), credits, "", parameters, outcome.step, seconds, judge)


def evaluation_of(
    task: TaskSettings, files: Mapping[str, Any], device: str, settings: Mapping[str, Any] = MappingProxyType({})
) -> EvaluationSettings | None:
    """Return what to test on, read as the data of the settings is; None if no file is given."""
    named = {name: item for name, item in files.items() if item is not None}
    as_trained = {name: settings[name] for name in settings_to_test(task) if name in settings}
    return replace(build(task.evaluation, {**as_trained, **named}), device=device) if named else None
