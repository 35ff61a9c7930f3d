"""What `qkv compare` takes besides the settings of a task, and which of those can have several values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from qkv.settings import Option, choices_of, hints_of, options_of, parts_of
from qkv.tasks.settings import Device, TaskSettings

TEST = "test_"
"""What begins the name of a setting that names files to test on."""
SEEDS = 3
"""Trainings of each combination, by default."""
NOT_COMPARED: Mapping[str, str] = MappingProxyType(
    {
        "seed": "Give seeds, how many trainings each combination has.",
        "minutes": "Give steps: trainings are compared after equally many, and their time is reported.",
        "ensemble": "Compare single models.",
        "both_directions": "Compare single models.",
    }
)
"""Settings that a comparison does not have, and what to do."""
_FIXED = ("data", "ensemble")
"""Tables whose settings are the same for all trainings."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What the command has besides the settings of the task."""

    out: Annotated[Path | None, Option("The folder of the trainings. Run the same command again to go on")] = None
    seeds: Annotated[
        int | None, Option("Trainings of each combination, with the seeds from 0 on", least=1, most=1000, or_else=SEEDS)
    ] = None
    folds: Annotated[
        int | None,
        Option("In place of seeds: divide the data in so many parts, each tested by a training on the others", least=2),
    ] = None
    controls: Annotated[
        bool, Option("Where scores are compared, also train without attention (none) and with equal weights (uniform)")
    ] = True
    device: Device = "cpu"


def can_vary(task: TaskSettings, name: str) -> bool:
    """Return whether a setting can have several values in a comparison: not files, flags and lists.

    Example:
        >>> from qkv.tasks.translate.settings import TRANSLATE
        >>> [can_vary(TRANSLATE, name) for name in ("score", "heads", "tied", "source", "betas")]
        [True, True, False, False, False]
    """
    table = task.table_of[name]
    kinds = [kind for kind in choices_of(hints_of(task.tables[table])[name]) if kind is not type(None)]
    return table not in _FIXED and Path not in kinds and bool not in kinds and not any(map(parts_of, kinds))


def files_to_test(task: TaskSettings) -> list[str]:
    """Return the settings of a task's evaluation that name files.

    Example:
        >>> from qkv.tasks.translate.settings import TRANSLATE
        >>> files_to_test(TRANSLATE)
        ['source', 'target', 'data']
    """
    table: Any = task.evaluation
    hints = hints_of(table)
    return [name for name in settings_to_test(task) if Path in choices_of(hints[name])]


def settings_to_test(task: TaskSettings) -> list[str]:
    """Return the settings of a task's evaluation that its data has too: files, and how they are read.

    Example:
        >>> from qkv.tasks.classify.settings import CLASSIFY
        >>> settings_to_test(CLASSIFY)
        ['sep', 'data', 'label_col', 'text_col']
    """
    table: Any = task.evaluation
    return [name for name in options_of(table) if name in options_of(task.tables["data"])]
